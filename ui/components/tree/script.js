// The beam tree as SVG: one group per run of tokens, patched in place; the step slider replays the search.
const { el, put, set, svg, visible, spoken, percent, fixed, quoted, terms, showTip, radios } = window.Playground;
const root = element.querySelector(".pg-tree");
const part = (query) => root.querySelector(query);
const canvas = part(".pg-tree-svg"), pane = part(".pg-tree-pan"), edges = part(".pg-tree-edges"), layer = part(".pg-tree-nodes");
const box = part(".pg-tree-box"), tip = part(".pg-tip"), slider = part("[data-part=step]");
const TOP = 26, READABLE = 0.85, ROW = 36, GAP = 30, PAD = 12, FOLD = 7, ENDS = 3;
const SIGN = { kept: "", finished: "■", pruned: "✕", lost: "✕", greedy: "" };
const WORD = { kept: "kept", finished: "finished", pruned: "never kept", lost: "pruned later", greedy: "greedy only" };
const measure = document.createElement("canvas").getContext("2d");

let number = null;
let nodes = new Map();       // id -> node
let last = new Map();        // group -> newest step
let chosenStep = null;       // null follows the search
let detail = null;           // null: as much as stays legible
let fold = true;
let pinned = null, current = null;
let view = { x: 0, y: 0, k: 1 }, free = false;   // free: the reader has moved the picture
let size = { width: 0, height: 0 };
const shapes = new Map();      // segment key -> { g, edge, sign }
let tokens = new Map();      // node id -> the element that shows it
let replay = null;

// The label as one run of characters, marks for what cannot be seen.
const glyphs = (label) => {
  const text = visible(label, false).textContent;
  return text.trim() === "" ? text.replace(/ /g, "·") : text;
};
const width = (text, font) => { measure.font = font; return measure.measureText(text).width; };
const fonts = () => {
  const family = getComputedStyle(root).fontFamily;
  return { word: `13.5px ${family}`, bold: `600 13.5px ${family}`, small: `11px ${family}` };
};

// ---- what the search looked like at a step -------------------------------------------------------

function read(value) {
  nodes = new Map();
  for (const [id, parent, step, label, logp, sum, score, status, greedy, group, token] of value.nodes) {
    nodes.set(id, { id, parent, step, label, logp, sum, score, status, greedy, group, token, children: [] });
  }
  for (const node of nodes.values()) nodes.get(node.parent)?.children.push(node);
  last = new Map(value.last);
}

function lastStep() { return Math.max(0, ...last.values()); }
function step() { return chosenStep === null ? lastStep() : Math.min(chosenStep, lastStep()); }

// Marks each node with what it is at the step shown; returns the most that was found of each kind.
function judge(now) {
  const order = [...nodes.values()].filter((node) => node.step <= now);
  const count = { kept: 0, finished: 0, lost: 0, pruned: 0 };
  for (const node of order) { node.alive = false; node.now = node.status; }
  for (const node of order.reverse()) {
    if (node.status === "kept" && node.step >= Math.min(now, last.get(node.group) ?? now)) { node.alive = true; count.kept += 1; }
    if (node.status === "finished") { node.alive = true; count.finished += 1; }
    if (node.alive) { const up = nodes.get(node.parent); if (up) up.alive = true; }
    if (node.status === "kept" && !node.alive) node.now = "lost";
    if (node.status === "pruned") count.pruned += 1;
  }
  for (const node of order) if (node.now === "lost" && !node.children.some((child) => child.step <= now && child.now === "lost")) count.lost += 1;
  return count;
}

function bestAt(now) {
  const value = props.value;
  if (now >= lastStep() && value.best !== null && value.best !== undefined && nodes.has(value.best)) return nodes.get(value.best);
  let best = null;
  for (const node of nodes.values()) {
    const counts = node.status === "finished" ? node.step <= now : node.status === "kept" && node.alive && !node.children.some((child) => child.step <= now && child.alive);
    if (counts && node.step <= now && (best === null || node.score > best.score)) best = node;
  }
  return best;
}

