import assert from "node:assert/strict";
import test from "node:test";
import { page } from "./component.js";

const { Playground, document, getComputedStyle } = page();
const shown = (label, breakLines) => {
  const box = document.createElement("div");
  box.append(Playground.visible(label, breakLines));
  return box;
};

test("shares keep two digits below one per cent and never round to all or nothing", () => {
  const texts = [0, 0.000001, 0.000123, 0.0456, 0.99951, 1, "inf"].map(Playground.percent);
  assert.deepEqual(texts, ["0 %", "<0.001 %", "0.012 %", "4.6 %", ">99.9 %", "100.0 %", "inf"]);
});

test("what cannot be seen gets a mark, the rest stays text", () => {
  assert.equal(shown("a\tb\u200b").textContent, "a→bU+200B");
  assert.equal(shown("").textContent, "∅");
  assert.equal(shown("a\nb", true).querySelectorAll("br").length, 1);
  assert.equal(shown("<img src=x>").querySelector("img"), null);
});

test("a copied text holds the characters, not their marks", () => {
  for (const label of [" a\tb\n", "x\u200by", "\r\n\u00a0z", "", "plain"]) {
    assert.equal(Playground.copied(shown(label, true)), label);
  }
});

test("where a text is to be read, spaces are spaces", () => {
  assert.equal(shown(" a\tb").querySelectorAll(".pg-mark").length, 2);
  assert.equal(Playground.visible(" a\tb", false, true).querySelectorAll(".pg-mark").length, 1);
});

test("a component without a value is drawn only if it asks for it", () => {
  const calls = [];
  Playground.begin({ value: null }, () => {}, (value) => calls.push(value));
  Playground.begin({ value: null }, () => {}, () => calls.push("none"));
  assert.deepEqual(calls, ["none"]);
});

test("a label is read out as one line", () => {
  assert.deepEqual([" the", "\n", "\t", ""].map(Playground.spoken), ["␣the", "↵", "→", "empty"]);
});

test("colours of the style sheet reach a figure as literals", () => {
  document.body.style.setProperty("--pg-heat", "#f00");
  const figure = { marker: { color: "var(--pg-heat)" }, x: [1, "var(--pg-heat)", null] };
  const resolved = Playground.resolve(figure, getComputedStyle(document.body));
  assert.deepEqual(JSON.parse(JSON.stringify(resolved)), { marker: { color: "#f00" }, x: [1, "#f00", null] });
});

test("an older picture never replaces a newer one, the same one is drawn once", () => {
  const props = { value: { drawn: 5, text: "new" } }, drawn = [];
  let changed;
  Playground.begin(props, (_, callback) => { changed = callback; }, (value) => drawn.push(value.text));
  for (const value of [{ drawn: 3, text: "old" }, { drawn: 6, text: "newer" }, { drawn: 7, text: "newer" }, { text: "free" }]) {
    props.value = value;
    changed();
  }
  assert.deepEqual(drawn, ["new", "newer", "free"]);
  assert.equal(props.value.text, "free");
});

test("a count stands before its name, any other fact after it", () => {
  const texts = Playground.facts([["tokens", "5"], ["seed", "7"]], ["tokens"]).map((node) => node.textContent);
  assert.deepEqual([...texts], ["5 tokens", "seed 7"]);
});
