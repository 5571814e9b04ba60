// The surprise curve: one plotly figure, updated in place; a click on a bar selects that token.
const { when, resolve } = window.Playground;
const root = element.querySelector(".pg-curve");
const plot = root.querySelector(".pg-plot");
const extra = root.querySelector(".pg-key-extra");
let bound = false;

function draw() {
  const value = props.value;
  if (!value || !window.Plotly) return;
  if (!plot.offsetParent) return; // hidden tab: drawn when it is shown
  const style = getComputedStyle(document.body);
  const figure = resolve(value.figure, style);
  if (value.selected !== null) {
    figure.layout.shapes = [{ type: "rect", xref: "x", yref: "paper", x0: value.selected - 0.5, x1: value.selected + 0.5,
      y0: 0, y1: 1, line: { width: 0 }, fillcolor: style.getPropertyValue("--pg-select").trim(), layer: "below" }];
  } else figure.layout.shapes = [];
  extra.textContent = value.overlay ? "┄ " + value.overlay : "";
  window.Plotly.react(plot, figure.data, figure.layout, { displayModeBar: false, responsive: true });
  if (!bound) {
    plot.on("plotly_click", (event) => trigger("pin", { index: event.points[0].x }));
    bound = true;
  }
}

when(() => window.Plotly, draw);
watch("value", draw);
new MutationObserver(draw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
new ResizeObserver(draw).observe(root);
