// The lanes of a comparison as a table of numbers. The value belongs to the reader; the server replaces it with a new `number`.
const { el } = window.Playground;
const root = element.querySelector(".pg-lanes");
const head = root.querySelector("thead"), body = root.querySelector("tbody");
const columns = [...SPEC.knobs, { name: "num_beams", title: "beams", step: 1, neutral: 1 }];
let values = {}, accepted = null;

const title = el("tr", "", el("th", "", ""), ...columns.map((knob) => el("th", "", knob.title)), el("th", "", "order"), el("th", "", ""));
head.append(title);

function commit(change) {
  values = { ...values, ...change };
  props.value = { ...props.value, values };
}
function setLane(place, lane) {
  commit({ lanes: values.lanes.map((old, i) => (i === place ? lane : old)) });
  marks();
}
const at = (lane, knob) => lane[knob.name] ?? knob.neutral;

function row(lane, place) {
  const line = el("tr");
  line.dataset.lane = place;
  const name = el("th", "pg-lane-name", "ABCDEFGH"[place]);
  name.style.setProperty("--lane", `var(--pg-lane-${place})`);
  line.append(name);
  for (const knob of columns) {
    const cell = el("td"), input = el("input");
    input.type = "number"; input.step = knob.step; input.min = knob.name.endsWith("_penalty") ? -10 : 0;
    input.value = at(lane, knob);
    input.dataset.knob = knob.name;
    input.setAttribute("aria-label", `lane ${name.textContent}: ${knob.title}`);
    input.addEventListener("input", () => {
      if (Number.isNaN(input.valueAsNumber)) return;
      const next = { ...values.lanes[place], [knob.name]: input.valueAsNumber };
      if (next[knob.name] === knob.neutral) delete next[knob.name];
      setLane(place, next);
    });
    input.addEventListener("blur", () => { input.value = at(values.lanes[place] || {}, knob); });
    cell.append(input);
    line.append(cell);
  }
  const order = el("select"), holder = el("td");
  order.dataset.knob = "order";
  order.setAttribute("aria-label", `lane ${name.textContent}: order of the stages`);
  for (const [value, text] of [["", "as knobs"], ...SPEC.orders.map((item) => [item, item])]) order.append(new Option(text, value));
  order.value = lane.order || "";
  order.addEventListener("change", () => {
    const next = { ...values.lanes[place], order: order.value };
    if (!order.value) delete next.order;
    setLane(place, next);
  });
  holder.append(order);
  line.append(holder);
  const tools = el("td", "pg-lane-tools");
  const take = el("button", "pg-tool", "← knobs"), drop = el("button", "pg-tool", "×");
  take.type = drop.type = "button";
  take.title = "Put the knobs on the left into this lane";
  take.dataset.act = "take";
  take.addEventListener("click", () => trigger("take", { lane: place }));
  drop.dataset.act = "drop";
  drop.setAttribute("aria-label", `remove lane ${name.textContent}`);
  drop.disabled = values.lanes.length <= SPEC.min_lanes;
  drop.addEventListener("click", () => { commit({ lanes: values.lanes.filter((_, i) => i !== place) }); rows(); });
  tools.append(take, drop);
  line.append(tools);
  return line;
}

// What differs from lane A is marked: that is the knob being compared.
function marks() {
  for (const input of body.querySelectorAll("input")) {
    const knob = columns.find((item) => item.name === input.dataset.knob);
    const lane = values.lanes[Number(input.closest("tr").dataset.lane)] || {};
    input.classList.toggle("pg-off", at(lane, knob) === knob.neutral);
    input.classList.toggle("pg-differs", at(lane, knob) !== at(values.lanes[0], knob));
  }
}
function rows() {
  body.replaceChildren(...values.lanes.map(row));
  root.querySelector("[data-act=add]").disabled = values.lanes.length >= SPEC.max_lanes;
  marks();
}
root.querySelector("[data-act=add]").addEventListener("click", () => {
  commit({ lanes: [...values.lanes, { ...values.lanes[values.lanes.length - 1] }] });
  rows();
  body.lastChild.querySelector("input").focus();
});
const limit = root.querySelector("[data-field=max_new_tokens]"), human = root.querySelector("[data-field=human]");
limit.max = SPEC.max_tokens;
limit.addEventListener("input", () => { if (!Number.isNaN(limit.valueAsNumber)) commit({ max_new_tokens: limit.valueAsNumber }); });
limit.addEventListener("blur", () => { limit.value = values.max_new_tokens; });
human.addEventListener("input", () => commit({ human: human.value }));

function draw() {
  const value = props.value || {};
  if (value.values && value.number !== accepted) {
    accepted = value.number;
    values = { ...value.values, lanes: Array.isArray(value.values.lanes) ? value.values.lanes.filter((lane) => lane && typeof lane === "object") : [] };
    limit.value = values.max_new_tokens;
    human.value = values.human;
    rows();
  }
  root.querySelector(".pg-fields-note").textContent = value.note || "";
  if (value.values !== values) props.value = { ...value, values };
}
