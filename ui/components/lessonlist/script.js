// All guided lessons; Open puts one in place in the tab where it runs.
const { el } = window.Playground;
const root = element.querySelector(".pg-lessonlist"), list = root.querySelector("ol");
const TABS = { compare: "Compare", beams: "Beams", samples: "Samples", structure: "Structure" };
for (const lesson of SPEC) {
  const item = el("li", "pg-lessoncard"), head = el("div", "pg-lessoncard-head"), open = el("button", "pg-tool", "Open");
  open.dataset.lesson = lesson.name;
  open.setAttribute("aria-label", `open the lesson ${lesson.title}`);
  open.addEventListener("click", () => trigger("open_lesson", { lesson: lesson.name }));
  head.append(el("b", "", lesson.title), el("span", "pg-lessoncard-tab", TABS[lesson.tab] || lesson.tab), open);
  item.append(head);
  if (lesson.question) {
    const ask = el("details", "", el("summary", "", lesson.question), el("p", "", lesson.answer));
    item.append(ask);
  } else item.append(el("p", "", lesson.look_for));
  list.append(item);
}
