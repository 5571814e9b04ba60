// The list of requests, each with its state, figures and timeline; rows are patched in place.
const { el, put, fixed } = window.Playground;
const root = element.querySelector(".pg-requests");
const body = root.querySelector("tbody"), sum = root.querySelector(".pg-requests-sum");
const axis = root.querySelector(".pg-requests-time span");
const rows = new Map(); // name -> its cells

function build(name) {
  const tr = el("tr"), cells = Array.from({ length: 8 }, () => el("td"));
  const pick = el("button", "pg-requests-name", name), prompt = el("div", "pg-requests-prompt");
  const text = el("span"), tail = el("small"), bar = el("div", "pg-requests-bar");
  pick.dataset.name = name; pick.title = `Show the tokens and blocks of ${name}`;
  prompt.append(text, tail);
  cells[0].append(pick); cells[1].append(prompt); cells[3].append(bar);
  cells[7].className = "pg-requests-do";
  const fork = el("button", "pg-tool", "fork"), remove = el("button", "pg-tool", "✕");
  for (const [button, what] of [[fork, "fork"], [remove, "remove"]]) {
    button.dataset.do = what; button.dataset.name = name; cells[7].append(button);
  }
  tr.append(...cells);
  tr.dataset.name = name;
  return { tr, cells, pick, text, tail, bar, fork, remove, prompt };
}

function timeline(bar, stretches, span) {
  const list = span > 0 ? stretches : [];
  while (bar.children.length > list.length) bar.lastChild.remove();
  list.forEach(([kind, start, end], i) => {
    const node = bar.children[i] || bar.appendChild(el("i"));
    node.dataset.kind = kind;
    node.style.left = `${(start / span) * 100}%`;
    node.style.width = `${((end - start) / span) * 100}%`;
    node.title = `${kind}: ${fixed(start, 2)} s to ${fixed(end, 2)} s`;
  });
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", list.map(([kind, start, end]) => `${kind} ${fixed(end - start, 2)} s`).join(", ") || "not started");
}

function draw(value) {
  Playground.say(root, value);
  const rate = value.throughput === null ? "" : `, ${value.num_tokens} tokens, ${fixed(value.throughput, 1)} tokens per second in all`;
  put(sum, `${value.rows.length}${rate}${value.running && value.phase ? " · " + value.phase : ""}`);
  put(axis, value.span > 0 ? `0 to ${fixed(value.span, 1)} s` : "");
  const names = new Set(value.rows.map((row) => row.name));
  for (const [name, cells] of rows) if (!names.has(name)) { cells.tr.remove(); rows.delete(name); }
  value.rows.forEach((row, place) => {
    if (!rows.has(row.name)) rows.set(row.name, build(row.name));
    const at = rows.get(row.name);
    if (body.children[place] !== at.tr) body.insertBefore(at.tr, body.children[place] || null);
    at.tr.setAttribute("aria-current", String(row.name === value.chosen));
    at.pick.style.setProperty("--own", `var(--pg-own-${place % 8})`);
    put(at.text, row.prompt);
    at.prompt.title = row.prompt;
    const size = row.num_prompt === null ? "" : `${row.num_prompt} + `;
    const from = row.forked_from ? `fork of ${row.forked_from}, ` : "";
    at.tail.className = row.error ? "pg-requests-error" : "";
    put(at.tail, row.error || `${from}${size}${row.num_tokens}${row.n > 1 ? ` in ${row.n} samples` : ""} of ${row.limit}${row.n > 1 ? " each" : ""}${row.tail ? ": " + row.tail : ""}`);
    put(at.cells[2], row.state);
    timeline(at.bar, row.stretches, value.span);
    put(at.cells[4], row.ttft === null ? "" : `${fixed(row.ttft, 2)} s`);
    put(at.cells[5], row.per_token === null ? "" : `${fixed(row.per_token * 1000, 0)} ms`);
    put(at.cells[6], row.hits === null ? "" : `${row.hits} / ${row.misses}`);
    at.fork.disabled = !row.live; at.fork.hidden = !row.live;
    at.fork.title = `Continue ${row.name} a second time from where it is; both share its blocks. Its luck is its own; at temperature 0 there is none, so it repeats ${row.name}`;
    at.remove.title = row.live ? `Cancel ${row.name} and free its blocks` : `Take ${row.name} off the list`;
    at.remove.setAttribute("aria-label", at.remove.title);
    at.remove.hidden = value.running && !row.live && row.state !== "not started";
  });
}

root.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-name]");
  if (button) trigger(button.dataset.do || "choose", { name: button.dataset.name });
});
