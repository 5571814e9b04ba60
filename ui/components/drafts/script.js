// The text of a speculative run: every piece is a token of the text or a rejected draft; a click opens its round.
const { el, set, visible, spoken, percent, fixed, prompt, terms, showTip } = window.Playground;
const root = element.querySelector(".pg-drafts");
const list = root.querySelector(".pg-drafts-text"), tip = root.querySelector(".pg-tip");
const WORDS = { accepted: "accepted draft", rejected: "rejected draft", recovered: "recovered", bonus: "bonus", target: "no draft" };
const COUNTS = ["tokens", "target calls"];
let number = null, pieces = [], nodes = [], current = null, timer = null;

const same = (a, b) => a.id === b.id && a.kind === b.kind && a.round === b.round && a.place === b.place;

function piece(item, index, starts) {
  const node = el("span", `pg-piece pg-kind-${item.kind}` + (item.special ? " pg-special" : ""));
  const label = `${spoken(item.label)}, ${WORDS[item.kind]}, round ${item.round + 1}`;
  set(node, { role: "option", "aria-selected": false, "aria-label": label, tabindex: -1, "data-index": index, "data-kind": item.kind });
  node.append(visible(item.label, item.kind !== "rejected"));
  node.classList.toggle("pg-whole", item.label.length < 24 && !item.label.includes("\n"));
  const out = document.createDocumentFragment();
  if (item.label.startsWith(" ")) out.append(document.createElement("wbr"));
  if (starts) out.append(el("i", "pg-round-start"));
  out.append(node);
  return [node, out];
}

function drawPrompt(value) {
  list.replaceChildren();
  nodes = []; pieces = []; current = null;
  list.append(...prompt(value.prompt, value.hidden_prompt));
}

function setCurrent(index, focus) {
  if (!nodes.length) { current = null; return; }
  if (current !== null && nodes[current]) nodes[current].tabIndex = -1;
  current = Math.max(0, Math.min(nodes.length - 1, index));
  nodes[current].tabIndex = 0;
  if (focus) nodes[current].focus();
}

// Of a selected place that holds a rejected draft and the token in its stead, the draft is the one to look at.
function mark(selected) {
  const at = selected ? pieces.findIndex((item) => item.round === selected[0] && item.place === selected[1]) : -1;
  nodes.forEach((node, i) => {
    node.classList.toggle("pg-in-round", Boolean(selected) && pieces[i].round === selected[0]);
    node.classList.toggle("pg-selected", i === at);
    node.setAttribute("aria-selected", String(i === at));
  });
  return at;
}

function draw(value) {
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 24;
  const promptKey = value.prompt.length + ":" + value.hidden_prompt;
  if (value.number !== number || list.dataset.prompt !== promptKey) {
    drawPrompt(value);
    list.dataset.prompt = promptKey;
    number = value.number;
  }
  let kept = 0;
  while (kept < pieces.length && kept < value.pieces.length && same(pieces[kept], value.pieces[kept])) kept += 1;
  while (nodes.length > kept) {
    const gone = nodes.pop();
    while (["WBR", "I"].includes(gone.previousSibling?.nodeName)) gone.previousSibling.remove();
    gone.remove();
  }
  const added = document.createDocumentFragment();
  for (let i = kept; i < value.pieces.length; i += 1) {
    const item = value.pieces[i];
    const [node, out] = piece(item, i, i > 0 && value.pieces[i - 1].round !== item.round);
    nodes.push(node);
    added.append(out);
  }
  list.append(added);
  pieces = value.pieces;
  const at = mark(value.selected);
  if (current === null || !nodes[current]) setCurrent(Math.max(at, 0), false);
  list.classList.toggle("pg-empty", !nodes.length && !value.prompt.length);
  if (value.running && atEnd) list.scrollTop = list.scrollHeight;
  Playground.say(root, value, COUNTS);
}

function select(index, wait) {
  clearTimeout(timer);
  const item = pieces[index];
  if (item) timer = setTimeout(() => trigger("pin", { round: item.round, place: item.place }), wait);
}

function tipOf(node) {
  const item = pieces[Number(node.dataset.index)];
  if (!item) return;
  const n = item.numbers;
  const lines = n ? [["p, target", n.p], ["q, draft", n.q]].map(([key, value]) => [key, value === null ? "–" : percent(value)]) : [];
  if (n && n.threshold !== null) lines.push(["needs u below", fixed(n.threshold, 3)], ["u drawn", fixed(n.uniform, 3)]);
  showTip(tip, root, node, item.label, `round ${item.round + 1}`, el("div", "pg-tip-note", WORDS[item.kind]), terms(lines));
}

list.addEventListener("mouseover", (event) => { const node = event.target.closest(".pg-piece"); if (node) tipOf(node); });
list.addEventListener("mouseleave", () => { tip.hidden = true; });
list.addEventListener("focusout", () => { tip.hidden = true; });
list.addEventListener("click", (event) => {
  const node = event.target.closest(".pg-piece");
  if (!node) return;
  setCurrent(Number(node.dataset.index), true);
  select(current, 0);
});
list.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || current === null) return;
  const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: nodes.length - 1 };
  if (event.key in moves) { setCurrent(moves[event.key], true); tipOf(nodes[current]); select(current, 110); } else if (event.key === "Enter" || event.key === " ") select(current, 0);
  else return;
  event.preventDefault();
});