function shownDetail(count) {
  if (detail !== null) return detail;
  if (count.kept + count.finished + count.lost + count.pruned <= 26) return "all";
  return count.kept + count.finished + count.lost <= 26 ? "branches" : "survivors";
}

// ---- layout --------------------------------------------------------------------------------------

function layout(now, level) {
  const type = fonts();
  const best = new Set();
  for (let node = bestAt(now); node; node = nodes.get(node.parent)) best.add(node.id);
  const keep = (node) => node.step <= now && (node.alive || node.greedy || level === "all" || (level === "branches" && node.now === "lost"));
  const kids = (children) => children.filter(keep).sort((a, b) => (a.now === "pruned") - (b.now === "pruned") || a.id - b.id);
  const hidden = (node) => node.children.filter((child) => child.step <= now && child.now === "lost" && !keep(child)).length;
  const roots = kids([...nodes.values()].filter((node) => !nodes.has(node.parent)));
  const prompt = props.value.prompt || "";
  const rootText = box.clientWidth < 500 && prompt.length > 14 ? "…" + prompt.slice(-13) : prompt;
  const rootWidth = width(rootText, type.word) + 10;
  const segments = [];
  const measured = (start, from) => {
    const run = [start];
    let end = start, next = kids(end.children);
    const same = (a, b) => a.now === b.now && a.greedy === b.greedy && best.has(a.id) === best.has(b.id) && a.now !== "finished";
    while (fold && next.length === 1 && same(end, next[0])) { end = next[0]; run.push(end); next = kids(end.children); }
    const folded = run.reduce((sum, node) => sum + hidden(node), 0);
    const segment = { start, from, next, leaf: !next.length, kind: end.now, greedy: start.greedy, best: best.has(start.id), folded };
    segment.cells = cells(run, type, segment.best);
    segment.x = (from ? from.x + from.width : rootWidth) + GAP;
    segment.score = `${fixed(end.sum, 2)} │ ${fixed(end.score, 3)}`;
    segment.flags = flags(segment);
    const text = segment.cells.reduce((sum, cell) => sum + cell.width, 0) + 6;
    segment.width = Math.max(text + (segment.flags ? width(segment.flags, type.small) + 8 : 0), width(segment.score, type.small) + 8);
    segments.push(segment);
    return segment;
  };
  // A lane is a text that goes straight on through the first child of every fork.
  const lane = (start, from) => {
    const members = [measured(start, from)];
    for (let end = members[0]; end.next.length; end = members.at(-1)) members.push(measured(end.next[0], end));
    return members;
  };
  // Lanes are placed from the right: what forks late lies nearest, what forks early passes below it, so that
  // no edge crosses a text; a row is shared by lanes that do not overlap.
  const rows = [];
  const free = (row, from, to) => (rows[row] || []).every(([a, b]) => to <= a || from >= b);
  const take = (row, from, to) => { (rows[row] ||= []).push([from, to]); };
  const place = (members, row) => {
    members.forEach((segment) => { segment.row = row; });
    const first = members[0];
    take(row, first.x - (first.from ? GAP : 0), members.at(-1).x + members.at(-1).width + 14);
    for (const segment of members.slice().reverse()) {
      for (const node of segment.next.slice(1)) fork(node, segment, row, segment.x + segment.width);
    }
  };
  const fork = (node, from, row, x) => {
    const members = lane(node, from);
    const end = members.at(-1).x + members.at(-1).width + 14;
    let at = row + 1;
    while (!free(at, x + 2, end)) at += 1;
    for (let between = row + 1; between < at; between += 1) take(between, x + 2, x + GAP * 0.4);
    place(members, at);
  };
  if (roots.length) {
    place(lane(roots[0], null), 0);
    for (const node of roots.slice(1)) fork(node, null, 0, rootWidth);
  }
  const right = Math.max(rootWidth, ...segments.map((segment) => segment.x + segment.width));
  return { segments, width: right, height: Math.max(1, rows.length) * ROW, rootText, rootWidth };
}

