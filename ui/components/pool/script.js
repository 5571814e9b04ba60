// The pool on one canvas: a cell per physical block, redrawn from `value`; under it the replay.
const { el, put, visible } = window.Playground;
const root = element.querySelector(".pg-pool");
const part = (query) => root.querySelector(query);
const canvas = part("canvas"), tip = part(".pg-tip"), slider = part("[data-part=at]"), mark = part(".pg-pool-mark");
const pen = canvas.getContext("2d");
const FREE = -1, REUSABLE = -2, OTHERS = -3, ELSEWHERE = -4, GAP = 2, HEIGHT = 238;
let layout = { columns: 1, cell: 10, rows: 1 };
let pointed = null;   // block under the pointer, in the grid or through a token or table
let focus = 0;        // block that the arrow keys are at
let replay = null, frames = 0, asked = false;

// As large as fits into the height; a block is a square.
function arrange(count) {
  const width = root.clientWidth;
  if (!width) return false;
  let cell = 34;
  while (cell > 8 && Math.ceil(count / Math.floor(width / cell)) * cell > HEIGHT) cell -= 1;
  const columns = Math.max(1, Math.min(count, Math.floor(width / cell)));
  layout = { columns, cell, rows: Math.ceil(count / columns) };
  const ratio = window.devicePixelRatio || 1, w = columns * cell, h = layout.rows * cell;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) {
    canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
    canvas.style.width = w + "px"; canvas.style.height = h + "px";
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return true;
}

function colours() {
  const style = getComputedStyle(document.body);
  const get = (name) => style.getPropertyValue("--pg-" + name).trim();
  return { own: Array.from({ length: 8 }, (_, i) => get("own-" + i)), ink: get("ink"), muted: get("muted"), line: get("line"),
    strong: get("line-strong"), gone: get("gone"), sunken: get("sunken"), panel: get("panel"), letter: get("own-ink"), accent: get("accent"), font: get("sans") };
}

// Slots fill from the top left in four rows of four where there is room for that, else from the bottom up.
function slots(x, y, size, filled, total, colour) {
  pen.fillStyle = colour;
  if (size < 22 || total !== 16) {
    const high = Math.round((size * filled) / total);
    pen.fillRect(x, y + size - high, size, high);
    return;
  }
  const unit = (size - 2) / 4;
  for (let slot = 0; slot < filled; slot += 1) pen.fillRect(x + 1 + (slot % 4) * unit, y + 1 + Math.floor(slot / 4) * unit, unit - 1, unit - 1);
}

