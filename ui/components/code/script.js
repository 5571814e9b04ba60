// Settings as code, one engine at a time; the texts are data, switching among them needs no server.
const { el } = window.Playground;
const root = element.querySelector(".pg-codes");
const part = (query) => root.querySelector(query);
const tabs = part(".pg-segment");
const NAMES = { transformers: "transformers", vllm: "vLLM", "llama.cpp-server": "llama.cpp server", "llama.cpp-cli": "llama.cpp command", openai: "OpenAI-style" };
let chosen = "transformers";

for (const [name, title] of Object.entries(NAMES)) {
  const button = el("button", "", title);
  button.type = "button";
  button.setAttribute("role", "radio");
  button.dataset.target = name;
  button.addEventListener("click", () => { chosen = name; draw(); });
  tabs.append(button);
}
tabs.addEventListener("keydown", (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  const names = Object.keys(NAMES);
  chosen = names[(names.indexOf(chosen) + (event.key === "ArrowRight" ? 1 : names.length - 1)) % names.length];
  draw();
  tabs.querySelector(`[data-target="${chosen}"]`).focus();
  event.preventDefault();
});
part("[data-act=copy]").addEventListener("click", async () => {
  const said = part(".pg-codes-said");
  try { await navigator.clipboard.writeText(part(".pg-codes-text").textContent); said.textContent = "Copied."; } catch { said.textContent = "The browser does not allow copying here; select the text instead."; }
});
part("[data-act=read]").addEventListener("click", () => trigger("read_settings", { text: part("textarea").value }));

function draw() {
  const value = props.value;
  if (!value) return;
  for (const button of tabs.children) {
    button.setAttribute("aria-checked", String(button.dataset.target === chosen));
    button.tabIndex = button.dataset.target === chosen ? 0 : -1;
  }
  part(".pg-notice").hidden = !value.notice;
  part(".pg-notice").textContent = value.notice;
  const snippet = value.snippets.find((item) => item.name === chosen);
  part(".pg-codes-title").textContent = snippet ? snippet.title : "";
  const text = part(".pg-codes-text");
  if (snippet && text.textContent !== snippet.code) text.textContent = snippet.code;
  text.hidden = !snippet;
  const notes = part(".pg-codes-notes");
  notes.hidden = !snippet || snippet.notes.length === 0;
  part("ul").replaceChildren(...(snippet ? snippet.notes : []).map((note) => el("li", "", note)));
  part(".pg-codes-imported").textContent = value.said;
}
watch("value", draw);
draw();
