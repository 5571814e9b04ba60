import assert from "node:assert/strict";
import test from "node:test";
import { component } from "./component.js";

// [id, parent, step, label, logp, sum, score, status, greedy, group, token]
const node = (id, parent, step, status = "kept", score = -1) => [id, parent, step, ` t${id}`, -1, -step - 1, score, status, false, 0, id];
const tree = (nodes, last) => ({
  number: 1, running: false, phase: "", notice: "", status: [], prompt: "Once", best: null, nodes, last: [[0, last]],
});
const place = (page, id) => {
  const group = page.one(`[data-id="${id}"]`).closest(".pg-seg");
  return group.getAttribute("transform").match(/[\d.]+/g).map(Number);
};

test("a run without forks is one segment", () => {
  const page = component("tree", tree([node(0, -1, 0), node(1, 0, 1), node(2, 1, 2)], 2));
  assert.equal(page.all(".pg-seg").length, 1);
  assert.equal(page.all(".pg-word").length, 3);
});

test("the first child goes straight on, the others pass below it", () => {
  const page = component("tree", tree([node(0, -1, 0), node(1, 0, 1), node(2, 0, 1, "kept", -2)], 1));
  const [stem, straight, below] = [0, 1, 2].map((id) => place(page, id));
  assert.equal(straight[1], stem[1]);
  assert.ok(below[1] > straight[1] && below[0] === straight[0] && straight[0] > stem[0]);
});

test("texts on one row never overlap", () => {
  const nodes = [node(0, -1, 0)];
  for (let step = 1; step < 8; step += 1) for (let k = 0; k < 3; k += 1) nodes.push(node(nodes.length, Math.max(0, nodes.length - 3), step));
  const page = component("tree", tree(nodes, 7));
  const rows = {};
  for (const segment of page.all(".pg-seg")) {
    const [x, y] = segment.getAttribute("transform").match(/[\d.]+/g).map(Number);
    const width = [...segment.querySelectorAll("rect")].reduce((sum, rect) => sum + Number(rect.getAttribute("width")), 0);
    (rows[y] ||= []).push([x, x + width]);
  }
  for (const row of Object.values(rows)) {
    row.sort(([a], [b]) => a - b);
    row.forEach(([x], i) => assert.ok(i === 0 || x >= row[i - 1][1]));
  }
});

test("a long run shows its ends and how many tokens lie between", () => {
  const page = component("tree", tree(Array.from({ length: 12 }, (_, i) => node(i, i - 1, i)), 11));
  assert.equal(page.all(".pg-word").length, 6);
  assert.match(page.one(".pg-between").textContent, /…6…/);
});