function cell(value, block, c) {
  const size = layout.cell - GAP;
  const x = (block % layout.columns) * layout.cell + GAP / 2, y = Math.floor(block / layout.columns) * layout.cell + GAP / 2;
  const owner = value.owners[block], filled = value.filled[block];
  pen.lineWidth = 1;
  if (owner === FREE) { pen.strokeStyle = c.line; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1); }
  if (owner === REUSABLE) {
    pen.fillStyle = c.sunken; pen.fillRect(x, y, size, size);
    pen.setLineDash([2, 2]); pen.strokeStyle = c.muted; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1); pen.setLineDash([]);
  }
  if (owner === OTHERS) {
    pen.save(); pen.beginPath(); pen.rect(x, y, size, size); pen.clip();
    pen.strokeStyle = c.gone; pen.lineWidth = 2; pen.beginPath();
    for (let d = -size; d < size; d += 5) { pen.moveTo(x + d, y + size); pen.lineTo(x + d + size, y); }
    pen.stroke(); pen.restore();
    pen.strokeStyle = c.strong; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  }
  if (owner >= 0 || owner === ELSEWHERE) {
    const colour = owner >= 0 ? c.own[owner % 8] : c.muted;
    pen.globalAlpha = 0.18; pen.fillStyle = colour; pen.fillRect(x, y, size, size); pen.globalAlpha = 1;
    slots(x, y, size, filled, value.block_size, colour);
    pen.strokeStyle = colour; pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    const shared = value.refs[block] > 1;
    if (size >= 13) {
      const sample = value.samples[block] && size >= 22 ? "." + (value.samples[block] + 1) : "";
      const word = owner >= 0 ? value.names[owner] + (shared && size >= 22 ? "×" + value.refs[block] : sample) : "…";
      pen.font = `700 ${Math.min(13, Math.round(size * (word.length > 2 ? 0.42 : 0.55)))}px ${c.font}`;
      pen.textAlign = "center"; pen.textBaseline = "middle";
      pen.lineWidth = 3; pen.strokeStyle = c.panel; pen.lineJoin = "round";
      pen.strokeText(word, x + size / 2, y + size / 2 + 0.5);
      pen.fillStyle = c.ink; pen.fillText(word, x + size / 2, y + size / 2 + 0.5);
    }
    if (shared) { pen.strokeStyle = c.ink; pen.lineWidth = size >= 13 ? 2 : 1.5; pen.strokeRect(x + 1, y + 1, size - 2, size - 2); }
  }
  const chosen = value.block === block;
  if (chosen || pointed === block || (value.mark && value.mark.shown && value.mark.block === block)) {
    pen.strokeStyle = chosen || pointed === block ? c.ink : c.accent; pen.lineWidth = 3;
    pen.strokeRect(x - 0.5, y - 0.5, size + 1, size + 1);
  }
}

function paint() {
  asked = false;
  const value = props.value;
  if (!value || !value.num_blocks || !arrange(value.num_blocks)) return;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const c = colours();
  for (let block = 0; block < value.num_blocks; block += 1) cell(value, block, c);
  frames += 1;
  root.dataset.frames = frames;
}
function repaint() { if (!asked) { asked = true; requestAnimationFrame(paint); } }

function drawCounts(value) {
  const box = part(".pg-pool-counts"), counts = value.counts;
  const list = [["used", "in use"], ["shared", "shared"], ["free", "free"], ["reusable", "of them findable"], ["others", "others'"]];
  if (!box.children.length) for (const [key, text] of list) { const item = el("span"); item.dataset.count = key; item.append(el("b"), " " + text); box.append(item); }
  for (const [key] of list) put(box.querySelector(`[data-count=${key}] b`), counts[key].toLocaleString("en"));
  canvas.setAttribute("aria-label", `${value.num_blocks} blocks of ${value.block_size} tokens: ${counts.used} in use, ${counts.shared} shared, ${counts.free} free, of them ${counts.reusable} findable, ${counts.others} in use by others. Arrow keys move, Enter shows a block.`);
}

function drawMark(value) {
  mark.hidden = !value.mark;
  if (!value.mark) return;
  const where = value.mark, name = el("span");
  name.append(visible(where.label, false));
  const text = where.block === null ? "lies in no full block of the cache: a last, partly filled block is not kept when its run ends, and old ones may be evicted."
    : `lies in block ${where.block} of the page's whole pool, slot ${where.slot}` + (where.shown ? ", outlined above." : "; another pool is shown here now.");
  mark.replaceChildren("The token last looked at in Inspect, ", name, `, at position ${where.position}, ${text}`);
}

function draw(value) {
  Playground.say(root, value);
  if (!value.num_blocks) { put(part(".pg-pool-size"), "appears when the model is loaded"); return; }
  put(part(".pg-pool-size"), `of ${value.num_blocks.toLocaleString("en")} blocks, ${value.block_size} tokens each${value.whole ? ", all of the page's; Run takes the one chosen above" : ""}`);
  root.dataset.at = value.at; root.dataset.total = value.total; root.dataset.live = value.live;
  if (document.activeElement !== slider || value.live) { slider.max = value.total; slider.value = value.at; } else slider.max = value.total;
  put(part(".pg-pool-at"), value.live ? `live, ${value.total} changes` : `after ${value.at} of ${value.total}`);
  part("[data-do=live]").disabled = value.live;
  drawCounts(value); drawMark(value);
  repaint();
}

