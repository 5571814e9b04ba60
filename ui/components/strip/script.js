// The token strip: focusable tokens. New rows are added in place to those drawn; focus and scroll stay.
const { el, set, visible, spoken, percent, fixed, prompt, terms, showTip, radios } = window.Playground;
const root = element.querySelector(".pg-strip");
const list = root.querySelector(".pg-tokens");
const tip = root.querySelector(".pg-tip");
const stale = root.querySelector(".pg-stale");
const source = root.querySelector('[data-part="source"]');
const ENDS = {
  probability: ["certain", "unlikely"], surprise: ["0 bits", "10 bits"], rank: ["best", "rank 100+"],
};
const COUNTS = ["tokens", "tok/s", "bits a token"];
let number = null;          // the text that is drawn
const nodes = [];             // token elements of the output
const rows = [];
let current = null;         // roving tabindex
let pinned = null;
let mode = "probability";
let timer = null;
let asked = null;           // until all rows that were asked for must be here

function heat(row) {
  const [, , p, bits, rank] = row;
  if (mode === "probability") return typeof p === "number" ? 1 - Math.sqrt(p) : 1;
  if (mode === "surprise") return typeof bits === "number" ? Math.min(1, bits / 10) : 1;
  return Math.min(1, Math.log10(rank || 1) / 2);
}

function figure(row) {
  if (mode === "probability") return percent(row[2]);
  if (mode === "surprise") return fixed(row[3], 1);
  return "#" + (row[4] || "?");
}

function paint(node, row) {
  node.style.setProperty("--heat", heat(row).toFixed(3));
  node.style.setProperty("--entropy", (Math.min(1, row[5] / 8) * 4).toFixed(2) + "px");
  node.dataset.figure = figure(row);
}

function token(row, index) {
  const node = el("span", "pg-token" + (row[6] ? " pg-forced" : "") + (row[7] ? " pg-special" : ""));
  const facts = `${percent(row[2])}, rank ${row[4] || "unknown"}, ${fixed(row[3], 1)} bits`;
  const label = `${spoken(row[1])}, ${facts}` + (row[6] ? ", given" : "");
  set(node, { role: "option", "aria-selected": false, "aria-label": label, tabindex: -1, "data-index": index });
  node.append(visible(row[1], true));
  paint(node, row);
  return node;
}

function sameRow(a, b) {
  return a[0] === b[0] && a[2] === b[2] && a[6] === b[6];
}

function drawPrompt(value) {
  list.querySelectorAll(".pg-prompt, .pg-hidden").forEach((node) => node.remove());
  list.prepend(...prompt(value.prompt.map(([, label, special]) => [label, special]), value.hidden_prompt));
}

// Only the first `count` tokens stay.
function keep(count) {
  while (nodes.length > count) {
    const gone = nodes.pop();
    if (gone.previousSibling?.nodeName === "WBR") gone.previousSibling.remove();
    gone.remove();
  }
  rows.length = Math.min(rows.length, count);
}

// The rows that came, put behind those that are drawn; false where some between them are missing.
function take(value) {
  const added = document.createDocumentFragment();
  const start = Object.keys(value.rows).map(Number)[0] ?? 0;
  if (start > rows.length) return false;
  Object.values(value.rows).flat().forEach((row, place) => {
    const i = start + place;
    if (i < rows.length && sameRow(rows[i], row)) return;
    keep(i);
    const node = token(row, i);
    // Lines break before the space that opens a word, so that a token is not torn from its space.
    if (row[1].startsWith(" ")) added.append(document.createElement("wbr"));
    node.classList.toggle("pg-whole", row[1].length < 24 && !row[1].includes("\n"));
    added.append(node);
    nodes.push(node); rows.push(row);
  });
  keep(value.total);
  list.append(added);
  return true;
}

// An update may be skipped on its way; what is missing then comes with all rows.
function ask() {
  if (asked) return;
  trigger("whole");
  asked = setTimeout(() => { asked = null; if (rows.length < props.value.total) ask(); }, 2000);
}

// Room for the text that is expected, so that what stands below does not move while it arrives.
function reserve(value) {
  const width = list.clientWidth;
  if (!width) return;
  const characters = value.prompt.reduce((sum, entry) => sum + entry[1].length, 0) + value.expected * 5;
  list.style.minHeight = `min(${Math.ceil((characters * 8.5) / width) * 31 + 4}px, 214px)`;
}