function flags(segment) {
  const out = [];
  if (SIGN[segment.kind]) out.push(SIGN[segment.kind]);
  else if (segment.leaf && segment.kind === "kept") out.push("›");
  if (segment.folded) out.push(`✕${segment.folded}`);
  if (segment.leaf && segment.best) out.push("★ best");
  if (segment.leaf && segment.greedy) out.push("greedy");
  return out.join(" ");
}

// The tokens of a run; a long run shows its first and last ones and how many lie between.
function cells(run, type, bold) {
  const one = (node) => { const text = glyphs(node.label); return { node, text, width: Math.max(5, width(text, bold ? type.bold : type.word)) }; };
  if (!fold || run.length <= FOLD) return run.map(one);
  const text = ` …${run.length - 2 * ENDS}… `;
  const between = { node: run[run.length - ENDS - 1], text, width: width(text, type.word), between: run.length - 2 * ENDS };
  return [...run.slice(0, ENDS).map(one), between, ...run.slice(-ENDS).map(one)];
}

// ---- drawing -------------------------------------------------------------------------------------

function classes(segment) {
  return `pg-${segment.kind}` + (segment.greedy ? " pg-by-greedy" : "") + (segment.best ? " pg-best" : "");
}

function drawSegment(segment, y, rootWidth) {
  const key = segment.start.id;
  let shape = shapes.get(key);
  if (!shape) {
    shape = { g: svg("g"), under: svg("path", {}, "pg-under"), edge: svg("path"), words: svg("g"),
      score: svg("text", { x: 3, y: 13 }, "pg-node-score"), sign: svg("text", { y: -4 }, "pg-node-sign") };
    shape.g.append(shape.words, shape.score, shape.sign);
    edges.append(shape.under, shape.edge);
    layer.append(shape.g);
    shapes.set(key, shape);
  }
  const from = segment.from;
  const x0 = from ? from.x + from.width : rootWidth, y0 = from ? y(from) : TOP;
  const x = segment.x, top = y(segment), end = x + segment.width;
  const bend = y0 === top ? `L ${x} ${top}` : `C ${x0 + GAP * 0.45} ${y0} ${x0 + GAP * 0.05} ${top} ${x} ${top}`;
  const path = `M ${x0} ${y0} ${bend} L ${end} ${top}`;
  const names = classes(segment);
  set(shape.edge, { d: path, class: "pg-edge " + names });
  set(shape.under, { d: segment.greedy ? path : "" });
  set(shape.g, { class: "pg-seg " + names, transform: `translate(${x} ${top})` });
  const sign = segment.cells.map((cell) => cell.node.id + ":" + cell.text).join("|");
  if (shape.key !== sign) {
    shape.key = sign;
    shape.words.replaceChildren(...segment.cells.map((cell) => word(cell)));
  }
  let at = 3;
  segment.cells.forEach((cell, i) => {
    const node = shape.words.children[i];
    node.setAttribute("transform", `translate(${at.toFixed(1)} 0)`);
    node.firstChild.setAttribute("width", cell.width);
    if (!cell.between) {
      tokens.set(cell.node.id, node);
      const label = `${spoken(cell.node.label)}, ${WORD[cell.node.now]}, ${percent(Math.exp(cell.node.logp))}, ` +
        `sum ${fixed(cell.node.sum, 2)}, score ${fixed(cell.node.score, 3)}` + (cell.node.greedy ? ", greedy" : "");
      set(node, { "aria-label": label, "aria-level": cell.node.step + 1 });
      markPinned(node, cell.node.id);
    }
    at += cell.width;
  });
  put(shape.score, segment.score);
  put(shape.sign, segment.flags);
  set(shape.sign, { x: at + 4 });
  shape.seen = true;
}