// ---- the reader's hand ----------------------------------------------------------------------------

function blockAt(event) {
  const box = canvas.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left) / layout.cell), row = Math.floor((event.clientY - box.top) / layout.cell);
  const block = row * layout.columns + column;
  return column >= 0 && column < layout.columns && row >= 0 && block < (props.value?.num_blocks ?? 0) ? block : null;
}
function point(block) { if (block !== pointed) { pointed = block; repaint(); } }

function describe(block) {
  const value = props.value, owner = value.owners[block];
  const word = owner >= 0 ? `${value.names[owner]}${value.samples[block] ? "." + (value.samples[block] + 1) : ""}, ${value.filled[block]} of ${value.block_size} slots` + (value.refs[block] > 1 ? `, ${value.refs[block]} owners` : "")
    : { [FREE]: "free", [REUSABLE]: "free, can be found by content", [OTHERS]: "in use by others", [ELSEWHERE]: "in use by another of your tabs" }[owner];
  return `block ${block}: ${word}`;
}
function showTip(block) {
  if (block === null) { tip.hidden = true; return; }
  put(tip, describe(block));
  tip.hidden = false;
  const x = (block % layout.columns) * layout.cell, y = (Math.floor(block / layout.columns) + 1) * layout.cell + 4;
  tip.style.left = Math.max(0, Math.min(x, root.clientWidth - tip.offsetWidth - 4)) + "px";
  tip.style.top = y + "px";
}
// At most every 90 ms, the last one in any case; the server keeps the newest turn.
let wanted = null, sending = null;
function send(at) {
  wanted = { at };
  if (sending !== null) return;
  const go = () => {
    if (wanted === null) { sending = null; return; }
    trigger("replay", { at: wanted.at, turn: Date.now() });
    wanted = null;
    sending = setTimeout(go, 90);
  };
  go();
}
function goTo(at) { stopReplay(); send(at); }
function stopReplay() { clearInterval(replay); replay = null; put(part("[data-do=play]"), "▶ Replay"); }

canvas.addEventListener("mousemove", (event) => { const block = blockAt(event); point(block); showTip(block); });
canvas.addEventListener("mouseleave", () => { point(null); showTip(null); });
canvas.addEventListener("blur", () => { point(null); showTip(null); });
canvas.addEventListener("click", (event) => { const block = blockAt(event); if (block !== null) { focus = block; trigger("pin", { block }); } });
canvas.addEventListener("keydown", (event) => {
  const count = props.value?.num_blocks ?? 0;
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -layout.columns, ArrowDown: layout.columns };
  if (event.key in moves) { focus = Math.max(0, Math.min(count - 1, focus + moves[event.key])); point(focus); showTip(focus); } else if (event.key === "Enter" || event.key === " ") trigger("pin", { block: focus });
  else return;
  event.preventDefault();
});
slider.addEventListener("input", () => { stopReplay(); const at = Number(slider.value); send(at >= Number(slider.max) ? null : at); });
part("[data-do=live]").addEventListener("click", () => goTo(null));
part("[data-do=play]").addEventListener("click", () => {
  if (replay !== null) { stopReplay(); return; }
  const total = Number(slider.max), step = Math.max(1, Math.ceil(total / 60));
  let at = Number(slider.value) >= total ? 0 : Number(slider.value);
  put(part("[data-do=play]"), "❚❚ Pause");
  replay = setInterval(() => {
    at += step;
    if (at >= total) { stopReplay(); send(null); return; }
    slider.value = at;
    send(at);
  }, 120);
});
// A token or a table entry elsewhere on the tab was pointed at.
window.addEventListener("pg-point", (event) => point(event.detail));
new ResizeObserver(repaint).observe(root);
new MutationObserver(repaint).observe(document.body, { attributes: true, attributeFilter: ["class"] });
