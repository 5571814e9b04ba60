// n samples side by side; cards and their tokens are patched in place. The server selects by the rule clicked.
const { el, visible, percent, fixed } = window.Playground;
const root = element.querySelector(".pg-samples");
const part = (query) => root.querySelector(query);
const list = part(".pg-samples-cards"), rules = part(".pg-segment");
const RULES = {
  sum: ["sum", "highest sum of log p: short texts win easily"],
  mean: ["mean", "highest log p per token"],
  vote: ["vote", "the answer most samples agree on (self-consistency)"],
  mbr: ["MBR", "most similar to all others (minimum Bayes risk)"],
};
let number = null;
let cards = [];

const titles = Object.fromEntries(Object.entries(RULES).map(([rule, [title]]) => [rule, title]));
const mark = Playground.radios(rules, "rule", (rule) => { mark(rule); trigger("rule", { rule }); }, titles);
for (const button of rules.children) button.title = RULES[button.dataset.rule][1];
part("[data-option=heat]").addEventListener("change", (event) => list.classList.toggle("pg-no-heat", !event.target.checked));

function card() {
  const node = el("li", "pg-sample");
  node.tabIndex = 0;
  const head = el("div", "pg-sample-head", el("span", "pg-sample-name"), el("span", "pg-sample-score"));
  const text = el("div", "pg-sample-text"), foot = el("div", "pg-sample-foot");
  node.append(head, text, foot);
  list.append(node);
  return { node, name: head.firstChild, score: head.lastChild, text, foot, count: 0, drawn: "" };
}

function drawCard(shape, sample, value) {
  const tokens = sample.tokens;
  if (shape.count > tokens.length) { shape.text.replaceChildren(); shape.count = 0; }
  for (const [label, p] of tokens.slice(shape.count)) {
    const piece = el("span", "", visible(label, true, true));
    piece.style.setProperty("--heat", (1 - Math.sqrt(p)).toFixed(3));
    piece.title = percent(p);
    shape.text.append(piece);
  }
  shape.count = tokens.length;
  const selected = value.selected === sample.number;
  shape.node.className = "pg-sample" + (selected ? " pg-selected" : "");
  shape.node.setAttribute("aria-current", String(selected));
  shape.name.textContent = `${sample.number + 1}${selected ? " ★ " + (value.tied > 1 ? `first of ${value.tied} ${value.rule === "vote" ? "answers" : "texts"} that tie` : "selected") : ""}`;
  shape.score.textContent = sample.score === null ? "" : `${RULES[value.rule][0]} ${fixed(sample.score, value.rule === "vote" ? 2 : value.rule === "mbr" ? 1 : 3)}`;
  const facts = [["sum", fixed(sample.sum, 2)], ["mean", fixed(sample.mean, 3)], ["length", String(tokens.length)], ["ended", sample.ended || "…"]];
  if (sample.answer !== null) facts.push(["answer", sample.answer]);
  const drawn = JSON.stringify(facts);
  if (drawn === shape.drawn) return;
  shape.drawn = drawn;
  shape.foot.replaceChildren(...Playground.facts(facts));
}

function plot(box, figure) {
  box.parentNode.hidden = !figure;
  if (figure) Playground.plot(box, figure);
}

function draw(value) {
  if (value.number !== number) {
    number = value.number;
    list.replaceChildren();
    cards = [];
  }
  Playground.say(root, value);
  mark(value.rule);
  part(".pg-samples-about").textContent = value.missing || RULES[value.rule][1];
  part(".pg-samples-about").classList.toggle("pg-stale", Boolean(value.missing));
  part(".pg-samples-empty").hidden = value.samples.length > 0;
  value.samples.forEach((sample, i) => drawCard(cards[i] ||= card(), sample, value));
  plot(part(".pg-votes-plot"), value.votes);
  plot(part(".pg-matrix-plot"), value.matrix);
}
Playground.redraw(root, props, draw);