function word(cell) {
  const node = svg("g", {}, cell.between ? "pg-between" : "pg-word");
  node.append(svg("rect", { y: -18, height: 18, rx: 2 }), svg("text", { y: -4 }, "", cell.text));
  return cell.between ? node : set(node, { "data-id": cell.node.id, role: "treeitem", tabindex: -1 });
}

function markPinned(node, id) {
  set(node, { class: "pg-word" + (id === pinned ? " pg-selected" : ""), "aria-selected": id === pinned });
}

const rootWord = svg("text", { x: 2, y: TOP - 4 }, "pg-root-word");
const rootEdge = svg("path", {}, "pg-edge pg-kept");

function drawTree() {
  const now = step();
  const count = judge(now);
  const level = shownDetail(count);
  const plan = layout(now, level);
  const y = (segment) => TOP + segment.row * ROW;
  for (const shape of shapes.values()) shape.seen = false;
  tokens = new Map();
  for (const segment of plan.segments) drawSegment(segment, y, plan.rootWidth);
  for (const [key, shape] of shapes) {
    if (shape.seen) continue;
    shape.g.remove(); shape.edge.remove(); shape.under.remove();
    shapes.delete(key);
  }
  if (plan.segments.length) {
    put(rootWord, plan.rootText);
    rootEdge.setAttribute("d", `M 0 ${TOP} L ${plan.rootWidth} ${TOP}`);
    if (!rootWord.parentNode) { layer.append(rootWord); edges.append(rootEdge); }
  } else { rootWord.remove(); rootEdge.remove(); }
  size = { width: plan.width + PAD, height: plan.height + PAD };
  part(".pg-tree-empty").hidden = plan.segments.length > 0;
  box.style.height = `${Math.min(460, Math.max(170, size.height * fitScale() + 24))}px`;
  if (!free) fit(); else place();
  focusable();
  drawControls(now, level, count);
  drawText();
}

function drawControls(now, level, count) {
  slider.max = lastStep();
  slider.value = now;
  Playground.fill(slider);
  part(".pg-tree-step").textContent = nodes.size ? `step ${now + 1} of ${lastStep() + 1}` : "";
  root.dataset.step = now;
  markDetail(level);
  const legend = [["kept", "───", `kept: ${count.kept} alive`], ["finished", "──■", `finished: ${count.finished}`],
    ["lost", "╌╌✕", `pruned after some steps: ${count.lost}`], ["pruned", "┄┄✕", `never kept: ${count.pruned}`],
    ["greedy", "━━━", "greedy: always the likeliest token"], ["best", "━★", "best score"], ["scores", "−3.2 │ −0.8", "sum of log p │ score"]];
  part(".pg-tree-legend").replaceChildren(...legend.map(([kind, sign, text]) => el("span", "pg-key-" + kind, el("i", "", sign), text)));
}

function path(id) {
  const out = [];
  for (let node = nodes.get(id); node; node = nodes.get(node.parent)) out.unshift(node);
  return out;
}

function drawText() {
  const panel = part(".pg-tree-text");
  const node = nodes.get(pinned);
  panel.hidden = !node;
  if (!node) return;
  panel.querySelector(".pg-caption").textContent =
    `Text so far, ${node.step + 1} tokens · ${WORD[node.now || node.status]} · sum of log p ${fixed(node.sum, 3)} · score ${fixed(node.score, 4)}`;
  const words = panel.querySelector(".pg-tree-words");
  words.replaceChildren(el("span", "pg-prompt", props.value.prompt || ""));
  for (const each of path(pinned)) {
    const piece = el("span", each.greedy ? "pg-of-greedy" : "");
    piece.append(visible(each.label, true));
    piece.title = percent(Math.exp(each.logp));
    words.append(piece);
  }
}

// ---- pan and zoom --------------------------------------------------------------------------------

