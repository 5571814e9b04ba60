// Helpers of all components. Text from users and models only ever becomes text nodes here.
window.Playground = (() => {
  const STOP_MS = 6000;
  const MARKS = { " ": "·", "\n": "↵", "\t": "→", "\r": "␍", "\u00a0": "⍽" };

  function el(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function isHidden(char) {
    const code = char.codePointAt(0);
    return code < 32 || code === 127 || (code >= 0x200b && code <= 0x200f) || code === 0xfeff ||
      (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code === 0xad;
  }

  // The label as nodes: plain runs as text, whitespace and unprintable characters as visible marks.
  function visible(label, breakLines) {
    const out = document.createDocumentFragment();
    let run = "";
    const flush = () => { if (run) out.append(run); run = ""; };
    for (const char of label) {
      if (MARKS[char]) {
        flush();
        // A space stays a space, so that lines can break there; its mark is drawn over it.
        out.append(char === " " ? el("span", "pg-mark pg-space", " ") : el("span", "pg-mark", MARKS[char]));
        if (breakLines && char === "\n") out.append(document.createElement("br"));
      } else if (isHidden(char)) {
        flush();
        out.append(el("span", "pg-mark pg-code", "U+" + char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")));
      } else run += char;
    }
    flush();
    if (!label) out.append(el("span", "pg-mark", "∅"));
    return out;
  }

  // The label as one line of text, for aria-label.
  function spoken(label) {
    return label.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/^ /, "␣") || "empty";
  }

  function percent(value) {
    if (typeof value !== "number") return String(value);
    const p = value * 100;
    if (p === 0) return "0 %";
    if (p < 0.001) return "<0.001 %";
    if (p < 1) return Number(p.toPrecision(2)) + " %";
    return (p >= 99.95 && p < 100 ? ">99.9" : p.toFixed(1)) + " %";
  }

  function fixed(value, digits) {
    return typeof value === "number" ? value.toFixed(digits) : String(value);
  }

  function quoted(label) {
    const node = el("span", "pg-quoted");
    node.append(visible(label, false));
    return node;
  }

  // Wait for a script that loads beside the page.
  function when(test, then) {
    if (test()) then(); else setTimeout(() => when(test, then), 60);
  }

  // CSS variables for libraries that take only literal colours.
  function resolve(value, style) {
    if (typeof value === "string") {
      const match = /^var\((--[\w-]+)\)$/.exec(value);
      return match ? style.getPropertyValue(match[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolve(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, style)]));
    }
    return value;
  }

  // [name, value] pairs as nodes of a status line; of those in `counts` the value stands first.
  function facts(pairs, counts = []) {
    return pairs.map(([name, text]) => {
      const fact = el("span", "pg-fact");
      fact.dataset.fact = name;
      fact.append(...(counts.includes(name) ? [el("b", "", text), " " + name] : [name + " ", el("b", "", text)]));
      return fact;
    });
  }

  // A component's `watch` that keeps the newest picture and draws it once: see ui/order.py. Values without a
  // number always pass.
  function inOrder(props, watch) {
    const content = (value) => (value?.drawn === undefined ? null : JSON.stringify({ ...value, drawn: 0 }));
    let newest = props.value, shown = content(newest);
    return (names, callback) => watch(names, () => {
      if (props.value?.drawn < newest?.drawn) {
        props.value = newest;
        return;
      }
      newest = props.value;
      const now = content(newest);
      if (now !== null && now === shown) return;
      shown = now;
      callback();
    });
  }

  // Ctrl or Cmd with Enter runs, Escape stops, wherever the focus is.
  document.addEventListener("keydown", (event) => {
    const panel = [...document.querySelectorAll(".pg-panel")].find((node) => node.offsetParent !== null);
    if (!panel) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      event.stopPropagation();
      document.activeElement?.blur?.();
      panel.querySelector(".pg-run")?.click();
    } else if (event.key === "Escape" && !document.body.classList.contains("pg-knobs-open")) {
      panel.querySelector(".pg-stop:not([disabled])")?.click();
    }
  }, true);

  // A stop takes until the end of the step under way; the button says so until it can no longer be pressed.
  document.addEventListener("click", (event) => {
    const stop = event.target.closest?.(".pg-stop:not([disabled]):not([aria-busy])");
    if (!stop) return;
    stop.setAttribute("aria-busy", "true");
    const late = Date.now() + STOP_MS; // another run may have taken over, then it stays pressable
    when(() => stop.disabled || !stop.isConnected || Date.now() > late, () => stop.removeAttribute("aria-busy"));
  });

  return { el, visible, spoken, percent, fixed, quoted, when, resolve, inOrder, facts };
})();
