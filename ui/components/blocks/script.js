// Around the grid: the log, the block tables, what one block holds, and the tokens of one request.
const { el, put, visible, fixed } = window.Playground;
const root = element.querySelector(".pg-blocks");
const part = (query) => root.querySelector(query);
const log = part(".pg-blocks-log"), tables = part(".pg-blocks-tables"), detail = part(".pg-blocks-one"), tokens = part(".pg-blocks-tokens");
let logKey = "", tableKey = "", blockKey = "";

function drawLog(value) {
  const key = value.number + ":" + (value.log.length ? value.log[value.log.length - 1][0] + ":" + value.log.length : "");
  if (key === logKey) return;
  logKey = key;
  log.replaceChildren(...value.log.slice().reverse().map(([place, operation, text, seconds]) => {
    const item = el("li");
    item.tabIndex = -1;
    item.dataset.at = place; item.dataset.operation = operation;
    item.append(el("time", "", fixed(seconds, 2) + " s"), el("span", "", text));
    return item;
  }));
}

function drawTables(value) {
  const key = JSON.stringify(value.tables);
  if (key === tableKey) return;
  tableKey = key;
  tables.replaceChildren(...value.tables.map(([name, owner, blocks, length]) => {
    const row = el("div", "pg-blocks-table"), list = el("div");
    row.style.setProperty("--own", owner >= 0 ? `var(--pg-own-${owner % 8})` : "var(--pg-muted)");
    list.append(...blocks.map((block, index) => {
      const chip = el("button", "pg-blocks-chip" + (value.refs[block] > 1 ? " pg-shared" : ""), String(block));
      chip.dataset.block = block; chip.tabIndex = -1;
      chip.title = `logical ${index} is physical ${block}${value.refs[block] > 1 ? `, ${value.refs[block]} owners` : ""}`;
      return chip;
    }));
    row.append(el("b", "", name), list, el("small", "", `${length} tokens`));
    return row;
  }));
  if (!value.tables.length) tables.append(el("small", "", "No sequence holds a block."));
}

function drawBlock(value) {
  const key = JSON.stringify(value.block);
  if (key === blockKey) return;
  blockKey = key;
  const name = part(".pg-blocks-name"), block = value.block;
  name.replaceChildren(el("b", "", block ? `Block ${block.id}` : "A block"), block ? "" : ": click one in the grid");
  detail.replaceChildren();
  if (!block) return;
  detail.append(el("p", "", block.what + (block.refs > 1 ? `, reference count ${block.refs}` : "") + (block.findable && block.refs ? "; can be found by content" : "")));
  if (block.owners.length) detail.append(el("p", "", block.owners.map(([owner, index, first, last]) => `${owner}: logical block ${index}, ` + (last >= first ? `positions ${first} to ${last}` : "nothing yet")).join(" · ")));
  if (block.tokens.length) {
    const box = el("div", "pg-blocks-content");
    for (const label of block.tokens) { const node = el("span"); node.append(visible(label, false)); box.append(node); }
    detail.append(box);
  }
  for (const [place, text] of block.history) detail.append(el("small", "", `${place}. ${text}`));
}

function drawTokens(value) {
  const text = value.text, box = part(".pg-blocks-text");
  box.hidden = !text;
  if (!text) return;
  put(box.querySelector("span"), text.name);
  const key = value.number + ":" + text.name + ":" + text.first;
  if (tokens.dataset.key !== key) { tokens.dataset.key = key; tokens.replaceChildren(); }
  while (tokens.children.length > text.labels.length) tokens.lastChild.remove();
  const atEnd = tokens.scrollTop + tokens.clientHeight >= tokens.scrollHeight - 24;
  text.labels.forEach((label, i) => {
    let node = tokens.children[i];
    if (!node) {
      node = el("span", text.first + i < text.num_prompt ? "pg-in" : "");
      node.append(visible(label, true));
      node.dataset.even = Math.floor((text.first + i) / value.block_size) % 2;
      tokens.append(node);
    }
    if (node.dataset.block !== String(text.blocks[i])) node.dataset.block = text.blocks[i];
  });
  if (value.running && atEnd) tokens.scrollTop = tokens.scrollHeight;
}

function draw() {
  const value = props.value;
  if (!value || !value.num_blocks) return;
  root.dataset.number = value.number;
  drawLog(value); drawTables(value); drawBlock(value); drawTokens(value);
}

function point(node) {
  const block = node ? Number(node.dataset.block) : -1;
  window.dispatchEvent(new CustomEvent("pg-point", { detail: block >= 0 ? block : null }));
}
log.addEventListener("click", (event) => { const item = event.target.closest("li"); if (item) trigger("replay", { at: Number(item.dataset.at), turn: Date.now() }); });
for (const list of [tables, tokens]) {
  list.addEventListener("mouseover", (event) => point(event.target.closest("[data-block]")));
  list.addEventListener("mouseleave", () => point(null));
  list.addEventListener("click", (event) => { const node = event.target.closest("[data-block]"); if (node && Number(node.dataset.block) >= 0) trigger("pin", { block: Number(node.dataset.block) }); });
}
