// A row of labelled inputs. props.value.values belongs to the reader; the server replaces it with a new `number`.
// A field with `unless: {other: value}` is shown only while the other field does not hold that value.
const { el } = window.Playground;
const root = element.querySelector(".pg-fields");
const inputs = {};
let values = {};
let accepted = null;
let timer = null;

function commit(name, value) {
  values = { ...values, [name]: value };
  hide();
  props.value = { ...props.value, values };
  clearTimeout(timer);
  timer = setTimeout(() => trigger("turn", {}), 90);
}

function typed(spec, label, tag, className) {
  const field = el(tag);
  if (tag === "input") field.type = "text"; else field.rows = spec.rows || 8;
  field.placeholder = spec.placeholder || ""; field.spellcheck = false;
  field.addEventListener("input", () => commit(spec.name, field.value));
  label.append(field);
  label.classList.add(className);
  return (value) => { field.value = value; };
}

const makers = {
  number(spec, label) {
    const field = el("input");
    field.type = "number"; field.step = spec.step ?? "any"; field.min = spec.min; field.max = spec.max;
    field.addEventListener("input", () => { if (!Number.isNaN(field.valueAsNumber)) commit(spec.name, field.valueAsNumber); });
    field.addEventListener("blur", () => { field.value = values[spec.name]; });
    label.append(field);
    return (value) => { field.value = value; };
  },
  text: (spec, label) => typed(spec, label, "input", "pg-field-wide"),
  area: (spec, label) => typed(spec, label, "textarea", "pg-field-area"),
  select(spec, label) {
    const field = el("select");
    for (const [value, title] of spec.options) field.append(new Option(title, value));
    field.addEventListener("change", () => commit(spec.name, field.value));
    label.append(field);
    return (value) => { field.value = value; };
  },
  check(spec, label) {
    const field = el("input");
    field.type = "checkbox";
    field.addEventListener("change", () => commit(spec.name, field.checked));
    label.classList.add("pg-check");
    label.prepend(field);
    return (value) => { field.checked = Boolean(value); };
  },
};

for (const spec of SPEC) {
  const label = el("label", "pg-field");
  label.title = spec.hint || "";
  label.append(el("span", "", spec.title));
  const set = makers[spec.kind](spec, label);
  label.querySelector("input, select, textarea").dataset.field = spec.name;
  inputs[spec.name] = set;
  label.dataset.name = spec.name;
  root.append(label);
}
const note = el("p", "pg-fields-note");
note.setAttribute("role", "status");
root.append(note);

function hide() {
  for (const spec of SPEC) {
    const idle = Object.entries(spec.unless || {}).some(([name, value]) => values[name] === value);
    root.querySelector(`[data-name="${spec.name}"]`).hidden = idle;
  }
}

function draw() {
  const value = props.value || {};
  if (value.values && value.number !== accepted) {
    accepted = value.number;
    values = { ...value.values };
    for (const [name, set] of Object.entries(inputs)) set(values[name]);
    hide();
  }
  // What the engine cannot serve is greyed; the reason stands on the field and under the row.
  const lacking = Object.entries(value.lacking || {});
  for (const [name, reason] of lacking) {
    const label = root.querySelector(`[data-name="${name}"]`);
    label.title = reason;
    label.classList.add("pg-field-lacking");
    label.querySelector("input, select, textarea").disabled = true;
  }
  note.textContent = [value.note, ...lacking.map(([, reason]) => reason)].filter(Boolean).join(" ");
  note.hidden = !note.textContent;
  if (value.values !== values) props.value = { ...value, values };
}
