// A running job: attempts as lanes over time, the fleet, stragglers, faults. Fed by server-sent events.
import { ago, duration, h, link, put, sign, svg, tag } from "./dom.js";
import { empty, legible } from "./text.js";
import { listen } from "./keys.js";

const WINDOWS = [["1 min", 60], ["5 min", 300], ["15 min", 900]];
const NAME = 250;
const WIDTH = 1180;
const ROW = 17;
const MOST = 120;

// Returns how to stop.
export function livePage(main, params) {
  let state = null;
  let span = 60;
  let ahead = 0;
  const parts = Object.fromEntries(["tiles", "lanes", "late", "faults", "fleet"].map((name) => [name, h("div")]));
  const status = h("span", { class: "quiet", role: "status" }, "connecting");
  const choose = h("select", { "aria-label": "Time shown", onchange: (event) => { span = Number(event.target.value); draw(); } },
    WINDOWS.map(([name, seconds]) => h("option", { value: seconds }, name)));
  const top = h("div", { class: "row" }, h("h1", null, "Live"), status, h("span", { class: "gap" }), legend(), choose);
  top.style.marginBottom = "12px";
  put(main, top, parts.tiles, parts.late, parts.faults, parts.fleet, h("h2", null, "Attempts in flight, and those that ended lately"), parts.lanes);
  listen({ Escape: ["Back to the runs", () => { location.hash = link("runs"); }] }, "main tbody tr");
  const draw = () => { if (state) show(parts, state, Date.now() / 1000 + ahead, span, params.run); };
  const source = new EventSource(`/api/live?run=${encodeURIComponent(params.run)}`);
  source.onmessage = (event) => {
    state = JSON.parse(event.data);
    ahead = state.now - Date.now() / 1000;
    status.textContent = state.writing ? "\u25cf running" : "no process is writing to this run";
    draw();
  };
  source.onerror = () => { status.textContent = "connection lost, trying again"; };
  const clock = setInterval(() => { if (state && state.flying.length && !document.hidden) draw(); }, 1000);
  return () => { source.close(); clearInterval(clock); };
}

function legend() {
  const words = [["queue", "waits for a box"], ["model", "model"], ["tool", "tools"], ["grade", "grading"]];
  return h("span", { class: "legend" }, words.map(([cls, text]) => h("span", null, h("i", { class: `box ${cls}` }), text)));
}

function show(parts, state, now, span, run) {
  const doing = (what) => state.flying.filter((lane) => lane.spans.at(-1)?.[0] === what).length;
  const over = (word) => state.over.filter((lane) => lane.outcome === word).length;
  const tiles = [["in flight", state.flying.length], ["wait for a box", doing("queue")], ["with agent", doing("tool") + doing("model")], ["grading", doing("grade")],
    ["usual time", state.usual === null ? "–" : duration(state.usual)], ["\u2713 of the last " + state.over.length, over("resolved")], ["\u2205 void", over("void")]];
  put(parts.tiles, h("div", { class: "tiles" }, tiles.map(([name, value]) => h("div", { class: "tile" }, h("b", null, value), h("span", { class: "quiet" }, name)))));
  put(parts.lanes, lanes(state, now, span, run));
  put(parts.late, ...stragglers(state, now));
  put(parts.faults, ...faults(state, now, run));
  put(parts.fleet, ...fleet(state.fleet));
}

