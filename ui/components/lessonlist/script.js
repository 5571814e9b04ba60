// All guided lessons by tab, and the questions a run raises; Run opens the tab and runs the lesson there.
const { el } = window.Playground;
const root = element.querySelector(".pg-lessonlist");
function opener(label, name, tab, lesson) {
  const button = el("button", "pg-tool", label);
  if (lesson) button.dataset.lesson = lesson;
  button.setAttribute("aria-label", name);
  button.addEventListener("click", () => trigger("open_lesson", { tab, lesson }));
  return button;
}
function card(title, where, button, text) {
  const head = el("div", "pg-lessoncard-head", el("b", "", title));
  head.append(el("span", "pg-lessoncard-tab", where), button);
  const item = el("li", "pg-lessoncard", head);
  item.append(el("p", "", text));
  return item;
}
const [lessons, questions] = root.querySelectorAll("ol");
for (const { name, tab, title, question } of SPEC.lessons) {
  lessons.append(card(title, SPEC.tabs[tab], opener("Run", `run the lesson ${title}`, tab, name), question));
}
for (const { question, tab, where, lesson } of SPEC.questions) {
  questions.append(card(question, SPEC.tabs[tab], opener(lesson ? "Run" : "Open", `show: ${question}`, tab, lesson), where));
}
