// The tokens of an attempt, coloured by what training knows of each.
import { figure, h, largest, put } from "./dom.js";
import { empty, legible } from "./text.js";

const CHUNK = 2500;
const OPEN = 3;
const CHANCES = [0.9, 0.6, 0.3, 0.1];

// name -> [what it is, (token) -> class, legend]
const COLOURINGS = {
  mask: ["Mask", (token) => (token.trains ? "q3" : token.sampled ? "p1" : "off"),
    [["q3", "sampled, trains"], ["p1", "sampled, does not train"], ["off", "prompt"]]],
  logprob: ["Log-prob", (token) => (token.sampled && token.logprob !== null ? `p${CHANCES.filter((chance) => Math.exp(token.logprob) < chance).length}` : "off"),
    [["p0", "p \u2265 0.9"], ["p1", "\u2265 0.6"], ["p2", "\u2265 0.3"], ["p3", "\u2265 0.1"], ["p4", "less"], ["off", "not recorded"]]],
  advantage: ["Advantage", (token) => {
    if (!token.sampled || token.advantage === null || token.advantage === undefined) return "off";
    if (!token.advantage) return "";
    return `${token.advantage > 0 ? "q" : "p"}${Math.max(1, Math.min(4, Math.ceil(Math.abs(token.advantage) * 2)))}`;
  }, [["q4", "raised"], ["", "neither"], ["p4", "lowered"], ["off", "no advantage"]]],
  drift: ["Drift", (token) => (token.drift ? "p3" : token.sampled ? "" : "off"), [["p3", "the request departed from the record"], ["", "exact"]]],
  version: ["Weights", (token) => (token.sampled ? `q${Math.min(4, token.age + 1)}` : "off"), [["q1", "the newest of this attempt"], ["q2", "1 older"], ["q4", "3 or more older"]]],
};

export function tokensView(found) {
  if (!found.turns.length) return [empty("No tokens were recorded.")];
  const newest = largest(found.turns.flatMap((turn) => [turn.version, ...turn.versions]));
  const state = { by: "mask", ids: !Object.keys(found.texts).length };
  const readout = h("div", { class: "readout", role: "status" }, "Point at a token for its exact id.");
  const list = h("div", { class: "panel" });
  const legend = h("div", { class: "legend" });
  const refresh = () => {
    put(legend, ...COLOURINGS[state.by][2].map(([cls, text]) => h("span", null, h("i", { class: cls }, "token"), ` ${text}`)));
    put(list, ...found.turns.map((turn, index) => turnBox(turn, index < OPEN, found.texts, newest, state)));
  };
  const by = h("select", { onchange: (event) => { state.by = event.target.value; refresh(); } },
    Object.entries(COLOURINGS).map(([key, [name]]) => h("option", { value: key }, name)));
  const ids = h("input", { type: "checkbox", checked: state.ids, onchange: (event) => { state.ids = event.target.checked; refresh(); } });
  list.addEventListener("pointerover", (event) => { if (event.target.token) readout.textContent = words(event.target.token, found.texts); });
  refresh();
  const controls = h("div", { class: "row" }, h("label", null, "Colour by ", by), h("label", { class: "row" }, ids, "exact ids"), legend);
  controls.style.marginBottom = "10px";
  return [controls, list, readout];
}

function words(token, texts) {
  const parts = [`id ${token.id}`];
  if (texts[token.id] !== undefined) parts.push(legible(JSON.stringify(texts[token.id])));
  if (token.sampled) parts.push(...chance(token.logprob), `weights ${token.version}`);
  else parts.push("prompt");
  if (token.advantage !== null && token.advantage !== undefined && token.sampled) parts.push(`advantage ${figure(token.advantage)}`);
  if (token.drift) parts.push(`drift ${token.drift}`);
  return `${parts.join("   ")}   turn ${token.turn}, place ${token.place}`;
}

function chance(logprob) {
  return logprob === null ? ["log-prob not recorded"] : [`log-prob ${logprob}`, `p ${Math.exp(logprob).toPrecision(3)}`];
}

function turnBox(turn, open, texts, newest, state) {
  const about = [`turn ${turn.id}`, turn.parent === null ? "starts a chain" : `extends turn ${turn.parent}`, `${turn.prompt.length} prompt`,
    `${turn.sampled.length} sampled`, `weights ${turn.version}`];
  if (!turn.train) about.push("does not train");
  if (typeof turn.advantage === "number") about.push(`advantage ${figure(turn.advantage)}`);
  if (turn.drift.length) about.push(`drift: ${turn.drift.join(", ")}`);
  const details = h("details", { open, class: "block" }, h("summary", null, about.join(" \u00b7 ")));
  details.querySelector("summary").style.padding = "6px 12px";
  const body = h("div", { class: "tokens" });
  details.append(body);
  const render = () => { if (details.open && !body.hasChildNodes()) chunk(body, tokensOf(turn, newest), 0, texts, state); };
  details.addEventListener("toggle", render);
  render();
  return details;
}

function tokensOf(turn, newest) {
  const drift = turn.drift.join(", ");
  const prompt = turn.prompt.map((id, place) => ({ id, place, turn: turn.id, sampled: false, drift }));
  const sampled = turn.sampled.map((id, at) => {
    const version = turn.versions[at] ?? turn.version;
    return { id, place: turn.prompt.length + at, turn: turn.id, sampled: true, trains: turn.train, logprob: turn.logprobs[at] ?? null,
      version, age: newest - version, advantage: turn.advantage, drift: "" };
  });
  return [...prompt, ...sampled];
}

function chunk(body, tokens, from, texts, state) {
  const pick = COLOURINGS[state.by][1];
  const parts = document.createDocumentFragment();
  for (const token of tokens.slice(from, from + CHUNK)) {
    const text = state.ids ? String(token.id) : legible(texts[token.id] ?? `\u27e8${token.id}\u27e9`).replace(/\n/g, "\u21b5\n").replace(/\t/g, "\u21e5\t");
    const node = h("span", { class: `t ${state.ids ? "num" : ""} ${pick(token)}` }, text || "\u2423");
    node.token = token;
    parts.append(node, state.ids ? " " : "");
  }
  body.append(parts);
  const left = tokens.length - from - CHUNK;
  if (left > 0) {
    const more = h("button", { type: "button", class: "more", onclick: () => { more.remove(); chunk(body, tokens, from + CHUNK, texts, state); } }, `Show ${Math.min(left, CHUNK)} of ${left} more tokens`);
    body.append(more);
  }
}