function fitScale() { return Math.max(READABLE, Math.min(1, (box.clientWidth - 2 * PAD) / Math.max(1, size.width))); }
// As much as can be read: what is too large for that shows its newest end while it grows.
function fit() {
  const k = fitScale();
  const over = size.width * k + 2 * PAD - box.clientWidth;
  view = { k, x: over > 0 && props.value.running ? PAD - over : PAD, y: 4 };
  place();
}
// The whole tree, however small, and back.
function whole() {
  const k = Math.min(1, (box.clientWidth - 2 * PAD) / Math.max(1, size.width), (box.clientHeight - 8) / Math.max(1, size.height));
  if (free && Math.abs(view.k - k) < 1e-6) { free = false; fit(); return; }
  free = true;
  view = { k, x: PAD, y: 4 };
  place();
}
function place() { pane.setAttribute("transform", `translate(${view.x.toFixed(1)} ${view.y.toFixed(1)}) scale(${view.k.toFixed(3)})`); }
function zoom(factor, x = box.clientWidth / 2, y = box.clientHeight / 2) {
  const k = Math.max(0.15, Math.min(4, view.k * factor));
  view = { k, x: x - ((x - view.x) * k) / view.k, y: y - ((y - view.y) * k) / view.k };
  free = true;
  place();
}
function pan(dx, dy) { view = { ...view, x: view.x + dx, y: view.y + dy }; free = true; place(); }
canvas.addEventListener("wheel", (event) => {
  // A plain wheel scrolls the page until the reader has put the focus into the tree.
  if (!(event.ctrlKey || event.metaKey || canvas.contains(document.activeElement))) return;
  event.preventDefault();
  const frame = canvas.getBoundingClientRect();
  if (event.shiftKey) pan(-event.deltaY, 0);
  else zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - frame.left, event.clientY - frame.top);
}, { passive: false });
let drag = null;
canvas.addEventListener("pointerdown", (event) => { if (event.button === 0) drag = { x: event.clientX, y: event.clientY, moved: false }; });
window.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
  if (!drag.moved && Math.hypot(dx, dy) < 4) return;
  drag = { x: event.clientX, y: event.clientY, moved: true };
  tip.hidden = true;
  canvas.classList.add("pg-dragging");
  pan(dx, dy);
});
let dragged = false;
window.addEventListener("pointerup", () => { dragged = Boolean(drag?.moved); drag = null; canvas.classList.remove("pg-dragging"); });

// ---- looking, pinning, walking -------------------------------------------------------------------

function tipOf(target) {
  const node = nodes.get(Number(target.dataset.id));
  if (!node) return;
  const siblings = nodes.has(node.parent) ? nodes.get(node.parent).children : [...nodes.values()].filter((each) => !nodes.has(each.parent));
  const list = siblings.slice().sort((a, b) => b.logp - a.logp).slice(0, 10).map((each) =>
    el("li", "pg-is-" + (each.now || each.status) + (each.id === node.id ? " pg-this" : ""), quoted(each.label),
      el("span", "pg-tip-p", percent(Math.exp(each.logp))), el("span", "pg-tip-was", WORD[each.now || each.status])));
  showTip(tip, box, target, node.label, `step ${node.step + 1} · id ${node.token}`,
    terms([["sum of log p", fixed(node.sum, 3)], ["score", fixed(node.score, 4)], ["state", WORD[node.now]]]),
    el("div", "pg-tip-note", "Looked at after the same text:"), el("ol", "pg-tip-list", ...list));
}

function focusable() {
  if (current === null || !tokens.has(current)) current = tokens.size ? tokens.keys().next().value : null;
  for (const [id, node] of tokens) node.setAttribute("tabindex", id === current ? "0" : "-1");
}

function walk(id) {
  if (!tokens.has(id)) return;
  current = id;
  focusable();
  const node = tokens.get(id);
  node.focus({ preventScroll: true });
  const frame = box.getBoundingClientRect(), at = node.getBoundingClientRect();
  const dx = at.left < frame.left + 10 ? frame.left + 10 - at.left : Math.min(0, frame.right - 10 - at.right);
  const dy = at.top < frame.top + 4 ? frame.top + 4 - at.top : Math.min(0, frame.bottom - 10 - at.bottom);
  if (dx || dy) pan(dx, dy);
  tipOf(node);
}

