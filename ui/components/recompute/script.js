// Time per token with and without a cache, and prefill against decode.
const { el, percent, fixed, when, resolve } = window.Playground;
const root = element.querySelector(".pg-recompute");
const plot = root.querySelector(".pg-recompute-plot"), table = root.querySelector("table"), body = root.querySelector("tbody");
const button = root.querySelector("button"), status = root.querySelector("[role=status]"), notice = root.querySelector(".pg-notice");
const rate = (value) => (value === null ? "–" : fixed(value, 0) + " tok/s");

function drawPlot() {
  const value = props.value;
  if (!value || !window.Plotly || !plot.offsetParent || !value.figure.data.length) return;
  const figure = resolve(value.figure, getComputedStyle(document.body));
  window.Plotly.react(plot, figure.data, figure.layout, { displayModeBar: false, responsive: true });
}

function draw() {
  const value = props.value;
  if (!value) return;
  root.classList.toggle("pg-running", value.running);
  button.textContent = value.running ? "Stop" : "Measure";
  button.dataset.do = value.running ? "halt" : "measure";
  notice.hidden = !value.notice;
  notice.textContent = value.notice;
  table.hidden = !value.rows.length;
  body.replaceChildren(...value.rows.map((row) => {
    const line = el("tr"), name = el("td");
    name.append(el("i"), row.name);
    line.append(name, el("td", "", rate(row.prefill_rate)), el("td", "", rate(row.decode_rate)),
      el("td", "", row.per_token === null ? "–" : fixed(row.per_token, 0) + " ms"), el("td", "", row.prefill_share === null ? "–" : percent(row.prefill_share)));
    return line;
  }));
  const [first, second] = value.rows;
  const factor = first?.per_token && second?.per_token ? `${fixed(second.per_token / first.per_token, 1)} times the time per token without a cache. ` : "";
  status.textContent = value.running ? (value.rows.length < 2 ? "with a cache …" : "now everything anew …")
    : value.same_text === null ? "" : factor + (value.same_text ? "Both gave the same text." : "The texts differ: the cache must not do that.");
  drawPlot();
}
button.addEventListener("click", () => trigger(button.dataset.do, {}));
when(() => window.Plotly, drawPlot);
watch("value", draw);
new MutationObserver(drawPlot).observe(document.body, { attributes: true, attributeFilter: ["class"] });
new ResizeObserver(drawPlot).observe(root);
draw();
