// The selected step: candidates by stage as a table, and each cutoff in its own geometry.
const { el, visible, spoken, percent, fixed, quoted } = window.Playground;
const root = element.querySelector(".pg-step");
const head = root.querySelector("thead");
const body = root.querySelector("tbody");
const box = root.querySelector(".pg-table-box");
const foot = root.querySelector(".pg-table-foot");
const chartBox = root.querySelector(".pg-charts");
const SHORT = 14;
let all = false;
let active = 0; // roving tabindex of the rows

function cell(text, share, className) {
  const node = el("td", "pg-num" + (className ? " " + className : ""), text);
  if (typeof share === "number") node.style.setProperty("--share", Math.min(1, share).toFixed(4));
  return node;
}

function drawHead(value) {
  const row = el("tr");
  const add = (name, sub, title, className) => {
    const node = el("th", className || "");
    node.scope = "col";
    const label = el("span", "pg-th");
    // "after" on a line of its own, so that many stages fit side by side.
    if (name.startsWith("after ")) label.append(el("small", "", "after "), name.slice(6));
    else label.append(name);
    node.append(label, ...sub.split(" · ").map((line) => el("span", "pg-th-sub", line)));
    if (title) node.title = title;
    row.append(node);
  };
  add("token", value.rows.length ? `best ${value.rows.length}` : "", "Ordered by the model's own probability", "pg-col-token");
  add("model", "before", "Probability before any stage");
  for (const stage of value.stages) {
    const did = stage.cut_mass > 0 ? `cut ${percent(stage.cut_mass)}` : stage.changed ? "reshaped" : "no effect";
    add("after " + stage.title, `${stage.setting} · ${did}`,
      `Probability after ${stage.title} = ${stage.setting}; ${stage.kept.toLocaleString("en")} tokens still possible`,
      stage.changed ? "" : "pg-idle");
  }
  add("luck", "seeded", "Gumbel noise of this token at this position: the draw is the largest ln p + luck");
  add("ln p + luck", "largest wins", "The draw: the largest sum wins", "pg-col-total");
  head.replaceChildren(row);
}

function candidate(row, value) {
  const node = el("tr", (row.won ? "pg-won" : "") + (row.uncut ? " pg-uncut" : "") + (row.cut_by >= 0 ? " pg-cut" : ""));
  node.dataset.id = row.id;
  node.tabIndex = -1;
  const name = el("th", "pg-col-token");
  name.scope = "row";
  const text = el("span", "pg-cand");
  text.append(visible(row.label, false));
  name.append(text);
  if (row.id === value.token.id) name.append(el("span", "pg-tag", value.token.forced ? "given" : value.again ? "in text" : "drawn"));
  if (row.won && row.id !== value.token.id) name.append(el("span", "pg-tag pg-tag-now", "now"));
  if (row.uncut) name.append(el("span", "pg-tag pg-tag-warn", "won uncut"));
  node.append(name, cell(percent(row.model), row.model));
  value.stages.forEach((stage, i) => {
    if (row.cut_by === i) {
      const cut = el("td", "pg-cut-cell", `cut · ${row.margin}`);
      cut.colSpan = value.stages.length - i + 2;
      cut.title = `Cut by ${stage.title}: ${row.margin}`;
      node.append(cut);
    } else if (row.cut_by < 0 || i < row.cut_by) {
      node.append(cell(percent(row.after[i]), row.after[i], stage.changed ? "" : "pg-idle"));
    }
  });
  if (row.cut_by < 0) node.append(cell((row.luck > 0 ? "+" : "") + fixed(row.luck, 2)), cell(fixed(row.total, 2), undefined, "pg-total"));
  node.title = "Click or Enter: continue the text from here with this token";
  node.setAttribute("aria-label", `${spoken(row.label)}, model ${percent(row.model)}, ` +
    (row.cut_by >= 0 ? `cut by ${value.stages[row.cut_by].title}, ${row.margin}` : `finally ${percent(row.final)}`) +
    (row.won ? ", drawn" : "") + ". Enter branches here.");
  return node;
}

function drawRows(value) {
  const keep = all ? value.rows : value.rows.filter((row, i) => i < SHORT || row.won || row.uncut || row.id === value.token.id);
  body.replaceChildren(...keep.map((row) => candidate(row, value)));
  const rows = [...body.rows];
  active = Math.max(0, Math.min(active, rows.length - 1));
  if (rows[active]) rows[active].tabIndex = 0;
  foot.replaceChildren();
  if (value.rows.length > SHORT) {
    const more = el("button", "pg-link", all ? "show fewer" : `show all ${value.rows.length}`);
    more.type = "button";
    more.addEventListener("click", () => { all = !all; drawRows(props.value); });
    foot.append(more);
  }
  if (value.rows.length) {
    foot.append(el("span", "", `listed: ${percent(value.listed_mass)} of the model's probability`));
    if (value.num_kept !== null) foot.append(el("span", "", `${value.num_kept.toLocaleString("en")} ${value.num_kept === 1 ? "token" : "tokens"} could be drawn`));
    foot.append(el("span", "pg-foot-hint", "click a row to branch there"));
  }
}

