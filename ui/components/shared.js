// Helpers of all components. Text from users and models only ever becomes text nodes here.
window.Playground = (() => {
  const STOP_MS = 6000;
  const MARKS = { " ": "·", "\n": "↵", "\t": "→", "\r": "␍", "\u00a0": "⍽" };

  function el(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (tag === "button") node.type = "button";
    node.append(...children.filter((child) => child !== undefined && child !== null));
    return node;
  }

  function isHidden(char) {
    const code = char.codePointAt(0);
    return code < 32 || code === 127 || (code >= 0x200b && code <= 0x200f) || code === 0xfeff ||
      (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code === 0xad;
  }

  // Text that is the same already is left alone, selection and all.
  function put(node, text) {
    if (node.textContent !== text) node.textContent = text;
  }

  // The track of a slider, filled up to its thumb.
  function fill(slider) {
    const share = (slider.value - slider.min) / (slider.max - slider.min || 1);
    slider.style.setProperty("--fill", `${share * 100}%`);
  }

  function set(node, attributes) {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  }

  function svg(tag, attributes = {}, className, text) {
    const node = set(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes);
    if (className) node.setAttribute("class", className);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // The label as nodes: plain runs as text, whitespace and unprintable characters as visible marks; spaces
  // without one where a text is to be read.
  function visible(label, breakLines, spaces) {
    const out = document.createDocumentFragment();
    let run = "";
    const flush = () => { if (run) out.append(run); run = ""; };
    for (const char of label) {
      if (MARKS[char] && !(spaces && char === " ")) {
        flush();
        // A space stays a space, so that lines can break there; its mark is drawn over it.
        out.append(char === " " ? el("span", "pg-mark pg-space", " ") : mark(MARKS[char], char));
        if (breakLines && char === "\n") out.append(document.createElement("br"));
      } else if (isHidden(char)) {
        flush();
        out.append(mark("U+" + char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0"), char, " pg-code"));
      } else run += char;
    }
    flush();
    if (!label) out.append(mark("∅", ""));
    return out;
  }

  // A sign that stands for a character, which is what a copy of it gives.
  function mark(sign, character, more = "") {
    return set(el("span", "pg-mark" + more, sign), { "data-text": character });
  }

  // The text of a copied part of the page: characters in place of their marks.
  function copied(part) {
    part.querySelectorAll("br, .pg-hidden").forEach((node) => node.remove());
    part.querySelectorAll("[data-text]").forEach((node) => node.replaceWith(node.dataset.text));
    return part.textContent;
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

  // The tokens of a prompt, those before them only counted.
  function prompt(entries, hidden) {
    const nodes = entries.map(([label, special]) => el("span", "pg-prompt" + (special ? " pg-special" : ""), visible(label, true)));
    return hidden ? [el("span", "pg-hidden", `${hidden} earlier tokens`), ...nodes] : nodes;
  }

  // [name, text] pairs as a list of terms.
  function terms(pairs) {
    return el("dl", "", ...pairs.flatMap(([name, text]) => [el("dt", "", name), el("dd", "", text)]));
  }

  // What a token's tip says, put below it and inside the frame.
  function showTip(tip, frame, target, label, id, ...rest) {
    tip.replaceChildren(el("div", "pg-tip-name", quoted(label), el("span", "pg-tip-id", id)), ...rest);
    tip.hidden = false;
    const box = frame.getBoundingClientRect(), at = target.getClientRects()[0];
    tip.style.left = Math.max(4, Math.min(at.left - box.left, box.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = at.bottom - box.top + 6 + "px";
  }

  // A group of radio buttons, each with its choice as `data-NAME`; `titles` adds buttons. Clicks and arrow keys
  // choose; the function returned marks the one chosen.
  function radios(group, name, choose, titles = {}) {
    for (const [choice, title] of Object.entries(titles)) {
      group.append(set(el("button", "", title), { role: "radio", ["data-" + name]: choice }));
    }
    const buttons = [...group.querySelectorAll("[role=radio]")];
    buttons.forEach((button) => button.addEventListener("click", () => choose(button.dataset[name])));
    group.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const at = buttons.findIndex((button) => button.getAttribute("aria-checked") === "true");
      const next = buttons[(at + step + buttons.length) % buttons.length];
      choose(next.dataset[name]);
      next.focus();
      event.preventDefault();
    });
    return (chosen) => buttons.forEach((button) => {
      const on = button.dataset[name] === chosen;
      set(button, { "aria-checked": on, tabindex: on ? 0 : -1 });
    });
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

  // Draws each value of a component once, never an older one after a newer: see ui/order.py. Values without a
  // number always pass. A `draw` that takes no parameter is also called while there is no value.
  function begin(props, watch, draw) {
    const content = (value) => (value?.drawn === undefined ? null : JSON.stringify({ ...value, drawn: 0 }));
    const show = () => { if (props.value || !draw.length) draw(props.value); };
    let newest = props.value, shown = content(newest);
    watch("value", () => {
      if (props.value?.drawn < newest?.drawn) {
        props.value = newest;
        return;
      }
      newest = props.value;
      const now = content(newest);
      if (now !== null && now === shown) return;
      shown = now;
      show();
    });
    show();
  }

  // The figure in its box; false while plotly loads or the tab is hidden, where it is drawn later.
  function plot(box, figure) {
    if (!window.Plotly || !box.offsetParent) return false;
    const drawn = resolve(figure, getComputedStyle(document.body));
    window.Plotly.react(box, drawn.data, drawn.layout, { displayModeBar: false, responsive: true });
    return true;
  }

  // Draws anew once plotly is there, and whenever the theme or the size changes.
  function redraw(root, props, draw) {
    const again = () => { if (props.value) draw(props.value); };
    when(() => window.Plotly, again);
    new MutationObserver(again).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    new ResizeObserver(again).observe(root);
  }

  // What a panel says of its run: that it goes on, what it does, its facts, and what the reader must know.
  function say(root, value, counts) {
    const part = (name) => root.querySelector(".pg-" + name);
    root.classList.toggle("pg-running", Boolean(value.running));
    root.dataset.number = value.number;
    const phase = part("phase"), bar = part("bar"), notice = part("notice");
    if (phase) phase.textContent = value.running ? value.phase || "starting" : "";
    if (value.status) part("facts").replaceChildren(...facts(value.status, counts));
    if (bar) {
      bar.hidden = value.progress === null || !value.running;
      bar.firstElementChild.style.width = `${(value.progress ?? 0) * 100}%`;
    }
    if (notice) {
      notice.hidden = !value.notice;
      put(notice, value.notice);
    }
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

  // Of what is more than one line of tokens (a table, a list) the browser keeps the layout.
  document.addEventListener("copy", (event) => {
    const selection = document.getSelection();
    const part = selection.rangeCount ? selection.getRangeAt(0).cloneContents() : null;
    if (!part?.querySelector(".pg-mark") || part.querySelector("div, p, li, tr")) return;
    event.clipboardData.setData("text/plain", copied(part));
    event.preventDefault();
  });

  return {
    el, put, fill, set, svg, prompt, terms, showTip, radios, visible, copied, spoken, percent, fixed, quoted, resolve, facts, begin, plot, redraw, say,
  };
})();