function pin(id) {
  pinned = pinned === id ? null : id;
  for (const [each, node] of tokens) markPinned(node, each);
  drawText();
}

function neighbour(key) {
  const node = nodes.get(current);
  if (key === "ArrowLeft") { for (let up = nodes.get(node.parent); up; up = nodes.get(up.parent)) if (tokens.has(up.id)) return up.id; return null; }
  if (key === "ArrowRight") {
    const queue = [...node.children];
    while (queue.length) { const next = queue.shift(); if (tokens.has(next.id)) return next.id; queue.push(...next.children); }
    return null;
  }
  // The nearest token in the next row above or below.
  const at = tokens.get(current).getBoundingClientRect();
  let found = null, nearest = Infinity;
  for (const [id, each] of tokens) {
    const other = each.getBoundingClientRect();
    const dy = (other.top - at.top) * (key === "ArrowDown" ? 1 : -1);
    if (dy < 4) continue;
    const distance = dy * 10 + Math.abs(other.left - at.left);
    if (distance < nearest) { nearest = distance; found = id; }
  }
  return found;
}

layer.addEventListener("mouseover", (event) => { const node = event.target.closest("[data-id]"); if (node && !drag?.moved) tipOf(node); });
layer.addEventListener("mouseleave", () => { tip.hidden = true; });
layer.addEventListener("focusout", () => { tip.hidden = true; });
layer.addEventListener("click", (event) => {
  const node = event.target.closest("[data-id]");
  if (!node || dragged) return;
  current = Number(node.dataset.id);
  focusable();
  pin(current);
});
canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const pans = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
  if (event.shiftKey && event.key in pans) pan(...pans[event.key]);
  else if (event.key in pans && current !== null) { const next = neighbour(event.key); if (next !== null) walk(next); } else if (event.key === "Enter" || event.key === " ") { if (current !== null) pin(current); } else if (event.key === "+" || event.key === "=") zoom(1.25);
  else if (event.key === "-") zoom(0.8);
  else if (event.key === "0") { free = false; fit(); } else return;
  event.preventDefault();
});

// ---- controls ------------------------------------------------------------------------------------

function goTo(wanted) {
  chosenStep = wanted >= lastStep() ? null : Math.max(0, wanted);
  drawTree();
}
function endReplay() { clearInterval(replay); replay = null; part("[data-do=play]").textContent = "▶"; }
slider.addEventListener("input", () => { endReplay(); goTo(Number(slider.value)); });
const ACTIONS = {
  back: () => { endReplay(); goTo(step() - 1); },
  forth: () => { endReplay(); goTo(step() + 1); },
  in: () => zoom(1.25), out: () => zoom(0.8), fit: whole,
  play: () => {
    if (replay) return endReplay();
    let at = 0;
    goTo(0);
    part("[data-do=play]").textContent = "❚❚";
    replay = setInterval(() => { at += 1; goTo(at); if (at >= lastStep()) endReplay(); }, 350);
  },
};
for (const [name, act] of Object.entries(ACTIONS)) part(`[data-do=${name}]`).addEventListener("click", act);
const markDetail = radios(part(".pg-segment"), "detail", (level) => { detail = level; drawTree(); });
part("[data-option=fold]").addEventListener("change", (event) => { fold = event.target.checked; drawTree(); });
document.addEventListener("pg-pick-beam", (event) => { if (nodes.has(event.detail)) { pinned = null; pin(event.detail); drawTree(); } });

function draw(value) {
  if (value.number !== number) {
    number = value.number;
    chosenStep = pinned = current = null;
    free = false;
    endReplay();
  }
  Playground.say(root, value);
  read(value);
  if (box.clientWidth) drawTree(); // hidden tab: drawn when it is shown
}
new ResizeObserver(() => { if (box.clientWidth && props.value) { if (!rootWord.parentNode) drawTree(); else if (!free) fit(); } }).observe(box);
