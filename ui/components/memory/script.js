// What blocks reserve and waste, beside what one contiguous buffer per sequence would.
const { el, percent, fixed } = window.Playground;
const root = element.querySelector(".pg-memory");
const bars = root.querySelector(".pg-memory-bars"), note = root.querySelector(".pg-memory-note");
const bytes = (n) => (n >= 1e9 ? fixed(n / 1e9, 2) + " GB" : n >= 1e6 ? fixed(n / 1e6, 1) + " MB" : fixed(n / 1e3, 0) + " kB");

function tile(way, value) {
  const box = root.querySelector(`[data-way=${way}]`), of = value.known ? value[way] : null;
  box.querySelector("b").textContent = of && of.waste !== null ? percent(of.waste) : "–";
  const fit = of && of.fit !== null ? `${of.fit.toLocaleString("en")} such sequences fit in the pool, unshared` : "";
  box.querySelector("small").textContent = fit;
  box.dataset.waste = of && of.waste !== null ? of.waste : "";
}

function draw(value) {
  tile("blocks", value); tile("contiguous", value);
  bars.replaceChildren();
  if (!value.known) { note.textContent = "Run the list to compare."; return; }
  const top = Math.max(value.blocks.mean, value.contiguous.mean, 1);
  for (const [way, word] of [["blocks", "in blocks"], ["contiguous", `buffers of ${value.buffer.toLocaleString("en")}`]]) {
    const bar = el("div", "pg-memory-bar"), fill = el("i");
    fill.dataset.way = way; fill.style.width = `${(value[way].mean / top) * 100}%`;
    bar.append(fill);
    bars.append(el("span", "", word), bar, el("span", "", bytes(value[way].mean)));
  }
  const ends = value.contiguous.longest === null ? "" : `With every sequence at its longest, blocks waste ${percent(value.blocks.longest)} and buffers ${percent(value.contiguous.longest)}. `;
  note.textContent = `Mean over the run; now ${bytes(value.blocks.now)} in blocks, ${bytes(value.contiguous.now)} in buffers. ` + ends
    + `One token takes ${bytes(value.bytes_per_token)} in all layers, the pool ${bytes(value.pool_bytes)}. The buffers are only computed; the blocks are the run's own.`
    + (value.too_long ? ` A sequence became longer than the buffer: such a cache could not have run it.` : "");
}
