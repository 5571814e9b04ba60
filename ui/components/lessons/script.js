// Lessons of a tab as buttons; the chosen one says what to look for.
const { el } = window.Playground;
const root = element.querySelector(".pg-lessons");
const bar = root.querySelector(".pg-lessons-bar"), look = root.querySelector(".pg-lessons-look");
root.hidden = SPEC.length === 0;
for (const lesson of SPEC) {
  const button = el("button", "pg-tool", lesson.title);
  button.dataset.lesson = lesson.name;
  button.addEventListener("click", () => trigger("choose", { lesson: lesson.name }));
  bar.append(button);
}
function draw() {
  const chosen = SPEC.find((lesson) => lesson.name === props.value?.chosen);
  for (const button of bar.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.lesson === chosen?.name));
  const ask = root.querySelector(".pg-lessons-ask");
  ask.hidden = !chosen?.question;
  if (ask.dataset.lesson !== chosen?.name) { ask.open = false; ask.dataset.lesson = chosen?.name || ""; }
  ask.querySelector("summary").textContent = chosen?.question || "";
  ask.querySelector("p").textContent = chosen?.answer || "";
  look.hidden = !chosen;
  look.textContent = chosen ? chosen.look_for : "";
}
