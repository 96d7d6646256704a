// One attempt: what was said and done, the patch, the verdict, the tokens.
import { duration, figure, h, link, put, sign, tag } from "./dom.js";
import { diff, empty, fold, legible, pre, prose } from "./text.js";
import { listen } from "./keys.js";
import { tokensView } from "./tokens.js";

const TABS = [["conversation", "Conversation"], ["patch", "Patch"], ["tests", "Tests"], ["commands", "Commands"], ["tokens", "Tokens"], ["turns", "Turns"]];

// where: {run, tab, navigate(change)}; `tokens` fetches them when they are asked for.
export function attemptView(main, data, where, tokens) {
  const panel = h("div", { class: "tabpanel", role: "tabpanel", id: "panel", "aria-labelledby": "tab-conversation" });
  const counts = { conversation: data.messages.length, tests: data.grade ? data.grade.tests.length : 0, commands: data.steps.length, turns: data.turns.length };
  const tabs = TABS.map(([key, name]) => h("button", { type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "panel", onclick: () => open(key) },
    name, counts[key] ? h("span", { class: "quiet" }, ` ${counts[key]}`) : null));
  let chosen = "";
  const open = async (key) => {
    chosen = key;
    tabs.forEach((button, index) => {
      const here = TABS[index][0] === key;
      button.setAttribute("aria-selected", String(here));
      button.tabIndex = here ? 0 : -1;
    });
    panel.setAttribute("aria-labelledby", `tab-${key}`);
    where.remember?.(key);
    const made = await content(key, data, tokens);
    if (chosen === key) put(panel, ...made); // else another was chosen meanwhile
  };
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": "Parts of the attempt" }, tabs);
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const next = tabs[(tabs.findIndex((button) => button.tabIndex === 0) + by + tabs.length) % tabs.length];
    next.click();
    next.focus();
  });
  put(main, heading(data), siblings(data, where), bar, panel);
  listen(attemptKeys(data, where, open), "#panel .block");
  return open(TABS.some(([key]) => key === where.tab) ? where.tab : "conversation");
}

async function content(key, data, tokens) {
  if (key === "patch") return data.patch ? diff(data.patch) : [empty("There is no patch.")];
  if (key === "tests") return verdict(data);
  if (key === "commands") return commands(data);
  if (key === "tokens") return tokensView(await tokens());
  if (key === "turns") return turnsTable(data);
  return conversation(data.messages, data);
}

function attemptKeys(data, where, open) {
  const at = data.siblings.findIndex((one) => one.id === data.id);
  const step = (by) => () => { const next = data.siblings[at + by]; if (next) location.hash = link("attempt", { run: where.run, id: next.id, tab: where.tab }); };
  const keys = Object.fromEntries(TABS.map(([key, name], index) => [String(index + 1), [name, () => open(key)]]));
  if (data.siblings.length > 1) {
    keys["["] = ["Previous attempt of the group", step(-1)];
    keys["]"] = ["Next attempt of the group", step(1)];
    keys.c = ["Compare with the next of the group", () => { location.hash = link("compare", { run: where.run, a: data.id, b: (data.siblings[at + 1] || data.siblings[at - 1]).id }); }];
  }
  if (where.run) keys.Escape = ["Back to the attempts", () => { location.hash = link("attempts", { run: where.run, stage: data.stage }); }];
  return keys;
}

export function heading(data, href) {
  const sampled = data.turns.reduce((sum, turn) => sum + turn.sampled, 0);
  const versions = [...new Set(data.turns.flatMap((turn) => turn.versions))].sort((a, b) => a - b);
  const drifts = [...new Set(data.turns.flatMap((turn) => turn.drift))];
  const facts = [["task", data.task], ["stage", data.stage ? `${data.stage}, step ${data.step}` : ""], ["weights", versions.length > 1 ? `${versions[0]}–${versions.at(-1)}` : versions[0] ?? data.version],
    ["exit", data.exit], ["time", data.seconds ? duration(data.seconds) : ""], ["turns", data.turns.length || ""], ["sampled", sampled ? `${sampled} tokens` : ""], ["drift", drifts.join(", ")]];
  const findings = data.grade ? data.grade.findings : [];
  return h("div", { class: "head" },
    h("div", { class: "row" }, h("h1", null, href ? h("a", { href }, legible(data.id)) : legible(data.id)), tag(data.outcome),
      findings.length ? h("span", { class: "tag flag" }, "\u2691 flagged") : null),
    h("div", { class: "facts" }, facts.filter(([, value]) => value !== "" && value !== undefined).map(([name, value]) => h("span", null, `${name} `, h("b", null, legible(String(value)))))),
    data.failure ? h("div", { class: "row" }, h("span", { class: "tag" }, "\u2205 void"), h("span", null, legible(`${data.failure.kind} at ${data.failure.stage}: ${data.failure.message}`))) : null,
    data.grade && data.grade.reason ? h("div", { class: "quiet" }, legible(data.grade.reason.slice(0, 400))) : null);
}

