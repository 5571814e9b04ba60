// Settings as code, one engine at a time; the texts are data, switching among them needs no server.
const { el } = window.Playground;
const root = element.querySelector(".pg-codes");
const part = (query) => root.querySelector(query);
const tabs = part(".pg-segment");
const NAMES = { transformers: "transformers", vllm: "vLLM", "llama.cpp-server": "llama.cpp server", "llama.cpp-cli": "llama.cpp command", openai: "OpenAI-style" };
let chosen = "transformers";

const mark = Playground.radios(tabs, "target", (name) => { chosen = name; draw(props.value); }, NAMES);
part("[data-act=copy]").addEventListener("click", async () => {
  const said = part(".pg-codes-said");
  try { await navigator.clipboard.writeText(part(".pg-codes-text").textContent); said.textContent = "Copied."; } catch { said.textContent = "The browser does not allow copying here; select the text instead."; }
});
part("[data-act=read]").addEventListener("click", () => trigger("read_settings", { text: part("textarea").value }));

function draw(value) {
  mark(chosen);
  Playground.say(root, value);
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
