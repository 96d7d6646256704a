// Tables that the server pages: attempts and tasks. Searched, ordered, and walked with the keyboard.
import { get } from "./api.js";
import { duration, h, link, percent, put, tag } from "./dom.js";
import { legible } from "./text.js";
import { listen } from "./keys.js";

const COUNT = 100;

function go(page, params, change) {
  location.hash = link(page, { ...params, ...change });
}

function head([key, name, num], params, page) {
  const down = params.order === `-${key}`;
  const here = down || params.order === key;
  const next = here && !down ? `-${key}` : key;
  return h("th", { scope: "col", class: num ? "num" : "", "aria-sort": here ? (down ? "descending" : "ascending") : null },
    key ? h("button", { type: "button", onclick: () => go(page, params, { order: next, first: "" }) }, name, here ? (down ? " \u2193" : " \u2191") : "") : name);
}

function pager(page, params, total) {
  const first = Number(params.first || 0);
  const to = (place) => () => go(page, params, { first: place || "" });
  return [
    h("span", { class: "quiet" }, total ? `${first + 1}–${Math.min(total, first + COUNT)} of ${total}` : "none"),
    h("button", { type: "button", disabled: first === 0, onclick: to(Math.max(0, first - COUNT)) }, "Previous"),
    h("button", { type: "button", disabled: first + COUNT >= total, onclick: to(first + COUNT) }, "Next"),
  ];
}

function search(page, params, label) {
  let wait = 0;
  const field = h("input", { type: "search", id: "search", placeholder: `${label}  /`, "aria-label": label, value: params.text || "" });
  field.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(() => { if (location.hash.startsWith(`#/${page}`)) go(page, params, { text: field.value, first: "" }); }, 200);
  });
  return field;
}

function choice(page, params, key, label, values) {
  const select = h("select", { onchange: (event) => go(page, params, { [key]: event.target.value, first: "" }) },
    h("option", { value: "" }, "all"), values.map((value) => h("option", { value, selected: params[key] === String(value) }, value)));
  return h("label", { class: "quiet" }, `${label} `, select);
}

function pageKeys(page, params, total) {
  const first = Number(params.first || 0);
  return {
    n: ["Next page", () => { if (first + COUNT < total) go(page, params, { first: first + COUNT }); }],
    p: ["Previous page", () => { if (first > 0) go(page, params, { first: Math.max(0, first - COUNT) || "" }); }],
    Enter: ["Open", () => {}],
    Escape: ["Back to the runs", () => { location.hash = link("runs"); }],
  };
}

function show(main, title, controls, table, typed) {
  const field = typed && document.activeElement?.id === "search" ? document.activeElement : null;
  const [text, caret] = field ? [field.value, field.selectionStart] : ["", 0]; // more may have been typed since
  const row = h("div", { class: "row" }, h("h1", null, title), h("span", { class: "gap" }), controls);
  row.style.marginBottom = "10px";
  put(main, row, h("div", { class: "panel wide" }, table));
  if (field) { const next = document.getElementById("search"); next.value = text; next.focus(); next.setSelectionRange(caret, caret); }
}

export async function attemptsPage(main, params, runs) {
  const run = runs.find((one) => one.name === params.run);
  const found = await get("attempts", { ...params, count: COUNT });
  listen(pageKeys("attempts", params, found.total), "#rows tbody tr");
  const heads = [["outcome", "Outcome"], ["id", "Attempt"], ["task", "Task"], ["stage", "Stage"], ["step", "Step", 1], ["version", "Weights", 1], ["seconds", "Time", 1]];
  const rows = found.rows.map((row) => {
    const href = link("attempt", { run: params.run, id: row.id });
    return h("tr", { tabindex: "-1", "data-href": href }, h("td", null, tag(row.outcome)),
      h("td", { class: "id" }, h("a", { href }, legible(row.id))),
      h("td", { class: "id" }, h("a", { href: link("attempts", { run: params.run, task: row.task }) }, legible(row.task))),
      h("td", null, row.stage), h("td", { class: "num" }, row.step), h("td", { class: "num" }, row.version), h("td", { class: "num" }, duration(row.seconds)));
  });
  const order = { ...params, order: params.order || "" };
  const table = h("table", { id: "rows" }, h("thead", null, h("tr", null, heads.map(([key, ...rest]) => head([key === "task" ? "task_id" : key, ...rest], order, "attempts")))), h("tbody", null, rows));
  const narrowed = params.task || params.group;
  const controls = [
    narrowed ? h("a", { href: link("attempts", { run: params.run }) }, `\u00d7 ${legible(narrowed)}`) : null,
    search("attempts", params, "Search ids and tasks"),
    choice("attempts", params, "stage", "Stage", run ? run.stages.map((stage) => stage.name) : []),
    choice("attempts", params, "outcome", "Outcome", ["resolved", "unresolved", "void", "ungraded"]),
    ...pager("attempts", params, found.total)];
  show(main, "Attempts", controls, table, true);
}

export async function tasksPage(main, params, runs) {
  const run = runs.find((one) => one.name === params.run);
  const found = await get("tasks", { ...params, count: COUNT });
  listen(pageKeys("tasks", params, found.total), "#rows tbody tr");
  const heads = [["id", "Task"], ["trust", "Trust"], ["attempts", "Attempts", 1], ["void", "Void", 1], ["ungraded", "Ungraded", 1], ["rate", "Resolved", 1], ["", "Resolved by version of the weights"]];
  const rows = found.rows.map((row) => {
    const href = link("attempts", { run: params.run, task: row.id });
    return h("tr", { tabindex: "-1", "data-href": href },
      h("td", null, h("a", { href, class: "id" }, legible(row.id)), row.prompt ? h("div", { class: "quiet" }, legible(row.prompt.split("\n")[0])) : null),
      h("td", null, row.trust ? tag(row.trust) : h("span", { class: "quiet" }, "not validated")),
      h("td", { class: "num" }, row.attempts), h("td", { class: "num" }, row.void), h("td", { class: "num" }, row.ungraded),
      h("td", { class: "num" }, row.rate === null ? "–" : `${percent(row.rate, 0)} (${row.resolved})`), h("td", null, versions(row.versions)));
  });
  const table = h("table", { id: "rows" }, h("thead", null, h("tr", null, heads.map((one) => head(one, { ...params, order: params.order || "id" }, "tasks")))), h("tbody", null, rows));
  const controls = [search("tasks", params, "Search tasks"),
    choice("tasks", params, "stage", "Stage", run ? run.stages.map((stage) => stage.name) : []), ...pager("tasks", params, found.total)];
  show(main, "Tasks", controls, table, true);
}

const MOST_CELLS = 12;

function versions(cells) {
  const left = cells.length - MOST_CELLS;
  return h("div", { class: "cells" }, left > 0 ? h("span", { class: "quiet" }, `${left} earlier`) : null,
    cells.slice(-MOST_CELLS).map(([version, resolved, judged, gone, ungraded]) => {
      const share = judged ? Math.ceil((4 * resolved) / judged) : 0;
      const words = `weights ${version}: ${resolved} of ${judged} resolved${gone ? `, ${gone} void` : ""}${ungraded ? `, ${ungraded} ungraded` : ""}`;
      return h("span", { class: `cell ${share ? `q${share}` : ""}`, title: words, "aria-label": words, role: "img" }, `${resolved}/${judged}`);
    }));
}

