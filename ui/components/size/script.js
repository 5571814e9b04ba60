// The size formula with a model's shape; every size comes from the server.
const { el, fixed } = window.Playground;
const root = element.querySelector(".pg-size");
const turns = Object.fromEntries([...root.querySelectorAll("[data-turn]")].map((node) => [node.dataset.turn, node]));
const config = root.querySelector("textarea");
let asked = props.value?.asked ?? 0; // counts the reader's choices; an answer to an earlier one leaves the inputs alone
const UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
function bytes(n) {
  const [size, unit] = UNITS.find(([least]) => n >= least) || [1, "B"];
  const value = n / size;
  return `${fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
}
for (const [name, title] of SPEC.shapes) turns.shape.append(new Option(title, name));
for (const name of SPEC.precisions) turns.precision.append(new Option(name, name));

function bars(over, rows, here) {
  const box = root.querySelector(`[data-over=${over}]`), top = Math.max(...rows.map((row) => row[1]));
  box.replaceChildren(...rows.flatMap(([at, size, fits]) => {
    const bar = el("div"), fill = el("i");
    fill.style.width = `${(size / top) * 100}%`; fill.dataset.beyond = String(!fits);
    if (!fits) fill.title = "beyond the model's context";
    bar.append(fill);
    const mark = at === here ? "pg-here" : "";
    return [el("span", mark, at.toLocaleString("en")), bar, el("span", mark, bytes(size))];
  }));
}

function draw(value) {
  const pasted = [...turns.shape.options].find((option) => option.value === "pasted");
  if (value.pasted && !pasted) turns.shape.append(new Option(value.pasted, "pasted")); else if (pasted) pasted.textContent = value.pasted;
  if (value.asked === asked) for (const [name, node] of Object.entries(turns)) if (document.activeElement !== node || node.tagName === "SELECT") node.value = value[name];
  Playground.say(root, value);
  const n = value.numbers;
  root.querySelector(".pg-size-total").textContent = bytes(value.total);
  root.querySelector(".pg-size-formula").textContent = `2 · ${n.layers} · ${n.kv_heads} · ${n.head_size} · ${value.num_tokens.toLocaleString("en")} · ${value.batch_size.toLocaleString("en")} · ${value.bytes_per_element}`;
  root.querySelector(".pg-size-saved").textContent = `${bytes(value.per_token)} a token. ` + (value.grouping > 1
    ? `${n.heads} query heads share ${n.kv_heads} key heads: without grouping ${bytes(value.ungrouped)}, ${fixed(value.grouping, value.grouping % 1 ? 1 : 0)} times as much.` : "Every query head has its own keys: nothing is grouped.");
  root.querySelector(".pg-size-source").textContent = `${value.title}: ${value.source}; context ${n.context_length.toLocaleString("en")}. ${value.note}`;
  bars("context", value.over_context, value.num_tokens);
  bars("batch", value.over_batch, value.batch_size);
}
// All of it every time, so that the newest choice needs no earlier one.
function choice() {
  const numbers = Object.entries(turns).map(([name, node]) => [name, node.valueAsNumber]).filter(([, number]) => Number.isFinite(number));
  asked += 1;
  return { asked, shape: turns.shape.value, precision: turns.precision.value, ...Object.fromEntries(numbers) };
}
for (const node of Object.values(turns)) node.addEventListener(node.tagName === "SELECT" ? "change" : "input", () => trigger("turn", choice()));
root.querySelector("details button").addEventListener("click", () => trigger("turn", { asked: (asked += 1), config: config.value }));
