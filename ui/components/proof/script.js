// Many draws of one step: speculative and plain over each other, with the test of both against the exact p.
const { el, percent, fixed, quoted } = window.Playground;
const root = element.querySelector(".pg-proof");
const button = root.querySelector("[data-do=prove]"), what = root.querySelector(".pg-proof-what"), note = root.querySelector(".pg-proof-note");
const box = root.querySelector(".pg-proof-result");
const EXPLAIN = "The button takes this one step of the real run and draws it 20,000 times by draft, check and residual, and 20,000 times plainly. Both are tested against the target's exact distribution p. So is the usual bug, to show that the test can fail.";
const NAMES = { speculative: "Speculative", plain: "Plain", careless: "The usual bug" };

function verdict(name, fit) {
  const node = el("div", "pg-proof-verdict");
  node.dataset.fits = String(fit.fits);
  node.dataset.series = name;
  const p = fit.p_value === 0 || fit.p_value < 0.001 ? "< 0.001" : fixed(fit.p_value, 3);
  node.append(el("span", "", NAMES[name]), el("b", "", fit.fits ? "fits p ✓" : "does not fit ✕"),
    el("small", "", `χ² ${fixed(fit.statistic, 1)} on ${fit.degrees} degrees, p-value ${p}`));
  return node;
}

function row(item, total, top) {
  const line = el("div", "pg-proof-row"), bar = el("div", "pg-proof-bar");
  const wide = (count) => `${(count / total / top) * 100}%`;
  for (const name of ["speculative", "plain"]) {
    const part = el("i", "pg-proof-" + name);
    part.style.width = wide(item[name]);
    bar.append(part);
  }
  const exact = el("i", "pg-proof-exact"), wrong = el("i", "pg-proof-careless");
  exact.style.left = `${(item.p / top) * 100}%`;
  wrong.style.left = wide(item.careless);
  bar.append(exact, wrong);
  line.title = `exact p ${percent(item.p)}, q ${percent(item.q)}; of ${total}: speculative ${item.speculative}, plain ${item.plain}, usual bug ${item.careless}`;
  line.append(item.label === null ? el("span", "pg-note", "all others") : quoted(item.label), bar, el("small", "", `${item.speculative} · ${item.plain}`));
  return line;
}

function draw(value) {
  button.disabled = value.proving || !value.step;
  what.replaceChildren(...(value.step ? [`Draws round ${value.step.round + 1}, `, quoted(value.step.label), " again and again."] : []));
  note.textContent = value.proving ? "Drawing …" : value.note || (value.step && !value.done ? EXPLAIN : "");
  note.hidden = !note.textContent;
  const done = value.done;
  box.hidden = !done;
  root.dataset.proved = done ? done.of.join(":") : "";
  if (!done) return;
  const certain = !done.fits.plain.degrees;
  box.querySelector(".pg-proof-verdicts").hidden = certain;
  box.querySelector(".pg-proof-verdicts").replaceChildren(...Object.entries(done.fits).map(([name, fit]) => verdict(name, fit)));
  const shares = done.rows.flatMap((item) => [item.p, ...[item.speculative, item.plain, item.careless].map((count) => count / done.num_draws)]);
  const top = Math.max(...shares, 1e-9) * 1.03;
  box.querySelector(".pg-proof-rows").replaceChildren(...done.rows.map((item) => row(item, done.num_draws, top)));
  box.querySelector(".pg-reading").textContent = `Round ${done.of[0] + 1}, draft ${done.of[1] + 1}, ${done.num_draws.toLocaleString("en")} draws each. ` +
    `Drafts accepted: ${percent(done.num_accepted / done.num_draws)}; the overlap of p and q says ${percent(done.acceptance)}. Counts: speculative · plain. ` +
    (certain ? "Only one token is possible here (temperature 0, or everything else was cut), so all draws agree; with some temperature the test has something to tell apart." : "A p-value under 0.001 speaks against the exact distribution.");
}
button.addEventListener("click", () => trigger("prove", {}));
