// Lessons of a tab as buttons. The chosen one asks; once its run has ended, what was measured and why.
const { el } = window.Playground;
const root = element.querySelector(".pg-lessons");
const bar = root.querySelector(".pg-lessons-bar"), ask = root.querySelector(".pg-lessons-ask");
root.hidden = SPEC.length === 0;
for (const lesson of SPEC) {
  const button = el("button", "pg-tool", lesson.title);
  button.dataset.lesson = lesson.name;
  button.title = lesson.question;
  button.addEventListener("click", () => trigger("choose", { lesson: lesson.name }));
  bar.append(button);
}
function draw() {
  const { chosen: name, running, found } = props.value || {};
  const chosen = SPEC.find((lesson) => lesson.name === name);
  for (const button of bar.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.lesson === chosen?.name));
  ask.hidden = !chosen;
  ask.classList.toggle("pg-told", Boolean(found));
  if (!chosen) return;
  const told = ask.querySelector(".pg-lessons-told");
  ask.querySelector("p").textContent = chosen.question;
  told.replaceChildren();
  if (!found) {
    told.append(el("p", "pg-lessons-wait", running ? "Running. What it shows is told at its end." : "Click it again to run it and read what it shows."));
    return;
  }
  const list = el("ul");
  for (const [holds, text] of found) {
    const mark = el("span", "pg-lessons-mark", holds ? "✓" : "✗");
    mark.setAttribute("aria-label", holds ? "as the lesson says:" : "not as the lesson says:");
    const row = el("li", "", mark);
    row.dataset.holds = holds;
    row.append(text);
    list.append(row);
  }
  told.append(list, el("p", "", chosen.look_for), el("p", "", chosen.answer));
  if (found.some(([holds]) => !holds)) told.append(el("p", "pg-stale", "Not all of it shows with this model and these settings."));
}
