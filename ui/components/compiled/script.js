// What compiling the grammar said. Asks for it once it is first seen.
const { el } = window.Playground;
const root = element.querySelector(".pg-compiled");
const part = (name) => root.querySelector(".pg-compiled-" + name);
const MARKS = { empty: "", waiting: "…", fine: "✓", error: "✕" };
let asked = false;

function draw(value) {
  root.dataset.state = value.state;
  part("mark").textContent = MARKS[value.state];
  part("message").textContent = value.state === "empty" ? "Write a grammar above, or choose an example." : value.message;
  part("place").hidden = value.line === null;
  if (value.line !== null) {
    const caret = el("b", "pg-compiled-caret", value.after.slice(0, 1) || " ");
    part("place").replaceChildren(
      el("span", "pg-compiled-number", `line ${value.line}, column ${value.column}  `),
      value.before, caret, value.after.slice(1));
  }
  part("notes").hidden = !value.notes.length;
  part("notes").replaceChildren(...value.notes.map((note) => el("li", "", note)));
}
new ResizeObserver(() => {
  if (asked || !root.offsetParent) return;
  asked = true;
  trigger("check", {});
}).observe(root);
