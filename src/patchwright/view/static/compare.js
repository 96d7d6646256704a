// Two attempts of a group, side by side.
import { get } from "./api.js";
import { h, link, put, tag } from "./dom.js";
import { diff, empty, legible } from "./text.js";
import { conversation, heading } from "./attempt.js";
import { listen } from "./keys.js";

export async function comparePage(main, params) {
  const [a, b] = await Promise.all([params.a, params.b].map((id) => get("attempt", { run: params.run, id })));
  listen({
    x: ["Swap the two", () => { location.hash = link("compare", { run: params.run, a: params.b, b: params.a }); }],
    Escape: ["Back to the first", () => { location.hash = link("attempt", { run: params.run, id: params.a }); }],
  }, "main .block");
  const same = shared(a.messages, b.messages);
  const note = same ? h("p", { class: "quiet" }, `The first ${same} messages are the same in both.`) : null;
  put(main, two([a, b].map((one) => heading(one, link("attempt", { run: params.run, id: one.id })))),
    h("h2", null, "Tests"), tests(a, b),
    h("h2", null, "Patch"), two([a, b].map((one) => (one.patch ? diff(one.patch) : empty("There is no patch.")))),
    h("h2", null, "Conversation"), note, two([a, b].map((one) => conversation(one.messages.slice(same), one))));
}

function two(sides) {
  return h("div", { class: "two" }, sides.map((side) => h("div", null, side)));
}

function shared(a, b) {
  let at = 0;
  while (at < a.length && at < b.length && a[at].role === b[at].role && a[at].content === b[at].content && a[at].thinking === b[at].thinking
    && JSON.stringify(a[at].calls) === JSON.stringify(b[at].calls)) at += 1;
  return at;
}

function tests(a, b) {
  const [left, right] = [a, b].map((one) => new Map(one.grade ? one.grade.tests : []));
  const names = [...new Set([...left.keys(), ...right.keys()])];
  if (!names.length) return empty("No test was run in either.");
  names.sort((x, y) => (left.get(x) === right.get(x)) - (left.get(y) === right.get(y)) || x.localeCompare(y));
  const cell = (status) => h("td", null, status ? tag(status) : h("span", { class: "quiet" }, "–"));
  return h("div", { class: "panel" }, h("table", null, h("thead", null, h("tr", null, ["Test", "Left", "Right", ""].map((name) => h("th", { scope: "col" }, name || h("span", { class: "sr" }, "Differs"))))),
    h("tbody", null, names.map((name) => h("tr", { class: "block", tabindex: "-1" }, h("td", { class: "id" }, legible(name)), cell(left.get(name)), cell(right.get(name)),
      h("td", { class: "quiet" }, left.get(name) === right.get(name) ? "" : "differs"))))));
}
