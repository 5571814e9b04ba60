// Time per token with and without a cache, and prefill against decode.
const { el, percent, fixed } = window.Playground;
const root = element.querySelector(".pg-recompute");
const plot = root.querySelector(".pg-recompute-plot"), table = root.querySelector("table"), body = root.querySelector("tbody");
const button = root.querySelector("button"), status = root.querySelector("[role=status]");
const rate = (value) => (value === null ? "–" : fixed(value, 0) + " tok/s");

function draw(value) {
  Playground.say(root, value);
  button.textContent = value.running ? "Stop" : "Measure";
  button.dataset.do = value.running ? "halt" : "measure";
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
  if (value.figure.data.length) Playground.plot(plot, value.figure);
}
button.addEventListener("click", () => trigger(button.dataset.do, {}));
Playground.redraw(root, props, draw);
