// The texts of a search, ranked anew from their sums and lengths whenever the length penalty is moved.
const { el, visible, fixed } = window.Playground;
const root = element.querySelector(".pg-hyps");
const slider = root.querySelector(".pg-slider"), output = root.querySelector("output"), body = root.querySelector("tbody");
const SHORT = 14;
let number = null, alpha = 1, own = true, all = false;   // own: ranked as the run did it

const score = (entry, power) => entry.sum / entry.length ** power;

function ranked(value) {
  const entries = value.entries.map((entry) => ({ ...entry, now: own ? entry.score : score(entry, alpha) }));
  const order = (list, by) => list.slice().sort((a, b) => by(b) - by(a) || a.node - b.node);
  const before = new Map(order(value.entries, (entry) => entry.score).map((entry, i) => [entry.node, i + 1]));
  return order(entries, (entry) => entry.now).map((entry, i) => ({ ...entry, rank: i + 1, before: before.get(entry.node) }));
}

function row(entry, value) {
  const line = el("tr", entry.rank === 1 ? "pg-first" : "");
  line.tabIndex = 0;
  line.dataset.node = entry.node;
  const move = el("td", "pg-num", String(entry.rank));
  const text = el("td", "pg-hyps-text");
  entry.labels.forEach((label, i) => {
    const end = i === entry.labels.length - 1 && entry.special;
    const piece = el("span", end ? "pg-special" : "");
    piece.append(end ? label : visible(label, false, true));
    text.append(piece);
  });
  for (const [holds, tag, kind] of [[entry.returned.length, "returned " + entry.returned.map((r) => "#" + (r + 1)).join(", "), "pg-tag-now"],
    [entry.greedy, entry.status === "greedy" || entry.status === "pruned" ? "greedy, not in the search" : "greedy", "pg-tag-warn"],
    [entry.status === "kept", value.running ? "running" : "had not ended", ""]]) {
    if (holds) text.append(el("span", "pg-tag " + kind, tag));
  }
  const was = entry.before === entry.rank ? "" : entry.before > entry.rank ? `▲ from ${entry.before}` : `▼ from ${entry.before}`;
  line.append(move, text, el("td", "pg-num", fixed(entry.sum, 3)), el("td", "pg-num", String(entry.length)), el("td", "pg-num pg-total", fixed(entry.now, 4)), el("td", "pg-num pg-moved", was));
  return line;
}

function draw(value) {
  if (value.number !== number) { number = value.number; alpha = value.length_penalty; own = true; all = false; }
  if (own) alpha = value.length_penalty;
  slider.value = alpha;
  Playground.fill(slider);
  output.textContent = own && value.stochastic ? "as drawn" : alpha.toFixed(2);
  root.dataset.number = value.number;
  root.hidden = value.entries.length === 0;
  const list = ranked(value);
  const focused = document.activeElement?.closest?.(".pg-hyps tr")?.dataset.node;
  body.replaceChildren(...(all ? list : list.slice(0, SHORT)).map((entry) => row(entry, value)));
  if (!all && list.length > SHORT) {
    const more = el("tr");
    const cell = el("td");
    cell.colSpan = 6;
    const button = el("button", "pg-link", `${list.length - SHORT} more`);
    button.addEventListener("click", () => { all = true; draw(props.value); });
    cell.append(button);
    more.append(cell);
    body.append(more);
  }
  if (focused) body.querySelector(`tr[data-node="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  const changed = !own && Math.abs(alpha - value.length_penalty) > 1e-9;
  root.querySelector(".pg-fields-note").textContent =
    (own && value.stochastic ? "In the order drawn: sum of log p plus the luck of each text. " : "") +
    (changed ? `The search ran with ${value.length_penalty}; with ${alpha.toFixed(2)} it could have ended elsewhere. Ranked anew from the same texts. ` : "") +
    "Every text that ended during the search, and the beams that had not. Length counts generated tokens, the end of text included, never the prompt.";
}

slider.addEventListener("input", () => { own = false; alpha = Number(slider.value); draw(props.value); });
root.querySelector("[data-do=reset]").addEventListener("click", () => { own = true; draw(props.value); });
const pick = (event) => {
  const line = event.target.closest("tr[data-node]");
  if (line) document.dispatchEvent(new CustomEvent("pg-pick-beam", { detail: Number(line.dataset.node) }));
};
body.addEventListener("click", pick);
body.addEventListener("keydown", (event) => {
  const line = event.target.closest("tr[data-node]");
  if (!line || event.target !== line) return;
  if (event.key === "Enter" || event.key === " ") pick(event);
  else if (event.key === "ArrowDown") line.nextElementSibling?.focus();
  else if (event.key === "ArrowUp") line.previousElementSibling?.focus();
  else return;
  event.preventDefault();
});
