// The surprise curve: one plotly figure, updated in place; a click on a bar selects that token.
const root = element.querySelector(".pg-curve");
const plot = root.querySelector(".pg-plot");
let bound = false;

function draw(value) {
  const chosen = { type: "rect", xref: "x", yref: "paper", x0: value.selected - 0.5, x1: value.selected + 0.5,
    y0: 0, y1: 1, line: { width: 0 }, fillcolor: "var(--pg-select)", layer: "below" };
  const layout = { ...value.figure.layout, shapes: value.selected === null ? [] : [chosen] };
  root.querySelector(".pg-key-extra").textContent = value.overlay ? "┄ " + value.overlay : "";
  if (!Playground.plot(plot, { data: value.figure.data, layout }) || bound) return;
  plot.on("plotly_click", (event) => trigger("pin", { index: event.points[0].x }));
  bound = true;
}
Playground.redraw(root, props, draw);
