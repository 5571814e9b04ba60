// The measured table beside the published one; cells are patched as texts come in.
const { el } = window.Playground;
const root = element.querySelector(".pg-table1");
const part = (query) => root.querySelector(query);
part("[data-act=csv]").addEventListener("click", () => trigger("csv", {}));
function table(name, columns, rows) {
  const head = el("tr"), holder = part(`[data-table=${name}]`);
  head.append(...columns.map((text) => {
    const cell = el("th", "", text);
    if (text === "loops") cell.title = "share of the texts that end in a phrase repeated three times or more";
    return cell;
  }));
  holder.querySelector("thead").replaceChildren(head);
  holder.querySelector("tbody").replaceChildren(...rows.map((row) => {
    const line = el("tr");
    line.dataset.method = row.name;
    line.append(el("th", "", row.cells[0]), ...row.cells.slice(1).map((text, i) => { const cell = el("td", "", text); cell.dataset.column = columns[i + 1]; return cell; }));
    return line;
  }));
}
function draw(value) {
  Playground.say(root, value);
  root.dataset.done = value.done;
  part("progress").hidden = !value.running;
  part("progress").value = value.total ? value.done / value.total : 0;
  part(".pg-phase").textContent = value.running ? `${value.phase}: ${value.done} of ${value.total} texts` : value.done ? `${value.done} of ${value.total} texts` : "Press Measure: every prompt is continued by every method. On two cores this takes some minutes.";
  part("[data-act=csv]").hidden = value.done === 0;
  part(".pg-table1-source").textContent = value.source;
  part(".pg-table1-verdict").textContent = value.verdict;
  table("measured", value.columns, value.measured);
  table("published", value.columns, value.published);
}
