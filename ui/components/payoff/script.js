// What speculation gave: speed, tokens per target call and acceptance, the time per token, and a column per round.
const { el, percent, fixed } = window.Playground;
const root = element.querySelector(".pg-payoff");
const times = root.querySelector(".pg-times"), columns = root.querySelector(".pg-columns");
const button = root.querySelector("[data-do=measure]"), verdict = root.querySelector(".pg-payoff-verdict");
let drawn = "";

function tile(name, figure, note, text, state) {
  const box = root.querySelector(`[data-tile=${name}]`);
  box.querySelector("b").textContent = figure;
  box.querySelector("small").textContent = note;
  if (text) box.querySelector("span").textContent = text;
  box.dataset.state = state || "";
}

function drawTiles(value) {
  const speed = value.speed;
  if (!speed) tile("speed", "–", value.running ? "plain decoding runs after this, alone" : "", "of plain decoding's speed", "");
  else {
    const ratio = speed.ratio, faster = ratio >= 1;
    tile("speed", "× " + fixed(ratio, 2), `${fixed(speed.speculative, 1)} ms a token, plain ${fixed(speed.plain, 1)} ms`,
      faster ? "as fast as plain decoding" : "as fast as plain: slower, not faster", faster ? "faster" : "slower");
  }
  const calls = value.tokens_per_call;
  const lengths = value.mean_drafted !== null && value.mean_drafted < value.k - 0.01 ? `drafts as long as here, mean ${fixed(value.mean_drafted, 1)}` : `k = ${value.k}`;
  tile("tokens", calls === null ? "–" : fixed(calls, 2), value.predicted === null ? "" : `formula ${fixed(value.predicted, 2)} (${lengths})`);
  const a = value.acceptance;
  tile("acceptance", a === null ? "–" : percent(a), value.num_rounds ? `${value.num_accepted} of ${value.num_checked} checked, ${value.num_drafted} drafted, ${value.num_rounds} calls` : "");
}

function bar(parts, top) {
  const box = el("div", "pg-time");
  for (const [name, size] of parts) {
    const part = el("i", "pg-time-" + name);
    part.style.width = `${(size / top) * 100}%`;
    part.title = `${name} ${fixed(size, 2)} ms`;
    box.append(part);
  }
  return box;
}

function drawTimes(value) {
  const speed = value.speed;
  root.querySelector(".pg-payoff-pairs").textContent = !speed ? "" :
    speed.num_pairs === 1 ? "one pair of runs, one after the other" : `median of ${speed.num_pairs} pairs, taken in turns`;
  root.querySelector(".pg-payoff-pairs").title = speed ? "ratios: " + speed.ratios.map((ratio) => fixed(ratio, 2)).join(", ") : "";
  if (!speed) { times.replaceChildren(el("span", "pg-track-none", value.running ? "…" : "")); return; }
  const top = Math.max(speed.plain, speed.speculative);
  const key = el("span", "pg-timekey");
  for (const name of ["draft", "verify", "overhead"]) {
    const item = el("span", "", el("i", "pg-timekey-" + name), `${name} ${fixed(speed[name], 1)} ms`);
    key.append(item);
  }
  times.replaceChildren(el("span", "", "plain"), bar([["plain", speed.plain]], top), el("span", "", fixed(speed.plain, 1) + " ms"),
    el("span", "", "speculative"), bar(["draft", "verify", "overhead"].map((name) => [name, speed[name]]), top),
    el("span", "", fixed(speed.speculative, 1) + " ms"), key);
}

function drawColumns(value) {
  const key = JSON.stringify([value.number, value.rounds]);
  if (key !== drawn) {
    drawn = key;
    const focused = document.activeElement?.closest?.(".pg-column")?.dataset.round;
    columns.replaceChildren(...value.rounds.map(([accepted, next, drafted], round) => {
      const column = el("button", "pg-column");
      column.tabIndex = round === 0 ? 0 : -1;
      column.dataset.round = round;
      const rejected = next === "recovered" ? 1 : 0;
      for (let i = 0; i < accepted; i += 1) column.append(el("i", "pg-cell-accepted"));
      if (next !== "none") column.append(el("i", "pg-cell-extra"));
      if (rejected) column.append(el("i", "pg-cell-rejected"));
      for (let i = accepted + rejected; i < drafted; i += 1) column.append(el("i", "pg-cell-unused"));
      column.title = `round ${round + 1}: drafted ${drafted}, accepted ${accepted}`;
      column.setAttribute("aria-label", column.title);
      return column;
    }));
    if (focused !== undefined) columns.querySelector(`[data-round="${focused}"]`)?.focus({ preventScroll: true });
  }
  for (const column of columns.children) column.setAttribute("aria-current", String(value.selected?.[0] === Number(column.dataset.round)));
}

function draw(value) {
  root.dataset.number = value.number;
  drawTiles(value);
  drawTimes(value);
  drawColumns(value);
  button.disabled = value.running || !value.num_rounds;
  verdict.textContent = value.verdict.text;
  verdict.dataset.kind = value.verdict.kind;
}

button.addEventListener("click", () => trigger("measure", {}));
columns.addEventListener("click", (event) => {
  const column = event.target.closest(".pg-column");
  if (column) trigger("pin", { round: Number(column.dataset.round), place: 0 });
});
columns.addEventListener("keydown", (event) => {
  const column = event.target.closest(".pg-column");
  const next = column && { ArrowLeft: column.previousElementSibling, ArrowRight: column.nextElementSibling }[event.key];
  if (!next) return;
  column.tabIndex = -1; next.tabIndex = 0; next.focus();
  event.preventDefault();
});