function siblings(data, where) {
  if (data.siblings.length < 2) return null;
  const number = (one) => (one.id.startsWith(data.group) ? one.id.slice(data.group.length).replace(/^-/, "") : one.id);
  const box = h("nav", { class: "siblings", "aria-label": "Attempts of this group" }, h("span", { class: "quiet" }, "Group"),
    data.siblings.map((one) => h("a", { class: `tag ${one.outcome}`, href: link("attempt", { run: where.run, id: one.id, tab: where.tab }), title: one.id, "aria-current": one.id === data.id ? "page" : null,
      "aria-label": `attempt ${number(one)}, ${one.outcome}` }, sign(one.outcome), " ", legible(number(one)))));
  const others = data.siblings.filter((one) => one.id !== data.id);
  const pick = h("select", { "aria-label": "Compare with", onchange: (event) => { if (event.target.value) location.hash = link("compare", { run: where.run, a: data.id, b: event.target.value }); } },
    h("option", { value: "" }, "Compare with\u2026"), others.map((one) => h("option", { value: one.id }, `${sign(one.outcome)} ${legible(number(one))}`)));
  box.append(h("span", { class: "gap" }), pick);
  box.style.marginBottom = "8px";
  return box;
}

// --- the conversation ----------------------------------------------------------------------------

export function conversation(messages, data) {
  if (!messages.length) return data.steps.length ? commands(data) : [empty("Nothing was said.")];
  const turns = new Map(data.turns.map((turn) => [turn.id, turn]));
  const box = h("div", { class: "panel" }, messages.map((message) => said(message, turns.get(message.turn), data)));
  const unsaid = data.unsaid.map((id) => turns.get(id)).filter(Boolean);
  const aside = unsaid.length ? [h("h2", null, `${unsaid.length} turns that are not in this conversation`),
    h("div", { class: "panel" }, unsaid.map((turn) => said({ role: "assistant", content: turn.text, thinking: "", calls: [], steps: [] }, turn, data)))] : [];
  return [box, ...aside];
}

function said(message, turn, data) {
  const known = ["assistant", "user", "system", "tool"].includes(message.role) ? message.role : "tool";
  const words = message.thinking ? message.thinking.split(/\s+/).length : 0;
  const body = h("div", { class: "body" },
    turn ? h("div", { class: "meta" }, facts(turn)) : null,
    message.thinking ? h("div", { class: "thinking" }, fold(`Thinking, ${words} words`, words < 120, () => pre(message.thinking))) : null,
    prose(message.content),
    message.calls.map((call) => h("div", { class: "call" }, h("div", null, legible(call.name || "tool")), argumentsOf(call.arguments))),
    message.steps.map((index) => ran(data.steps[index])));
  return h("article", { class: `msg block ${known}`, tabindex: "-1", "aria-label": `${message.role}${turn ? `, turn ${turn.id}` : ""}` },
    h("div", { class: "who" }, legible(message.role), message.name ? h("div", { class: "quiet" }, legible(message.name)) : null), body);
}

function facts(turn) {
  const parts = [`turn ${turn.id}`, `${turn.sampled} tokens`, duration(turn.seconds), `weights ${turn.versions.join(", ")}`];
  if (turn.logprob !== null) parts.push(`mean log-prob ${turn.logprob.toFixed(3).replace("-", "\u2212")}`);
  if (turn.finish !== "stop") parts.push(`ended by ${turn.finish}`);
  if (turn.score !== null) parts.push(`score ${figure(turn.score)}`);
  if (!turn.train) parts.push("does not train");
  return [...parts, ...turn.drift.map((kind) => `drift: ${kind}`)].join(" \u00b7 ");
}