function drawHeader(value) {
  root.querySelector(".pg-step-name").textContent = `Token ${value.index}`;
  root.querySelector(".pg-step-token").replaceChildren(quoted(value.token.label));
  root.querySelector(".pg-badge").textContent = value.again ? "re-evaluated with the knobs as they are now" : "";
  const list = root.querySelector(".pg-step-facts");
  list.replaceChildren();
  const facts = [["model", percent(value.model)], ["rank", "#" + (value.rank || "?")], ["surprise", fixed(value.surprise, 2) + " bits"],
    ["entropy", fixed(value.entropy, 2) + " bits"]];
  if (!value.again) {
    const last = value.stages[value.stages.length - 1];
    facts.splice(1, 0, [last ? "after " + last.title : "no stage on", value.final === 0 ? "cut" : percent(value.final)]);
    if (!value.token.forced) facts.push(["luck", (value.luck > 0 ? "+" : "") + fixed(value.luck, 2)]);
  }
  for (const [name, text] of facts) {
    const pair = el("div");
    pair.append(el("dt", "", name), el("dd", "", text));
    list.append(pair);
  }
  const verdict = root.querySelector(".pg-verdict");
  verdict.replaceChildren(...value.verdict.map((piece) => (piece.token !== undefined ? quoted(piece.token) : document.createTextNode(piece.text))));
  if (value.verdict.length) verdict.append(".");
  if (value.note) verdict.append(el("span", "pg-note", (value.verdict.length ? " " : "") + value.note));
}

// ---- charts: plain SVG -----------------------------------------------------------------------

const SVG = "http://www.w3.org/2000/svg";
function shape(tag, attributes, className) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (className) node.setAttribute("class", className);
  return node;
}
function words(x, y, text, className, anchor) {
  const node = shape("text", { x, y, "text-anchor": anchor || "start" }, className);
  node.textContent = text;
  return node;
}

const W = 316, H = 118, L = 6, R = 6, T = 16, B = 16;
const GEOMETRY = { ranks, staircase, ratio, band };

function frame(chart) {
  const svg = shape("svg", { viewBox: `0 0 ${W} ${H}`, role: "img" });
  svg.setAttribute("aria-label", `${chart.title} ${chart.setting}: ${chart.kept} tokens kept, ${percent(chart.cut_mass)} cut`);
  svg.append(shape("line", { x1: L, x2: W - R, y1: H - B, y2: H - B }, "pg-axis"));
  return svg;
}
function hover(node, bar) {
  const title = shape("title", {});
  title.textContent = `${spoken(bar[0])}  ${percent(bar[1])}${bar[2] ? "" : "  cut"}`;
  node.append(title);
  return node;
}
const barWidth = (count) => (W - L - R) / Math.max(count, 8);

function ranks(svg, chart) {
  const width = barWidth(chart.bars.length);
  chart.bars.forEach((bar, i) => {
    const height = Math.max(1, (bar[1] / chart.best) * (H - T - B));
    svg.append(hover(shape("rect", { x: L + i * width + 0.5, y: H - B - height, width: Math.max(1, width - 1.5), height }, bar[2] ? "pg-kept" : "pg-gone"), bar));
  });
  const x = L + Math.min(chart.line, chart.bars.length + 0.2) * width;
  svg.append(shape("line", { x1: x, x2: x, y1: T - 8, y2: H - B }, "pg-cutline"));
  const right = x > W * 0.6;
  svg.append(words(x + (right ? -4 : 4), T, chart.line_text + (chart.line > chart.bars.length ? " →" : ""), "pg-cutlabel", right ? "end" : "start"));
  svg.append(words(L, H - 4, "rank 1", "pg-ticks"), words(W - R, H - 4, `rank ${chart.bars.length}`, "pg-ticks", "end"));
}

function staircase(svg, chart) {
  const width = barWidth(chart.bars.length);
  const y = (share) => H - B - Math.min(1, share) * (H - T - B);
  let sum = 0;
  chart.bars.forEach((bar, i) => {
    const low = sum;
    sum += bar[1];
    const x = L + i * width;
    svg.append(shape("rect", { x: x + 0.5, y: y(low), width: Math.max(1, width - 1), height: H - B - y(low) }, bar[2] ? "pg-base" : "pg-base-gone"));
    svg.append(hover(shape("rect", { x: x + 0.5, y: y(sum), width: Math.max(1, width - 1), height: Math.max(1, y(low) - y(sum)) }, bar[2] ? "pg-kept" : "pg-gone"), bar));
  });
  svg.append(shape("line", { x1: L, x2: W - R, y1: y(chart.line), y2: y(chart.line) }, "pg-cutline"));
  svg.append(words(W - R, y(chart.line) - 4, chart.line_text, "pg-cutlabel", "end"));
  svg.append(words(L, H - 4, "rank 1", "pg-ticks"), words(W - R, H - 4, `${chart.tokens.toLocaleString("en")} tokens: ${percent(sum)}`, "pg-ticks", "end"));
}

