// The knobs. props.value.settings belongs to the reader; the server sends activity and, for presets and
// links, whole settings with a new `number`.
const { el } = window.Playground;
const root = element.querySelector(".pg-knobs");
const spec = SPEC;
const controls = {};
let settings = { ...spec.defaults };
let accepted = null;
let timer = null;

function shown(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : "";
}

function commit() {
  props.value = { ...props.value, settings };
  clearTimeout(timer);
  timer = setTimeout(() => trigger("turn", {}), 90);
}

function set(name, value) {
  settings = { ...settings, [name]: value };
  matchPreset();
  commit();
}

// The preset whose every setting is in place, else "custom".
function matchPreset() {
  const equal = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  const match = (spec.presets || []).find((preset) => Object.entries(preset.settings).every(([name, value]) => equal(settings[name], value)));
  const select = root.querySelector("#pg-preset");
  const chosen = (spec.presets || []).find((preset) => preset.name === select.value);
  const still = chosen && Object.entries(chosen.settings).every(([name, value]) => equal(settings[name], value));
  if (!still) select.value = match ? match.name : "";
  about();
}

function about() {
  const preset = (spec.presets || []).find((item) => item.name === root.querySelector("#pg-preset").value);
  root.querySelector(".pg-preset-about").textContent = preset ? preset.about : "";
}

// ---- numbers ---------------------------------------------------------------------------------

function fill(slider) {
  const share = (slider.value - slider.min) / (slider.max - slider.min);
  slider.style.setProperty("--fill", `${Math.max(0, Math.min(1, share)) * 100}%`);
}

function addKnob(knob, group) {
  const row = el("div", "pg-knob");
  row.dataset.stage = knob.name;
  row.title = knob.hint;
  const label = el("label", "", knob.title);
  label.htmlFor = `pg-knob-${knob.name}`;
  const field = el("input", "pg-knob-number");
  field.type = "number"; field.id = label.htmlFor; field.step = "any"; field.setAttribute("aria-label", `${knob.title}, exact value`);
  const slider = el("input", "pg-slider");
  slider.type = "range"; slider.min = knob.low; slider.max = knob.high; slider.step = knob.step;
  slider.setAttribute("aria-label", knob.title);
  const acts = el("div", "pg-acts");
  acts.setAttribute("aria-live", "polite");
  row.append(label, field, slider, acts);
  group.append(row);
  slider.addEventListener("input", () => { field.value = shown(Number(slider.value)); fill(slider); mark(); set(knob.name, Number(slider.value)); });
  // An emptied or unfinished field is not sent: the setting keeps its last value until a number is there.
  field.addEventListener("input", () => {
    const value = field.valueAsNumber;
    row.classList.toggle("pg-bad", Number.isNaN(value));
    if (Number.isNaN(value)) return;
    slider.value = value; fill(slider); mark(value); set(knob.name, value);
  });
  field.addEventListener("blur", () => { row.classList.remove("pg-bad"); field.value = shown(settings[knob.name]); });
  const mark = (value = Number(slider.value)) => row.classList.toggle("pg-off", value === knob.neutral);
  controls[knob.name] = (value) => { field.value = shown(value); slider.value = value; fill(slider); mark(value); };
}

for (const name of [...new Set(spec.knobs.map((knob) => knob.group))]) {
  const group = el("fieldset", "pg-group");
  const legend = el("legend", "", name);
  const reset = el("button", "pg-link", "switch off");
  reset.type = "button";
  reset.setAttribute("aria-label", `Switch off all of ${name}`);
  reset.addEventListener("click", () => {
    for (const knob of spec.knobs.filter((item) => item.group === name)) {
      settings = { ...settings, [knob.name]: knob.neutral };
      controls[knob.name](knob.neutral);
    }
    matchPreset();
    commit();
  });
  legend.append(reset);
  group.append(legend);
  spec.knobs.filter((knob) => knob.group === name).forEach((knob) => addKnob(knob, group));
  root.querySelector(".pg-knob-groups").append(group);
}

// ---- order -----------------------------------------------------------------------------------

const orderSelect = root.querySelector('[data-part="order"]');
const orderList = root.querySelector(".pg-order ol");
for (const name of [...Object.keys(spec.orders), "custom"]) orderSelect.append(new Option(name, name));

