// One round: every drafted token with its check, and what a recovered token was drawn from.
const { el, percent, fixed, quoted } = window.Playground;
const root = element.querySelector(".pg-round");
const rowsBox = root.querySelector(".pg-round-checks"), why = root.querySelector(".pg-round-why");
const figure = root.querySelector(".pg-residual");
const RESULT = { accepted: "✓ accepted", rejected: "✕ rejected", unused: "– unread", recovered: "↺ recovered", bonus: "+ bonus", target: "drawn" };

const share = (value) => (value === null ? "–" : percent(value));

function track(token) {
  if (token.threshold === null) return el("span", "pg-track-none", token.status === "unused" ? "" : token.status === "accepted" ? "target drew the same" : "target drew another");
  const box = el("div", "pg-track"), fill = el("i"), tick = el("b");
  fill.style.width = `${token.threshold * 100}%`;
  tick.style.left = `${token.uniform * 100}%`;
  box.title = `accepted where u < ${fixed(token.threshold, 4)}; u = ${fixed(token.uniform, 4)}`;
  box.append(fill, tick);
  return box;
}

function line(token, place, value) {
  const row = el("div", "pg-check-row" + (place === value.place ? " pg-chosen" : ""));
  row.setAttribute("role", "row");
  row.dataset.status = token.status;
  row.tabIndex = 0;
  row.dataset.place = place;
  const outcome = el("span", "pg-outcome", RESULT[token.status]);
  outcome.dataset.status = token.status;
  row.append(quoted(token.label), el("span", "", share(token.p)), el("span", "", share(token.q)),
    el("span", "", token.ratio === null ? "–" : token.ratio >= 100 ? ">100" : fixed(token.ratio, 2)),
    el("span", "", token.uniform === null ? "–" : fixed(token.uniform, 2)), track(token), outcome);
  return row;
}

function lastLine(value) {
  const row = el("div", "pg-check-row");
  const kind = value.drafted.length ? value.next.is : "target";
  const outcome = el("span", "pg-outcome", RESULT[kind]);
  outcome.dataset.status = kind;
  const how = { recovered: "from what is left of p", bonus: "from the target, free", target: "from the target" };
  if (value.coupled) how.recovered = "what the target drew";
  row.append(quoted(value.next.label), el("span", "pg-track-none pg-check-how", how[kind]), outcome);
  return row;
}

function sentence(value) {
  const out = [], token = value.drafted[Math.min(value.place, value.drafted.length - 1)];
  if (!value.drafted.length) return ["The draft had no guess here, so this call gave one token, as plain decoding does."];
  out.push(quoted(token.label));
  if (token.status === "unused") out.push(" was not read: an earlier draft was rejected.");
  else if (token.threshold === null) out.push(token.status === "accepted" ? " is what the target itself drew under this seed: accepted." : " is not what the target drew under this seed: rejected.");
  else {
    const below = token.uniform < token.threshold;
    const rule = token.ratio !== null && token.ratio >= 1 ? "The target likes it at least as much as the draft did, so it is always accepted"
      : token.threshold < 0.0005 ? "The target gives it next to no chance, so it is as good as never accepted"
      : `The draft overrated it: accepted only in ${percent(token.threshold)} of cases, that is if u < ${fixed(token.threshold, 3)}`;
    out.push(`: p ${share(token.p)}, q ${share(token.q)}. ${rule}. Drawn u = ${fixed(token.uniform, 3)}: ${below ? "accepted" : "rejected"}.`);
  }
  return out;
}

function bars(value) {
  figure.hidden = !value.residual.length;
  if (figure.hidden) return;
  const key = (name, text) => { const span = el("span"); span.append(el("i", name), text); return span; };
  figure.querySelector("figcaption").replaceChildren(el("b", "", "Where the recovered token came from"),
    key("pg-bar-p", "p, target"), key("pg-bar-q", "q, draft"), key("pg-bar-left", "max(0, p − q): what is left"));
  const top = Math.max(...value.residual.map((row) => Math.max(row.p, row.q)), 1e-9);
  figure.querySelector(".pg-residual-rows").replaceChildren(...value.residual.map((item) => {
    const row = el("div", "pg-residual-row" + (item.drawn ? " pg-drawn" : "") + (item.rejected ? " pg-struck" : ""));
    const box = el("div", "pg-residual-bars");
    for (const [name, size] of [["pg-bar-p", item.p], ["pg-bar-q", item.q], ["pg-bar-left", item.left]]) {
      const bar = el("div", name);
      bar.style.width = `${(size / top) * 100}%`;
      if (!size) bar.style.visibility = "hidden";
      box.append(bar);
    }
    const note = el("small", "", item.rejected ? "nothing left" : percent(item.residual));
    if (!item.rejected) note.append(el("span", "", item.drawn ? " of it · drawn" : " of it"));
    row.title = `p ${percent(item.p)}, q ${percent(item.q)}, max(0, p - q) ${percent(item.left)}`;
    row.append(quoted(item.label), box, note);
    return row;
  }));
  figure.querySelector(".pg-reading").textContent = "Dividing what is left by its sum gives the distribution of the recovered token. Accepted and recovered tokens together then follow p exactly.";
}

function draw() {
  const value = props.value;
  const name = root.querySelector(".pg-round-name"), sum = root.querySelector(".pg-round-sum");
  if (!value) {
    name.textContent = "Round";
    sum.textContent = "";
    why.textContent = "Select a token above to see how it was checked.";
    rowsBox.replaceChildren();
    figure.hidden = true;
    return;
  }
  name.textContent = `Round ${value.round + 1} of ${value.num_rounds}`;
  root.dataset.key = value.key;
  sum.textContent = `drafted ${value.drafted.length}, accepted ${value.num_accepted} · draft ${fixed(value.draft_ms, 1)} ms, target ${fixed(value.verify_ms, 1)} ms`;
  why.replaceChildren(...sentence(value));
  const head = el("div", "pg-check-row pg-check-head");
  for (const text of ["drafted", "p, target", "q, draft", "p / q", "u", value.coupled ? "check" : "accepted if u falls in", "outcome"]) head.append(el("span", "", text));
  const focused = document.activeElement?.closest?.(".pg-check-row[data-place]")?.dataset.place;
  const hadFocus = focused !== undefined && root.contains(document.activeElement);
  rowsBox.replaceChildren(head, ...value.drafted.map((token, place) => line(token, place, value)), ...(value.next ? [lastLine(value)] : []));
  if (hadFocus) rowsBox.querySelector(`[data-place="${focused}"]`)?.focus({ preventScroll: true });
  bars(value);
}

const pick = (event) => {
  const row = event.target.closest("[data-place]");
  if (row) trigger("pin", { round: props.value.round, place: Number(row.dataset.place) });
};
rowsBox.addEventListener("click", pick);
rowsBox.addEventListener("keydown", (event) => {
  const row = event.target.closest("[data-place]");
  if (!row) return;
  if (event.key === "Enter" || event.key === " ") pick(event);
  else if (event.key === "ArrowDown") row.nextElementSibling?.focus();
  else if (event.key === "ArrowUp") row.previousElementSibling?.focus();
  else return;
  event.preventDefault();
});
