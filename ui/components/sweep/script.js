// A sweep as it comes in: progress, small plots patched in place, and a table whose seeds open their run.
const { el } = window.Playground;
const root = element.querySelector(".pg-sweep");
const part = (query) => root.querySelector(query);
const plots = part(".pg-sweep-plots"), select = part("select"), file = part("input[type=file]");
let boxes = [], drawnTable = "", number = null;

part("[data-act=csv]").addEventListener("click", () => trigger("csv", {}));
part("[data-act=open]").addEventListener("click", () => file.click());
file.addEventListener("change", async () => {
  if (file.files[0]) trigger("open_table", { text: await file.files[0].text() });
  file.value = "";
});
select.addEventListener("change", () => trigger("measure", { measure: select.value }));

function box() {
  const node = el("figure", "pg-sweep-plot"), caption = el("figcaption", "pg-caption"), plot = el("div");
  caption.append(el("b"));
  node.append(caption, plot);
  plots.append(node);
  return { node, caption: caption.firstChild, plot, wired: false };
}
function drawPlot(shape, item) {
  shape.caption.textContent = item.title;
  shape.node.classList.toggle("pg-wide", item.wide);
  if (!Playground.plot(shape.plot, item.figure) || shape.wired) return;
  shape.wired = true;
  shape.plot.on("plotly_click", (event) => {
    const data = event.points[0]?.customdata, run = Array.isArray(data) ? data[0] : data;
    if (Number.isInteger(run) && props.value.can_open) trigger("open_run", { run });
  });
}

function drawTable(value) {
  const now = JSON.stringify([value.can_open, value.cells.map((cell) => [cell.at, cell.values, cell.runs.length])]);
  if (now === drawnTable) return;
  drawnTable = now;
  const head = el("tr", "", ...value.axes.map((name) => el("th", "", name)), el("th", "", "runs, by seed"), ...value.columns.map((name) => el("th", "", name)));
  part("thead").replaceChildren(head);
  part("tbody").replaceChildren(...value.cells.map((cell) => {
    const line = el("tr"), seeds = el("td", "pg-sweep-seeds");
    for (const [run, seed, text] of cell.runs) {
      const button = el("button", "pg-tool", String(seed));
      button.title = text;
      button.disabled = !value.can_open;
      button.dataset.run = run;
      button.addEventListener("click", () => trigger("open_run", { run }));
      seeds.append(button);
    }
    line.append(...cell.at.map((text) => el("th", "", text)), seeds, ...cell.values.map((text) => el("td", "", text)));
    return line;
  }));
}

function progress(value) {
  const count = `${value.done} of ${value.total} runs`;
  if (value.running) return `${value.phase}: ${count}`;
  if (value.stopped) return `stopped: ${count}`;
  return value.done ? count : "";
}

function draw(value) {
  if (value.number !== number) { number = value.number; plots.replaceChildren(); boxes = []; }
  Playground.say(root, value);
  root.dataset.done = value.done;
  const bar = part("progress");
  bar.hidden = !value.running;
  bar.value = value.total ? value.done / value.total : 0;
  part(".pg-phase").textContent = progress(value);
  part(".pg-sweep-empty").hidden = value.cells.length > 0 || value.running || value.stopped;
  part(".pg-compare-scroll").hidden = value.cells.length === 0;
  part("[data-act=csv]").hidden = value.cells.length === 0;
  part(".pg-sweep-measure").hidden = !value.two || value.cells.length === 0;
  if (!select.options.length) for (const [name, title] of value.measures) select.append(new Option(title, name));
  select.value = value.measure;
  drawTable(value);
  value.figures.forEach((item, i) => drawPlot(boxes[i] ||= box(), item));
  boxes.splice(value.figures.length).forEach((shape) => shape.node.remove());
}
Playground.redraw(root, props, draw);
