// Calculators: the inputs belong to the reader, the server works them out with the stages that runs use.
const { el } = window.Playground;
const root = element.querySelector(".pg-worked");
const inputs = {}, cards = {};
let timer = null;
function turned(card, name, value) {
  inputs[card] = { ...inputs[card], [name]: value };
  clearTimeout(timer);
  timer = setTimeout(() => trigger("turn", { inputs }), 60);
}
for (const card of SPEC.cards) {
  const node = el("article", "pg-workcard"), form = el("div", "pg-workcard-inputs"), bars = el("div", "pg-workcard-bars"), facts = el("div", "pg-facts");
  node.dataset.card = card.name;
  inputs[card.name] = {};
  for (const item of card.inputs) {
    const label = el("label"), field = el("input"), shown = el("output");
    inputs[card.name][item.name] = item.start;
    field.type = item.kind;
    if (item.kind === "range") { field.min = item.min; field.max = item.max; field.step = item.step; }
    field.value = item.start;
    field.dataset.input = item.name;
    shown.textContent = item.kind === "range" ? item.start : "";
    field.addEventListener("input", () => {
      if (item.kind === "range") shown.textContent = field.value;
      turned(card.name, item.name, item.kind === "range" ? field.valueAsNumber : field.value);
    });
    label.append(el("span", "", item.title), field, shown);
    form.append(label);
  }
  node.append(el("h3", "", card.title), el("p", "pg-workcard-formula", card.formula), form, bars, facts);
  root.append(node);
  cards[card.name] = { bars, facts };
}
function draw() {
  for (const [name, result] of Object.entries(props.value?.results || {})) {
    const { bars, facts } = cards[name];
    bars.replaceChildren(...result.bars.map(([label, size, text, kept]) => {
      const row = el("div", "pg-workbar" + (kept ? "" : " pg-workbar-cut")), bar = el("i");
      bar.style.width = `${Math.min(1, Math.max(0, size)) * 100}%`;
      row.append(el("span", "", label), bar, el("span", "", kept ? text : `${text} cut`));
      return row;
    }));
    facts.replaceChildren(...(result.error ? [el("span", "pg-stale", result.error)] : result.facts.map(([title, text]) => {
      const fact = el("span", "pg-fact");
      fact.dataset.fact = title;
      fact.append(title + " ", el("b", "", text));
      return fact;
    })));
  }
}
