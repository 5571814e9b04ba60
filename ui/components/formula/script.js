// The formula as plot and table, from values computed on the server; the measured run is a point in it.
const { el, svg, fixed, percent } = window.Playground;
const root = element.querySelector(".pg-formula");
const { grid, acceptances } = SPEC;
const plot = root.querySelector("svg"), body = root.querySelector("tbody"), result = root.querySelector(".pg-formula-result");
const turns = { a: root.querySelector("[data-turn=a]"), k: root.querySelector("[data-turn=k]") };
const ROWS = [0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95], COLUMNS = [1, 2, 3, 4, 6, 8, 16];
const BOX = { left: 24, right: 456, top: 8, bottom: 184, high: 10 };
let number = null, a = 0.7, k = 4, own = false;

const at = (accept, drafted) => grid[drafted - 1][Math.round(accept * 100)];
const x = (accept) => BOX.left + accept * (BOX.right - BOX.left);
const y = (tokens) => BOX.bottom - (Math.min(tokens, BOX.high) / BOX.high) * (BOX.bottom - BOX.top);

const words = (attributes, text) => svg("text", attributes, "", text);

function drawPlot(value) {
  const nodes = [];
  for (const tokens of [0, 2, 4, 6, 8, 10]) nodes.push(svg("line", { class: "pg-grid", x1: BOX.left, x2: BOX.right, y1: y(tokens), y2: y(tokens) }), words({ x: BOX.left - 5, y: y(tokens) + 3, "text-anchor": "end" }, tokens));
  for (const accept of [0, 0.25, 0.5, 0.75, 1]) nodes.push(words({ x: x(accept), y: BOX.bottom + 12, "text-anchor": "middle" }, accept));
  nodes.push(words({ x: (BOX.left + BOX.right) / 2, y: BOX.bottom + 22, "text-anchor": "middle" }, "acceptance a"));
  for (const drafted of [...new Set([1, 2, 4, 8, 16, k])].sort((p, q) => (p === k) - (q === k))) {
    const visible = acceptances.filter((accept) => at(accept, drafted) <= BOX.high);
    const path = visible.map((accept, i) => `${i ? "L" : "M"}${x(accept).toFixed(1)} ${y(at(accept, drafted)).toFixed(1)}`).join("");
    const last = visible[visible.length - 1];
    nodes.push(svg("path", { d: path, class: drafted === k ? "pg-now" : "" }));
    if (drafted !== 16 || drafted === k) nodes.push(words({ x: x(last) - 3, y: y(at(last, drafted)) - 3, "text-anchor": "end" }, "k = " + drafted));
  }
  nodes.push(svg("circle", { class: "pg-point", cx: x(a), cy: y(at(a, k)), r: 4 }));
  if (value && value.acceptance !== null) {
    const left = value.acceptance > 0.6;
    nodes.push(svg("circle", { class: "pg-measured", cx: x(value.acceptance), cy: y(value.tokens_per_call), r: 6 }),
      words({ class: "pg-measured-label", x: x(value.acceptance) + (left ? -9 : 9), y: y(value.tokens_per_call) + 14, "text-anchor": left ? "end" : "start" }, "this run " + fixed(value.tokens_per_call, 2)));
  }
  plot.replaceChildren(...nodes);
}

function drawTable() {
  const head = el("tr", "", el("th", "", "a \\ k"), ...COLUMNS.map((drafted) => el("th", "", String(drafted))));
  root.querySelector("thead").replaceChildren(head);
  body.replaceChildren(...ROWS.map((accept) => {
    const row = el("tr", "", el("th", "", String(accept)));
    for (const drafted of COLUMNS) {
      const cell = el("td"), button = el("button", "", at(accept, drafted).toFixed(2));
      button.dataset.a = accept; button.dataset.k = drafted;
      cell.append(button);
      row.append(cell);
    }
    return row;
  }));
}

function draw() {
  const value = props.value;
  if (value && value.number !== number) { number = value.number; own = false; }
  if (value && !own && value.k) { k = Math.min(value.k, grid.length); if (value.acceptance !== null) a = Math.round(value.acceptance * 100) / 100; }
  turns.a.value = a; turns.k.value = k;
  for (const slider of Object.values(turns)) {
    Playground.fill(slider);
    slider.nextElementSibling.textContent = slider.value;
  }
  result.textContent = `${at(a, k).toFixed(2)} tokens per call`;
  for (const button of body.querySelectorAll("button")) button.parentElement.classList.toggle("pg-at", Number(button.dataset.a) === a && Number(button.dataset.k) === k);
  drawPlot(value);
  root.querySelector(".pg-reading").textContent = value && value.acceptance !== null
    ? `This run: ${percent(value.acceptance)} accepted, ${fixed(value.tokens_per_call, 2)} tokens per call; the formula says ${at(Math.round(value.acceptance * 100) / 100, Math.min(value.k, grid.length)).toFixed(2)} for k = ${value.k}. It takes every draft to be accepted with the same chance, independently, and k drafts in every round; the run differs where that does not hold.`
    : "It takes every draft to be accepted with the same chance, independently of the others.";
}
for (const [name, slider] of Object.entries(turns)) slider.addEventListener("input", () => { own = true; if (name === "a") a = Number(slider.value); else k = Number(slider.value); draw(); });
body.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) { own = true; a = Number(button.dataset.a); k = Number(button.dataset.k); draw(); }
});
drawTable();
