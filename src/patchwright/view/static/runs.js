// Runs side by side.
import { get } from "./api.js";
import { chart, colour, rates } from "./charts.js";
import { ago, h, link, percent, put } from "./dom.js";
import { empty } from "./text.js";
import { listen } from "./keys.js";

// What is shown of training, in this order: [figure, its name, is it a rate].
const FIGURES = [
  ["reward", "Reward", false], ["resolve_rate", "Resolve rate", true], ["void_rate", "Void rate", true],
  ["cheat_rate", "Cheat rate", true], ["entropy", "Entropy", false], ["kl", "KL", false],
  ["staleness_mean", "Staleness, versions", false], ["throughput", "Throughput, tokens/s", false],
  ["loss", "Loss", false], ["grad_norm", "Gradient norm", false], ["logprob_gap", "Log-prob gap, engine to trainer", false],
];
const hidden = new Set();

export async function runsPage(main) {
  const { runs } = await get("runs");
  listen({}, "#runs tbody tr, .chart");
  const below = h("div");
  const refresh = () => put(below, ...figures(runs.filter((run) => !hidden.has(run.name)), runs));
  put(main, h("h1", null, "Runs"), h("h2", { class: "sr" }, "All runs"),
    h("div", { class: "panel wide" }, table(runs, refresh)), below);
  main.querySelector("h1").style.marginBottom = "10px";
  refresh();
}

function total(run, word) {
  return run.stages.reduce((sum, stage) => sum + stage[word], 0);
}

function table(runs, refresh) {
  const rows = runs.map((run, index) => {
    const box = h("input", { type: "checkbox", "aria-label": `show ${run.name} in the charts`, checked: !hidden.has(run.name),
      onchange: (event) => { if (event.target.checked) hidden.delete(run.name); else hidden.add(run.name); refresh(); } });
    return h("tr", { tabindex: "-1", "data-href": link("attempts", { run: run.name }) },
      h("td", { class: colour(index) }, h("span", { class: "row" }, box, h("span", { class: "swatch" }))),
      h("td", null, h("a", { href: link("attempts", { run: run.name }), title: run.path }, run.name)),
      h("td", null, run.writing ? h("a", { href: link("live", { run: run.name }) }, h("span", { class: "tag live" }, "\u25cf running")) : h("span", { class: "quiet" }, run.kind === "file" ? "file" : "over")),
      h("td", { class: "num" }, run.stages.length), h("td", { class: "num" }, total(run, "attempts")),
      h("td", { class: "num" }, total(run, "resolved")), h("td", { class: "num" }, total(run, "unresolved")),
      h("td", { class: "num" }, total(run, "void")), h("td", { class: "num" }, total(run, "ungraded")),
      h("td", { class: "quiet num" }, run.updated ? ago(run.updated) : ""));
  });
  const heads = ["Run", "State"].map((head) => h("th", { scope: "col" }, head));
  const counts = ["Stages", "Attempts", "\u2713 Resolved", "\u2717 Unresolved", "\u2205 Void", "? Ungraded", "Updated"];
  return h("table", { id: "runs" }, h("thead", null, h("tr", null, h("th", { scope: "col" }, h("span", { class: "sr" }, "In charts")), heads,
    counts.map((head) => h("th", { scope: "col", class: "num" }, head)))), h("tbody", null, rows));
}

function figures(shown, runs) {
  const place = new Map(runs.map((run, index) => [run.name, index]));
  const stages = [...new Set(shown.flatMap((run) => Object.keys(run.series)))];
  stages.sort((a, b) => (a === "rl" ? -1 : 0) - (b === "rl" ? -1 : 0));
  return [...evaluations(shown, place), ...stages.flatMap((stage) => training(stage, shown, place)), ...stageTable(shown)];
}

function evaluations(shown, place) {
  const sets = [...new Set(shown.flatMap((run) => run.evaluations.map((one) => one.set)))];
  if (!sets.length) return [];
  const boxes = sets.map((set) => {
    const policies = [...new Set(shown.flatMap((run) => run.evaluations.filter((one) => one.set === set).map((one) => one.policy)))];
    const rows = policies.flatMap((policy) => shown.flatMap((run) => run.evaluations
      .filter((one) => one.set === set && one.policy === policy)
      .map((one) => ({ index: place.get(run.name), rate: one.rate, low: one.low, high: one.high,
        name: shown.length > 1 ? `${policy} \u00b7 ${run.name}` : policy,
        text: `${percent(one.rate)} [${(100 * one.low).toFixed(1)}, ${(100 * one.high).toFixed(1)}]${one.void ? ` ${one.void} void` : ""}` }))));
    return h("div", { class: "chart block", tabindex: "-1" }, h("header", null, h("h3", null, set), h("span", { class: "last" }, "pass@1, 95 %")), rates(rows, `Evaluations on ${set}`));
  });
  const grid = h("div", { class: "charts" }, boxes);
  grid.style.gridTemplateColumns = "repeat(auto-fill, minmax(520px, 1fr))";
  return [h("h2", null, "Evaluations"), grid];
}

function training(stage, shown, place) {
  const keys = [...new Set(shown.flatMap((run) => Object.keys(run.series[stage] || {})))];
  const known = FIGURES.filter(([key]) => keys.includes(key));
  const rest = keys.filter((key) => !FIGURES.some(([name]) => name === key)).sort().map((key) => [key, key.replaceAll("_", " "), false]);
  const make = ([key, title, rate]) => chart(title, shown.filter((run) => run.series[stage]?.[key]?.length)
    .map((run) => ({ name: run.name, index: place.get(run.name), points: run.series[stage][key] })), { rate });
  const more = h("details", null, h("summary", null, `${rest.length} more figures of ${stage}`));
  more.addEventListener("toggle", () => { if (more.open && more.childElementCount === 1) more.append(h("div", { class: "charts" }, rest.map(make))); });
  more.style.marginTop = "10px";
  return [h("h2", null, `Training: ${stage}`), h("div", { class: "charts" }, known.map(make)), rest.length ? more : null].filter(Boolean);
}

function stageTable(shown) {
  const rows = shown.flatMap((run) => run.stages.map((stage) => h("tr", null,
    h("td", null, run.name), h("td", null, h("a", { href: link("attempts", { run: run.name, stage: stage.name }) }, stage.name)),
    h("td", { class: "num" }, stage.steps), h("td", { class: "num" }, stage.tasks), h("td", { class: "num" }, stage.attempts),
    h("td", { class: "num" }, stage.void), h("td", { class: "num" }, stage.ungraded),
    h("td", { class: "num" }, stage.rate === null ? "–" : `${percent(stage.rate)} [${(100 * stage.low).toFixed(1)}, ${(100 * stage.high).toFixed(1)}]`),
    h("td", { class: "num" }, stage.versions.length > 1 ? `${stage.versions[0]}–${stage.versions.at(-1)}` : stage.versions[0]))));
  if (!rows.length) return [empty("There are no attempts yet.")];
  const heads = [["Run"], ["Stage"], ["Steps", 1], ["Tasks", 1], ["Attempts", 1], ["\u2205 Void", 1], ["? Ungraded", 1], ["Resolve rate, 95 %", 1], ["Weights", 1]];
  return [h("h2", null, "Stages"), h("div", { class: "panel wide" }, h("table", null,
    h("thead", null, h("tr", null, heads.map(([head, num]) => h("th", { scope: "col", class: num ? "num" : "" }, head)))),
    h("tbody", null, rows)))];
}