function setCurrent(index, focus) {
  if (!nodes.length) { current = null; return; }
  const next = Math.max(0, Math.min(nodes.length - 1, index));
  if (current !== null && nodes[current]) nodes[current].tabIndex = -1;
  current = next;
  nodes[current].tabIndex = 0;
  if (focus) nodes[current].focus({ preventScroll: false });
}

function setPinned(index) {
  for (const [at, chosen] of [[pinned, false], [index, true]]) {
    if (!nodes[at]) continue;
    nodes[at].classList.toggle("pg-selected", chosen);
    set(nodes[at], { "aria-selected": chosen });
  }
  pinned = index;
}

function draw(value) {
  const fresh = value.number !== number;
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 24;
  const promptKey = value.prompt.length + ":" + value.hidden_prompt;
  if (fresh) {
    keep(0);
    number = value.number; pinned = null; current = null;
  }
  if (fresh || list.dataset.prompt !== promptKey) {
    drawPrompt(value);
    list.dataset.prompt = promptKey;
    reserve(value);
  }
  if (!take(value)) ask();
  setPinned(value.pinned);
  if (current === null || !nodes[current]) setCurrent(pinned ?? 0, false);
  list.classList.toggle("pg-empty", !nodes.length && !value.prompt.length);
  if (value.running && atEnd && pinned === null) list.scrollTop = list.scrollHeight;

  Playground.say(root, value, COUNTS);
  stale.hidden = !value.stale;
  stale.textContent = value.running ? "settings changed: they act from the next run" : "settings changed since this run";
  source.textContent = value.source === "recording" ? "recorded run" : value.source === "import" ? "imported" : "";
  source.title = value.source === "recording" ? "This run was recorded earlier with the model named below; press Run for a live one." : "";
}

function look(index) {
  clearTimeout(timer);
  timer = setTimeout(() => trigger("show", { index }), 110);
}

function pin(index) {
  clearTimeout(timer);
  setPinned(index);
  trigger("pin", { index });
}

function tipOf(node) {
  const row = rows[Number(node.dataset.index)];
  if (!row) return;
  const facts = terms([["model", percent(row[2])], ["surprise", fixed(row[3], 2) + " bits"],
    ["rank", "#" + (row[4] || "?")], ["entropy", fixed(row[5], 2) + " bits"]]);
  showTip(tip, root, node, row[1], "id " + row[0], facts, row[6] ? el("div", "pg-tip-note", "given, not drawn") : "");
}

list.addEventListener("mouseover", (event) => {
  const node = event.target.closest(".pg-token");
  if (!node) return;
  tipOf(node);
  look(Number(node.dataset.index));
});
list.addEventListener("mouseleave", () => { tip.hidden = true; look(null); });
list.addEventListener("focusout", () => { tip.hidden = true; });
list.addEventListener("click", (event) => {
  const node = event.target.closest(".pg-token");
  if (!node) return;
  const index = Number(node.dataset.index);
  setCurrent(index, true);
  pin(index);
});
list.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || current === null) return;
  const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: nodes.length - 1 };
  if (event.key in moves) {
    setCurrent(moves[event.key], true);
    tipOf(nodes[current]);
    look(current);
  } else if (event.key === "Enter" || event.key === " ") {
    pin(current);
  } else if (event.key === "ArrowDown") {
    root.closest(".pg-panel")?.querySelector(".pg-step tbody tr[tabindex='0']")?.focus();
  } else return;
  event.preventDefault();
});

const mark = radios(root.querySelector(".pg-segment"), "mode", setMode);
function setMode(name) {
  mode = name;
  mark(mode);
  root.querySelector(".pg-scale-low").textContent = ENDS[mode][0];
  root.querySelector(".pg-scale-high").textContent = ENDS[mode][1];
  nodes.forEach((node, i) => paint(node, rows[i]));
}
root.querySelector('[data-option="marks"]').addEventListener("change", (event) => list.classList.toggle("pg-no-marks", !event.target.checked));
root.querySelector('[data-option="numbers"]').addEventListener("change", (event) => list.classList.toggle("pg-numbers", event.target.checked));

setMode("probability");