function ratio(svg, chart) {
  // Log scale over the four decades below the best token, so that a ratio is a distance.
  const width = barWidth(chart.bars.length);
  const low = Math.min(-2, Math.log10(chart.line / chart.best) - 0.7);
  const y = (p) => H - B - Math.max(0.01, 1 - Math.log10(p / chart.best) / low) * (H - T - B);
  chart.bars.forEach((bar, i) => {
    const top = bar[1] > 0 ? y(bar[1]) : H - B - 1;
    svg.append(hover(shape("rect", { x: L + i * width + 0.5, y: top, width: Math.max(1, width - 1.5), height: H - B - top }, bar[2] ? "pg-kept" : "pg-gone"), bar));
  });
  svg.append(shape("line", { x1: L, x2: W - R, y1: y(chart.line), y2: y(chart.line) }, "pg-cutline"));
  svg.append(words(W - R, y(chart.line) - 4, chart.line_text, "pg-cutlabel", "end"));
  svg.append(words(L, H - 4, `best ${percent(chart.best)}`, "pg-ticks"));
}

function band(svg, chart) {
  // One stick per token at its surprise; the kept ones form a band.
  const bits = chart.bars.map((bar) => (bar[1] > 0 ? -Math.log2(bar[1]) : 40));
  const far = Math.max(4, ...bits.slice(0, 40)) + 0.5;
  const x = (b) => L + (b / far) * (W - L - R);
  const kept = bits.filter((_, i) => chart.bars[i][2]);
  if (kept.length) {
    const from = x(Math.min(...kept)) - 3, to = x(Math.max(...kept)) + 3;
    svg.append(shape("rect", { x: from, y: T, width: to - from, height: H - T - B }, "pg-band"));
  }
  chart.bars.forEach((bar, i) => {
    const height = Math.max(2, (bar[1] / chart.best) * (H - T - B));
    svg.append(hover(shape("rect", { x: x(bits[i]) - 1, y: H - B - height, width: 2, height }, bar[2] ? "pg-kept" : "pg-gone"), bar));
  });
  svg.append(words(L, H - 4, "0 bits", "pg-ticks"), words(W - R, H - 4, `${far.toFixed(1)} bits of surprise`, "pg-ticks", "end"));
}

function drawCharts(value) {
  const figures = value.charts.map((chart) => {
    const figure = el("figure", "pg-chart");
    figure.dataset.stage = chart.stage;
    const caption = el("figcaption");
    caption.append(el("b", "", `${chart.title} ${chart.setting}`),
      el("span", "", chart.cut_mass > 0 ? `keeps ${chart.kept.toLocaleString("en")}, cuts ${percent(chart.cut_mass)}` : "cuts nothing here"));
    const svg = frame(chart);
    GEOMETRY[chart.geometry](svg, chart);
    figure.append(caption, svg, el("p", "pg-reading", chart.reading));
    return figure;
  });
  if (!figures.length && value.rows.length) {
    const grammar = value.stages.find((stage) => stage.stage === "grammar");
    figures.push(el("p", "pg-none", grammar
      ? `No cut is switched on but the grammar, which allows ${grammar.kept.toLocaleString("en")} tokens here.`
      : "No cut is switched on: every token of the vocabulary can be drawn. Turn top-k, top-p or min-p to see its cutoff here."));
  }
  chartBox.replaceChildren(...figures);
}

function draw() {
  const value = props.value;
  root.hidden = !value;
  if (!value) return;
  const focused = body.contains(document.activeElement);
  const scroll = box.scrollTop;
  drawHeader(value);
  drawHead(value);
  drawRows(value);
  drawCharts(value);
  box.scrollTop = scroll;
  root.dataset.key = value.key;
  if (focused) body.rows[active]?.focus({ preventScroll: true });
}

function branch(row) {
  trigger("branch", { index: props.value.index, token_id: Number(row.dataset.id), key: props.value.key });
}

body.addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row && !String(window.getSelection())) branch(row);
});
body.addEventListener("keydown", (event) => {
  const rows = [...body.rows];
  const at = rows.indexOf(event.target.closest("tr"));
  const moves = { ArrowUp: at - 1, ArrowDown: at + 1, Home: 0, End: rows.length - 1 };
  if (event.key in moves) {
    if (moves[event.key] < 0) root.closest(".pg-panel")?.querySelector(".pg-token[tabindex='0']")?.focus();
    else {
      rows[at].tabIndex = -1;
      active = Math.min(rows.length - 1, moves[event.key]);
      rows[active].tabIndex = 0;
      rows[active].focus();
    }
  } else if (event.key === "Enter") branch(rows[at]);
  else return;
  event.preventDefault();
});
