import assert from "node:assert/strict";
import test from "node:test";
import { component } from "./component.js";

const row = (id, label = ` t${id}`) => [id, label, 0.5, 1, 1, 2, false, false];
let drawn = 0;
// The strip of a text of `total` tokens, of which the rows from `from` on travel.
const strip = (total, from = 0, more = {}) => ({
  drawn: drawn += 1, number: 1, source: "run", running: true, hidden_prompt: 0, prompt: [[1, "Once", false]], expected: 9,
  total, rows: total > from ? { [from]: Array.from({ length: total - from }, (_, i) => row(from + i)) } : {},
  pinned: null, phase: "", progress: null, status: [], notice: "", stale: false, ...more,
});
const labels = (page) => page.all(".pg-token").map((node) => node.getAttribute("aria-label").split(",")[0]);

test("rows are put behind those drawn, whose nodes stay", () => {
  const page = component("strip", strip(2));
  const [first] = page.all(".pg-token");
  page.send(strip(4, 1));
  assert.deepEqual(labels(page), ["␣t0", "␣t1", "␣t2", "␣t3"]);
  assert.equal(page.all(".pg-token")[0], first);
  assert.deepEqual(page.sent, []);
});

test("rows in several chunks are read in their order", () => {
  const page = component("strip", strip(0));
  page.send(strip(130, 0, { rows: { 64: [row(64)], 0: Array.from({ length: 64 }, (_, i) => row(i)) }, total: 65 }));
  assert.equal(labels(page).at(-1), "␣t64");
});

test("where rows are missing all are asked for, once", () => {
  const page = component("strip", strip(2));
  page.send(strip(200, 128));
  page.send(strip(210, 128));
  assert.deepEqual(page.sent.map(([event]) => event), ["whole"]);
  assert.equal(labels(page).length, 2);
  page.send(strip(220));
  assert.equal(labels(page).length, 220);
  page.window.close();
});

test("another text begins anew", () => {
  const page = component("strip", strip(3));
  page.send(strip(1, 0, { number: 2, rows: { 0: [row(9)] } }));
  assert.deepEqual(labels(page), ["␣t9"]);
});

test("a prompt that arrives late stands before the tokens that are drawn", () => {
  const page = component("strip", strip(2, 0, { prompt: [] }));
  page.send(strip(2, 0, { prompt: [[1, "Once", false], [2, " upon", false]] }));
  const classes = [...page.one(".pg-tokens").children].filter((node) => node.nodeName === "SPAN").map((node) => node.classList[0]);
  assert.deepEqual(classes, ["pg-prompt", "pg-prompt", "pg-token", "pg-token"]);
});

test("arrow keys walk the tokens, Enter pins one", () => {
  const page = component("strip", strip(3));
  const press = (key) => page.one(".pg-tokens").dispatchEvent(new page.window.KeyboardEvent("keydown", { key, bubbles: true }));
  page.all(".pg-token")[0].getClientRects = page.all(".pg-token")[1].getClientRects = () => [{ left: 0, bottom: 0 }];
  press("ArrowRight");
  press("Enter");
  assert.equal(page.window.document.activeElement, page.all(".pg-token")[1]);
  assert.deepEqual(JSON.parse(JSON.stringify(page.sent)), [["pin", { index: 1 }]]);
});