function currentOrder() {
  return Array.isArray(settings.order) ? settings.order : spec.orders[settings.order || "default"];
}
function isOn(stage) {
  const knob = spec.knobs.find((item) => item.name === stage);
  return knob ? settings[stage] !== knob.neutral : Object.keys(settings.logit_bias || {}).length > 0;
}
function drawOrder(focus) {
  orderSelect.value = Array.isArray(settings.order) ? "custom" : settings.order || "default";
  root.querySelector(".pg-order-name").textContent = orderSelect.value;
  const order = currentOrder();
  orderList.replaceChildren(...order.map((stage, i) => {
    const item = el("li", isOn(stage) ? "" : "pg-off");
    item.append(el("span", "", spec.titles[stage]));
    for (const [sign, step, word] of [["↑", -1, "earlier"], ["↓", 1, "later"]]) {
      const button = el("button", "", sign);
      button.type = "button";
      button.setAttribute("aria-label", `${spec.titles[stage]} ${word}`);
      button.disabled = i + step < 0 || i + step >= order.length;
      button.addEventListener("click", () => {
        const next = [...order];
        [next[i], next[i + step]] = [next[i + step], next[i]];
        set("order", next);
        drawOrder([stage, step]);
      });
      item.append(button);
      if (focus && focus[0] === stage && focus[1] === step) queueMicrotask(() => button.focus());
    }
    return item;
  }));
}
orderSelect.addEventListener("change", () => {
  set("order", orderSelect.value === "custom" ? [...currentOrder()] : orderSelect.value === "default" ? null : orderSelect.value);
  drawOrder();
});

// ---- run -------------------------------------------------------------------------------------

function setting(name) { return root.querySelector(`[data-setting="${name}"]`); }
const stopText = (stop) => stop.map((text) => text.replace(/\\/g, "\\\\").replace(/\n/g, "\\n")).join("\n");
const stopList = (text) => text.split("\n").filter(Boolean)
  .map((line) => line.replace(/\\(\\|n|t)/g, (_, c) => ({ n: "\n", t: "\t", "\\": "\\" })[c]));
const biasText = (bias) => Object.entries(bias).map(([id, value]) => `${id}: ${value}`).join("\n");
function biasMap(text) {
  const out = {};
  for (const part of text.split(/[\n,;]/)) {
    if (!part.trim()) continue;
    const at = part.lastIndexOf(":");
    const value = part.slice(at + 1).trim();
    // What is no number goes through as text, so that the refusal can name it.
    out[at < 0 ? part.trim() : part.slice(0, at).trim()] = at < 0 || value === "" || Number.isNaN(Number(value)) ? value : Number(value);
  }
  return out;
}
for (const name of ["max_new_tokens", "seed"]) {
  setting(name).addEventListener("input", (event) => set(name, event.target.value === "" ? (name === "seed" ? null : spec.defaults[name]) : event.target.valueAsNumber));
}
setting("chat").addEventListener("change", (event) => set("chat", event.target.checked));
setting("stop").addEventListener("input", (event) => set("stop", stopList(event.target.value)));
setting("logit_bias").addEventListener("input", (event) => { set("logit_bias", biasMap(event.target.value)); drawOrder(); });

// ---- presets ---------------------------------------------------------------------------------

const presetSelect = root.querySelector("#pg-preset");
presetSelect.append(new Option("custom", ""));
const groups = new Map();
for (const preset of spec.presets || []) {
  if (!groups.has(preset.group)) {
    const group = document.createElement("optgroup");
    group.label = preset.group;
    groups.set(preset.group, group);
    presetSelect.append(group);
  }
  groups.get(preset.group).append(new Option(preset.title, preset.name));
}
presetSelect.addEventListener("change", () => {
  const preset = (spec.presets || []).find((item) => item.name === presetSelect.value);
  if (!preset) return;
  settings = { ...settings, ...preset.settings };
  show();
  about();
  commit();
});

// ---- drawing ---------------------------------------------------------------------------------

function show() {
  for (const knob of spec.knobs) controls[knob.name](settings[knob.name]);
  setting("max_new_tokens").value = settings.max_new_tokens;
  setting("seed").value = settings.seed ?? "";
  setting("chat").checked = Boolean(settings.chat);
  setting("stop").value = stopText(settings.stop || []);
  setting("logit_bias").value = biasText(settings.logit_bias || {});
  drawOrder();
}

function draw() {
  const value = props.value || {};
  if (value.settings && value.number !== accepted) {
    accepted = value.number;
    settings = { ...spec.defaults, ...value.settings };
    show();
    matchPreset();
  }
  for (const row of root.querySelectorAll(".pg-knob")) {
    const line = (value.activity || {})[row.dataset.stage] || "";
    row.querySelector(".pg-acts").textContent = line;
    row.classList.toggle("pg-acted", line !== "" && line !== "never fired");
  }
  for (const item of orderList.children) item.classList.toggle("pg-off", false);
  drawOrderMarks();
  if (!value.settings || value.settings !== settings) props.value = { ...value, settings };
}
function drawOrderMarks() {
  [...orderList.children].forEach((item, i) => item.classList.toggle("pg-off", !isOn(currentOrder()[i])));
}

root.addEventListener("input", drawOrderMarks);
show();