function lanes(state, now, span, run) {
  const from = now - span;
  const recent = state.over.filter((lane) => lane.ended > from).reverse();
  const rows = [...state.flying, ...recent].slice(0, MOST);
  if (!rows.length) return empty("Nothing is in flight. Lanes appear here while `patchwright rollout`, `eval` or `train rl` works in this folder.");
  const x = (time) => NAME + (WIDTH - NAME) * Math.max(0, Math.min(1, (time - from) / span));
  const height = rows.length * ROW + 24;
  const grid = [0, 0.25, 0.5, 0.75, 1].map((share) => [
    svg("line", { class: "grid", x1: x(from + share * span), x2: x(from + share * span), y1: 0, y2: height - 18 }),
    svg("text", { x: x(from + share * span), y: height - 4, "text-anchor": share === 1 ? "end" : "middle" }, share === 1 ? "now" : `\u2212${duration((1 - share) * span)}`)]);
  const marks = rows.map((lane, index) => drawLane(lane, index * ROW, x, now, run));
  const words = `${state.flying.length} attempts in flight; tables of stragglers and faults stand above`;
  return h("div", { class: "panel wide" }, svg("svg", { class: "lanes", viewBox: `-8 -6 ${WIDTH + 30} ${height + 6}`, role: "img", "aria-label": words }, grid, marks));
}

function short(name) {
  const text = legible(name);
  return text.length > 36 ? `${text.slice(0, 16)}\u2026${text.slice(-19)}` : text;
}

function drawLane(lane, top, x, now, run) {
  const name = svg("text", { class: "name", x: NAME - 8, y: top + 12, "text-anchor": "end" }, short(lane.id), svg("title", null, lane.id));
  const bars = lane.spans.filter(([, , end]) => x(end ?? now) > NAME).map(([what, begin, end]) => svg("rect", { class: what, x: x(begin), y: top + 3,
    width: Math.max(1, x(end ?? now) - x(begin)), height: ROW - 6 }, svg("title", null, `${what}, ${duration((end ?? now) - begin)}`)));
  const label = lane.ended ? svg("a", { href: link("attempt", { run, id: lane.id }) }, name) : name;
  const end = lane.ended ? svg("text", { class: `mark ${lane.outcome}`, x: x(lane.ended) + 4, y: top + 12 }, sign(lane.outcome), svg("title", null, lane.outcome)) : null;
  return svg("g", { class: lane.ended ? "lane over" : "lane" }, label, bars, end);
}

function stragglers(state, now) {
  const late = state.flying.filter((lane) => state.stragglers.includes(lane.id));
  if (!late.length) return [];
  return [h("h2", null, "Stragglers: more than twice the usual time"), table(["Attempt", "In flight for", "Turns", "Doing now"],
    late.map((lane) => [legible(lane.id), duration(now - lane.began), lane.turns, lane.spans.at(-1)?.[0] ?? ""]))];
}

function faults(state, now, run) {
  if (!state.faults.length) return [];
  return [h("h2", null, "Faults of the infrastructure: void attempts"), table(["Attempt", "When", "Fault"],
    state.faults.map((one) => [h("a", { href: link("attempt", { run, id: one.id }) }, legible(one.id)), ago(one.at, now), legible(one.error)]))];
}

function fleet(found) {
  if (!found) return [];
  if (found.error) return [h("h2", null, "Fleet"), h("p", null, tag("error"), " ", legible(found.error))];
  const nodes = (found.nodes || []).map((node) => [legible(node.url), node.healthy ? tag("valid", "", "yes") : tag("broken", "", "no"), `${node.active_containers} / ${node.max_containers}`,
    [node.draining ? "draining" : "", ...(node.failing || [])].filter(Boolean).map(legible).join(", ")]);
  const images = new Map();
  for (const lease of found.leases || []) {
    const key = `${lease.image}\n${lease.node_url}\n${lease.state}`;
    images.set(key, (images.get(key) || 0) + 1);
  }
  const leases = [...images].map(([key, count]) => [...key.split("\n").map(legible), count]);
  return [h("h2", null, `Fleet: ${found.active_leases} leases, ${found.waiting} waiting`), table(["Node", "Healthy", "Boxes", "Trouble"], nodes),
    ...(leases.length ? [h("h2", null, "Leases"), table(["Image", "Node", "State", "Leases"], leases)] : [])];
}

function table(heads, rows) {
  return h("div", { class: "panel wide" }, h("table", null, h("thead", null, h("tr", null, heads.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", null, rows.map((row) => h("tr", { tabindex: "-1" }, row.map((cell) => h("td", null, cell)))))));
}
