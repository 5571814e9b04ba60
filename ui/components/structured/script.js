// The constrained text beside the free one, its feasible mass, and the verdicts. Tokens are patched in place.
const { el, visible, spoken, percent, quoted } = window.Playground;
const root = element.querySelector(".pg-structured");
const part = (query) => root.querySelector(query);
const sides = { with: part("[data-side=with]"), without: part("[data-side=without]") };
const list = sides.with.querySelector(".pg-structured-text");
const bars = part(".pg-mass-bars");
const WORDS = { valid: "✓ valid", incomplete: "… incomplete", invalid: "✕ not valid" };
const FIGHT = 0.05;
let number = null;
let rows = [];
let nodes = [];
let current = 0;

function kinds(row) {
  const names = [];
  if (row.free) names.push("free");
  else if (row.mass !== undefined && row.mass < FIGHT) names.push("fight");
  if (row.forced) names.push("forced");
  if (row.jumped) names.push("jump");
  return names;
}

function describe(row) {
  const said = [spoken(row.label)];
  if (row.free) said.push("free text");
  if (row.forced) said.push("forced");
  if (row.jumped) said.push("appended together");
  if (row.allowed !== undefined) said.push(`${row.allowed} allowed, feasible mass ${percent(row.mass)}`);
  if (row.wanted !== null && row.wanted !== undefined) said.push(`the model wanted ${spoken(row.wanted)}`);
  return said.join(", ");
}

function token(row, index) {
  const node = el("span", "pg-s-token " + kinds(row).map((name) => "pg-s-" + name).join(" "));
  node.setAttribute("role", "option");
  node.setAttribute("aria-label", describe(row));
  node.dataset.index = index;
  node.dataset.kinds = kinds(row).join(" ");
  node.tabIndex = index === current ? 0 : -1;
  node.append(visible(row.label, true));
  return node;
}

function bar(row, index) {
  const node = el("span", "pg-mass-bar" + (row.free ? " pg-mass-free" : row.mass < FIGHT ? " pg-mass-fight" : ""));
  node.style.setProperty("--mass", row.mass === undefined ? 1 : Math.max(row.mass, 0.02));
  node.title = `${row.label}: ${percent(row.mass ?? 1)} of the model's probability is allowed`;
  node.dataset.index = index;
  return node;
}

function same(a, b) {
  return a.label === b.label && a.mass === b.mass && a.jumped === b.jumped && a.p === b.p;
}

function badge(side, verdict) {
  const node = side.querySelector(".pg-s-verdict");
  node.textContent = verdict ? WORDS[verdict.status] : "";
  node.dataset.status = verdict ? verdict.status : "";
  side.querySelector(".pg-s-reason").textContent = verdict ? verdict.reason : "";
}

function sentence(row, index, vocab) {
  const line = document.createDocumentFragment();
  line.append(el("b", "", `Token ${index}: `), quoted(row.label), " ");
  if (row.free) { line.append("is free text, the grammar has not begun."); return line; }
  line.append(row.allowed === 1 ? "is the only token allowed" : `is one of ${row.allowed.toLocaleString("en")} allowed`,
    ` of ${vocab.toLocaleString("en")}; feasible mass `, el("b", "", percent(row.mass)), ". ");
  if (row.wanted !== null) line.append("The model's favourite ", quoted(row.wanted), ` (${percent(row.wanted_p)}) was masked.`);
  else line.append("The model's own favourite was allowed.");
  return line;
}

function differs() {
  const mark = el("span", "pg-s-differs", "⟂");
  mark.title = "From here on the two texts differ";
  return mark;
}

function drawBeside(value) {
  const side = sides.without, beside = value.beside;
  side.hidden = !beside;
  part(".pg-structured-pair").classList.toggle("pg-single", !beside);
  if (!beside) return;
  const text = side.querySelector(".pg-structured-text");
  text.replaceChildren();
  beside.tokens.forEach((label, place) => {
    if (place === beside.difference) text.append(differs());
    const node = el("span", beside.difference !== null && place >= beside.difference ? "pg-s-other" : "");
    node.append(visible(label, true));
    if (label) text.append(node);
    else if (place === beside.difference && place === beside.end) text.append(el("span", "pg-s-ended", place ? "ended here" : "ended at once, with no text"));
  });
  badge(side, beside.verdict);
  if (beside.verdict && beside.ended) side.querySelector(".pg-s-reason").append(` (ended: ${beside.ended})`);
}

function select(chosen) {
  nodes.forEach((node, index) => {
    node.classList.toggle("pg-selected", index === chosen);
    node.setAttribute("aria-selected", String(index === chosen));
    bars.children[index].classList.toggle("pg-selected", index === chosen);
  });
}

function draw(value) {
  if (value.number !== number) {
    number = value.number; rows = []; nodes = []; current = 0;
    list.replaceChildren(); bars.replaceChildren();
  }
  let kept = 0;
  while (kept < rows.length && kept < value.rows.length && same(rows[kept], value.rows[kept])) kept += 1;
  while (nodes.length > kept) { nodes.pop().remove(); bars.lastChild.remove(); }
  for (let i = kept; i < value.rows.length; i += 1) {
    nodes.push(token(value.rows[i], i));
    list.append(nodes[i]);
    bars.append(bar(value.rows[i], i));
  }
  rows = value.rows;
  select(value.selected);
  list.classList.toggle("pg-empty", !nodes.length && !value.verdict);
  list.classList.toggle("pg-no-text", !nodes.length && Boolean(value.verdict));
  Playground.say(root, value);
  badge(sides.with, value.verdict);
  const parsed = part(".pg-structured-parsed");
  parsed.hidden = !value.parsed;
  parsed.textContent = value.parsed;
  drawBeside(value);
  part(".pg-structured-mass").hidden = !rows.length;
  const bound = rows.filter((row) => row.mass !== undefined && !row.free);
  const mean = bound.reduce((sum, row) => sum + row.mass, 0) / (bound.length || 1);
  part(".pg-mass-about").textContent = bound.length
    ? `On average ${percent(mean)}. Full bars: the grammar only confirms what the model would write. Dips: it decides against the model.`
    : "";
  part(".pg-structured-fights").hidden = !value.fights.length;
  part(".pg-structured-fights ul").replaceChildren(...value.fights.map((index) => {
    const item = el("li"), button = el("button", "pg-fight");
    button.dataset.index = index;
    button.append(sentence(rows[index], index, value.vocab));
    item.append(button);
    return item;
  }), ...(value.more_fights ? [el("li", "", `and ${value.more_fights} more, each a short bar above`)] : []));
  const chosen = rows[value.selected];
  part(".pg-structured-step").replaceChildren(...(chosen && chosen.allowed !== undefined ? [sentence(chosen, value.selected, value.vocab)] : []));
}

function pin(index, focus) {
  if (!nodes.length) return;
  const next = Math.max(0, Math.min(nodes.length - 1, index));
  if (nodes[current]) nodes[current].tabIndex = -1;
  current = next;
  nodes[current].tabIndex = 0;
  if (focus) nodes[current].focus();
  select(current);
  trigger("pin", { index: current });
}
root.addEventListener("click", (event) => {
  const node = event.target.closest("[data-index]");
  if (node) pin(Number(node.dataset.index), node.classList.contains("pg-s-token"));
});
list.addEventListener("keydown", (event) => {
  const moves = { ArrowRight: current + 1, ArrowDown: current + 1, ArrowLeft: current - 1, ArrowUp: current - 1, Home: 0, End: nodes.length - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  pin(moves[event.key], true);
});