function argumentsOf(text) {
  let value = null;
  try { value = JSON.parse(text); } catch { return pre(text); }
  if (value === null || typeof value !== "object") return pre(text);
  const entries = Object.entries(value);
  if (entries.length === 1 && typeof entries[0][1] === "string") return pre(entries[0][1]);
  return pre(entries.map(([key, inner]) => (typeof inner === "string" && inner.includes("\n") ? `${key}:\n${inner}` : `${key}: ${typeof inner === "string" ? inner : JSON.stringify(inner)}`)).join("\n"));
}

function ending(step) {
  const code = step.timed_out ? "timed out" : `exit ${step.code}`;
  return h("span", { class: `tag ${step.timed_out || step.code ? "failed" : ""}` }, code);
}

function ran(step) {
  const line = step.command.split("\n")[0].slice(0, 120);
  return h("div", { class: "meta" }, fold(h("span", null, "ran ", h("code", null, legible(line)), " ", ending(step), ` ${duration(step.seconds)}`), false,
    () => pre(step.output || "(no output)", "code")));
}

function commands(data) {
  if (!data.steps.length) return [empty("No commands were recorded.")];
  return [h("div", { class: "panel" }, data.steps.map((step, index) => h("article", { class: "msg block", tabindex: "-1", "aria-label": `command ${index + 1}` },
    h("div", { class: "who" }, `${index + 1}`, step.turn === null ? null : h("div", { class: "quiet" }, `turn ${step.turn}`)),
    h("div", { class: "body" }, h("div", { class: "row" }, ending(step), h("span", { class: "meta" }, duration(step.seconds)), step.omitted ? h("span", { class: "meta" }, `${step.omitted} bytes of output were not kept`) : null),
      pre(step.command, "code"), step.output ? pre(step.output) : h("span", { class: "quiet" }, "no output")))))];
}

// --- the verdict ---------------------------------------------------------------------------------

function verdict(data) {
  const grade = data.grade;
  if (!grade) return [empty(data.failure ? "Void: infrastructure failed, so there is no verdict." : "It was not graded.")];
  const head = h("div", { class: "row" }, tag(data.outcome), h("span", null, grade.state.replaceAll("_", " ")), h("span", { class: "quiet" }, grade.seconds ? duration(grade.seconds) : ""),
    Object.entries(grade.scores).map(([name, score]) => h("span", { class: "tag" }, `${name} ${score.toFixed(3)}`)));
  head.style.marginBottom = "10px";
  const order = ["failed", "error", "missing", "skipped", "passed"];
  const tests = grade.tests.slice().sort((a, b) => order.indexOf(a[1]) - order.indexOf(b[1]) || a[0].localeCompare(b[0]));
  const findings = grade.findings.length ? [h("h2", null, "Integrity findings"), h("div", { class: "panel" }, h("table", null, h("tbody", null,
    grade.findings.map((finding) => h("tr", null, h("td", null, h("span", { class: "tag flag" }, "\u2691")), h("td", null, legible(finding)))))))] : [];
  const table = tests.length ? h("div", { class: "panel" }, h("table", null, h("thead", null, h("tr", null, h("th", { scope: "col" }, "Status"), h("th", { scope: "col" }, "Test"))),
    h("tbody", null, tests.map(([name, status]) => h("tr", { class: "block", tabindex: "-1" }, h("td", null, tag(status)), h("td", { class: "id" }, legible(name))))))) : empty("No test was run.");
  return [head, table, ...findings];
}

function turnsTable(data) {
  if (!data.turns.length) return [empty("No turns were recorded.")];
  const heads = [["Turn", 1], ["Extends", 1], ["Prompt", 1], ["Sampled", 1], ["Mean log-prob", 1], ["Weights", 1], ["Time", 1], ["Score", 1], ["Ended by"], ["Trains"], ["Drift"]];
  return [h("div", { class: "panel wide" }, h("table", null, h("thead", null, h("tr", null, heads.map(([name, num]) => h("th", { scope: "col", class: num ? "num" : "" }, name)))),
    h("tbody", null, data.turns.map((turn) => h("tr", { class: "block", tabindex: "-1" }, [turn.id, turn.parent ?? "–", turn.prompt, turn.sampled, turn.logprob === null ? "–" : turn.logprob.toFixed(3), turn.versions.join(", "), duration(turn.seconds), figure(turn.score)]
      .map((cell) => h("td", { class: "num" }, cell)), h("td", null, turn.finish), h("td", null, turn.train ? "yes" : "no"), h("td", null, turn.drift.join(", ")))))))];
}
