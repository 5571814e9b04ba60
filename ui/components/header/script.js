// The header: model and loading progress, share and export, theme, and the knobs drawer of small screens.
const root = element.querySelector(".pg-header");
const load = root.querySelector(".pg-load");
const toast = root.querySelector(".pg-toast");
const opener = root.querySelector(".pg-open-knobs");
const file = root.querySelector(".pg-file");
const LARGEST = 30000000; // bytes of a trace file
let shown = null;

function draw(value) {
  root.querySelector(".pg-model-name").textContent = value.model || "";
  root.querySelector(".pg-model-facts").textContent = (value.facts || []).join(" · ");
  load.hidden = !value.loading && !value.error;
  load.classList.toggle("pg-error", Boolean(value.error));
  load.querySelector("span").textContent = value.error || value.loading || "";
  load.querySelector("i").hidden = Boolean(value.error);
  load.querySelector("b").style.width = `${(value.fraction || 0) * 100}%`;
  if (value.link && value.link_number !== shown) {
    shown = value.link_number;
    share(value.link, value.link_note);
  }
}

// `note`: what of the screen the link cannot carry.
async function share(query, note) {
  const address = `${location.origin}${location.pathname}?${query}`;
  history.replaceState(null, "", address);
  let copied = true;
  try { await navigator.clipboard.writeText(address); } catch { copied = false; }
  say([copied ? "Link copied; it is also in the address bar." : "The link is in the address bar.", note].join(" ").trim());
}

function say(text) {
  toast.textContent = text;
  toast.hidden = false;
  setTimeout(() => { toast.hidden = true; }, 3000 + 60 * text.length);
}

function setTheme(dark) {
  document.body.classList.toggle("dark", dark);
  document.documentElement.style.colorScheme = dark ? "dark" : "light";
}
let stored = null;
try { stored = localStorage.getItem("pg-theme"); } catch { /* storage may be blocked */ }
if (stored) setTheme(stored === "dark");

root.addEventListener("click", (event) => {
  const action = event.target.closest("button")?.dataset.do;
  if (action === "theme") {
    const dark = !document.body.classList.contains("dark");
    setTheme(dark);
    try { localStorage.setItem("pg-theme", dark ? "dark" : "light"); } catch { /* as above */ }
  } else if (action === "share") trigger("make_link", {});
  else if (action === "open") file.click();
  else if (action === "export_json") trigger("export_json", {});
  else if (action === "export_text") trigger("export_text", {});
});

file.addEventListener("change", async () => {
  const chosen = file.files[0];
  file.value = "";
  if (!chosen) return;
  if (chosen.size > LARGEST) say(`${chosen.name} has ${chosen.size.toLocaleString("en")} bytes, at most ${LARGEST.toLocaleString("en")} are read.`);
  else trigger("open_trace", { text: await chosen.text() });
});

function drawer(open) {
  document.body.classList.toggle("pg-knobs-open", open);
  opener.setAttribute("aria-expanded", String(open));
  opener.textContent = open ? "✕" : "☰";
}
opener.addEventListener("click", () => drawer(!document.body.classList.contains("pg-knobs-open")));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.body.classList.contains("pg-knobs-open")) { drawer(false); opener.focus(); }
});
document.addEventListener("mousedown", (event) => {
  if (document.body.classList.contains("pg-knobs-open") && !event.target.closest("#pg-side, .pg-open-knobs")) drawer(false);
});
