// A component in a document without a browser: template, shared.js and script.js, put together as the page does.
import { readFileSync } from "node:fs";
import { JSDOM } from "jsdom";

const FOLDER = new URL("../../ui/components/", import.meta.url);
const read = (path) => readFileSync(new URL(path, FOLDER), "utf-8");
const GLYPH = 8; // pixels of one character; nothing is laid out here

export function page() {
  const { window } = new JSDOM("<body></body>", { runScripts: "outside-only", pretendToBeVisual: true });
  window.ResizeObserver = class { observe() {} };
  window.HTMLCanvasElement.prototype.getContext = () => ({ measureText: (text) => ({ width: GLYPH * text.length }) });
  Object.defineProperty(window.HTMLElement.prototype, "clientWidth", { get: () => 900 });
  window.eval(read("shared.js"));
  return window;
}

// `send` gives it a new value; `sent` are the events that it triggered.
export function component(name, value, { spec = null, window = page() } = {}) {
  const element = window.document.createElement("div");
  element.innerHTML = read(`${name}/template.html`);
  window.document.body.append(element);
  const props = { value }, watchers = [], sent = [];
  const body = `"use strict";\n${read(`${name}/script.js`)}\nPlayground.begin(props, watch, draw);`;
  const run = new window.Function("element", "props", "watch", "trigger", "SPEC", body);
  run(element, props, (_, callback) => watchers.push(callback), (event, data) => sent.push([event, data]), spec);
  const send = (next) => {
    props.value = next;
    watchers.forEach((callback) => callback());
  };
  const all = (query) => [...element.querySelectorAll(query)];
  return { window, element, props, send, sent, all, one: (query) => element.querySelector(query) };
}
