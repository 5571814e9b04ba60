// Lanes under each other: what they share is dim, the first token that differs from lane A is boxed. Patched in place.
const { el, visible, percent, quoted } = window.Playground;
const root = element.querySelector(".pg-compare");
const part = (query) => root.querySelector(query);
const list = part(".pg-compare-lanes");
let number = null, cards = [], table = "";

part("[data-act=csv]").addEventListener("click", () => trigger("csv", {}));

function card(place) {
  const node = el("li", "pg-lane");
  node.style.setProperty("--lane", `var(--pg-lane-${place})`);
  const head = el("div", "pg-lane-head"), text = el("div", "pg-lane-text"), why = el("p", "pg-lane-why");
  head.append(el("span", "pg-lane-badge"), el("span", "pg-lane-summary"));
  text.setAttribute("role", "group");
  node.append(head, text, why);
  list.append(node);
  text.addEventListener("click", (event) => {
    const token = event.target.closest(".pg-lane-token");
    if (token && !node.dataset.human) trigger("open_lane", { lane: place, index: Number(token.dataset.index) });
  });
  text.addEventListener("keydown", (event) => {
    const token = event.target.closest(".pg-lane-token");
    const next = token && { ArrowRight: token.nextElementSibling, ArrowLeft: token.previousElementSibling }[event.key];
    if (next) { token.tabIndex = -1; next.tabIndex = 0; next.focus(); event.preventDefault(); } else if (token && (event.key === "Enter" || event.key === " ")) { token.click(); event.preventDefault(); }
  });
  return { node, badge: head.firstChild, summary: head.lastChild, text, why, count: 0, said: "" };
}

function drawLane(shape, lane) {
  shape.badge.textContent = lane.name;
  shape.summary.textContent = lane.summary;
  if (lane.human) shape.node.dataset.human = "1"; else delete shape.node.dataset.human;
  shape.node.dataset.lane = lane.name;
  if (shape.count > lane.tokens.length) { shape.text.replaceChildren(); shape.count = 0; }
  lane.tokens.slice(shape.count).forEach(([label, p, rank, special], i) => {
    const token = el("span", "pg-lane-token" + (special ? " pg-special" : ""), special ? label : visible(label, false, true));
    token.dataset.index = shape.count + i;
    token.tabIndex = shape.count + i === 0 ? 0 : -1;
    token.setAttribute("role", lane.human ? "text" : "button");
    token.style.setProperty("--heat", (1 - Math.sqrt(p)).toFixed(3));
    token.title = `${percent(p)}, rank ${rank}${lane.human ? "" : "; click to look into it"}`;
    shape.text.append(token);
  });
  shape.count = lane.tokens.length;
  [...shape.text.children].forEach((token, i) => {
    token.classList.toggle("pg-shared", lane.apart !== null && i < lane.apart);
    token.classList.toggle("pg-apart", i === lane.apart);
  });
  const said = JSON.stringify(lane.sentence);
  if (said === shape.said) return;
  shape.said = said;
  shape.why.replaceChildren(...lane.sentence.map((piece) => (piece.token === undefined ? document.createTextNode(piece.text) : quoted(piece.token))));
}

function drawTable(value) {
  const now = JSON.stringify(value.lanes.map((lane) => [lane.name, lane.row]));
  if (now === table) return;
  table = now;
  const head = el("tr", "", el("th", "", ""), ...value.columns.map(([name, about]) => { const cell = el("th", "", name); cell.title = about; return cell; }));
  part("thead").replaceChildren(head);
  part("tbody").replaceChildren(...value.lanes.map((lane, place) => {
    const line = el("tr"), name = el("th", "pg-lane-badge", lane.name);
    if (!lane.human) name.style.setProperty("--lane", `var(--pg-lane-${place})`);
    line.dataset.lane = lane.name;
    line.append(name, ...lane.row.map((text, i) => { const cell = el("td", "", text); cell.dataset.column = value.columns[i][0]; return cell; }));
    return line;
  }));
}

function draw(value) {
  if (value.number !== number) { number = value.number; list.replaceChildren(); cards = []; }
  Playground.say(root, value);
  root.classList.toggle("pg-explained", value.lanes.length > 1 && value.lanes.slice(1).every((lane) => lane.human || lane.sentence.length));
  part(".pg-facts").textContent = value.seed === null ? "" : `seed ${value.seed}, the same for all lanes`;
  const some = value.lanes.length > 0;
  part(".pg-compare-empty").hidden = some;
  part(".pg-compare-scroll").hidden = part("[data-act=csv]").hidden = !some;
  value.lanes.forEach((lane, i) => drawLane(cards[i] ||= card(i), lane));
  drawTable(value);
  const figure = part(".pg-compare-curves");
  figure.hidden = !value.figure;
  if (value.figure) Playground.plot(part(".pg-compare-plot"), value.figure);
}
Playground.redraw(root, props, draw);
