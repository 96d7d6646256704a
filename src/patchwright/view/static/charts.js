// Small charts: curves with their bands, and rates with their intervals. Values on hover, and by arrow keys.
import { figure, h, largest, percent, put, svg } from "./dom.js";

const W = 300;
const H = 128;
const LEFT = 40;
const RIGHT = 6;
const TOP = 8;
const BOTTOM = 18;
const COLOURS = 6;

export function colour(index) {
  return `c${index % COLOURS}`;
}

// Round figures from at most `low` to at least `high`, about so many.
export function ticks(low, high, about = 3) {
  const flat = high - low < 1e-12 * Math.max(1, Math.abs(high));
  const from = flat ? low - (Math.abs(low) * 0.1 || 0) : low;
  const to = flat ? high + (Math.abs(high) * 0.1 || 0.1) : high;
  const rough = (to - from) / about;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((one) => one * unit >= rough * 0.999) * unit;
  const first = Math.floor(from / step + 1e-9);
  const last = Math.ceil(to / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}

// curves: [{name, index, points: [[x, y, low?, high?]]}]
export function chart(title, curves, { rate = false } = {}) {
  const shown = curves.filter((curve) => curve.points.length);
  const say = rate ? percent : figure;
  const xs = shown.flatMap((curve) => curve.points.map((point) => point[0]));
  const ys = shown.flatMap((curve) => curve.points.flatMap((point) => point.slice(1)));
  const least = (values) => -largest(values.map((value) => -value));
  const [x0, x1] = [least(xs), largest(xs)];
  const marks = ticks(rate ? 0 : least(ys), largest(ys, rate ? 0.1 : -Infinity));
  const [y0, y1] = [marks[0], marks.at(-1)];
  const x = (value) => LEFT + ((W - LEFT - RIGHT) * (x1 === x0 ? 0.5 : (value - x0) / (x1 - x0)));
  const y = (value) => TOP + (H - TOP - BOTTOM) * (1 - (value - y0) / (y1 - y0 || 1));
  const parts = marks.map((value) => [svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 5, y: y(value) + 3, "text-anchor": "end" }, rate ? percent(value, 0) : plain(value))]);
  parts.push(svg("text", { x: LEFT, y: H - 4 }, x0));
  if (x1 > x0) parts.push(svg("text", { x: W - RIGHT, y: H - 4, "text-anchor": "end" }, x1));
  for (const curve of shown) parts.push(draw(curve, x, y));
  const cross = svg("line", { class: "cross", y1: TOP, y2: H - BOTTOM, visibility: "hidden" });
  const last = shown.length === 1 ? say(shown[0].points.at(-1)[1]) : "";
  const summary = shown.map((curve) => `${curve.name}: last ${say(curve.points.at(-1)[1])} at ${curve.points.at(-1)[0]}`);
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", tabindex: "0", "aria-label": `${title}. ${summary.join("; ")}` },
    parts, cross);
  const tip = h("div", { class: "tip", hidden: true });
  const box = h("figure", { class: "chart block" }, h("header", null, h("h3", null, title), h("span", { class: "last" }, last)), picture, tip);
  box.style.margin = "0";
  follow(box, picture, cross, tip, { shown, x, say, steps: [...new Set(xs)].sort((a, b) => a - b) });
  return box;
}

// A round figure, as short as it can be said.
function plain(value) {
  if (Math.abs(value) >= 1e4 || (value && Math.abs(value) < 1e-3)) return figure(value);
  return String(value).replace("-", "\u2212");
}

function draw(curve, x, y) {
  const line = curve.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
  const banded = curve.points.filter((point) => point.length > 3);
  const band = banded.length > 1 ? svg("polygon", { class: "band", points: [
    ...banded.map((point) => `${x(point[0])},${y(point[3])}`),
    ...banded.slice().reverse().map((point) => `${x(point[0])},${y(point[2])}`)].join(" ") }) : null;
  const dots = curve.points.length < 16
    ? curve.points.map((point) => svg("circle", { class: "dot", cx: x(point[0]), cy: y(point[1]), r: 2 })) : [];
  const dash = curve.index >= COLOURS ? "4 3" : null;
  return svg("g", { class: colour(curve.index) }, band,
    svg("polyline", { class: "curve", points: line.join(" "), "stroke-dasharray": dash }), dots);
}

function follow(box, picture, cross, tip, { shown, x, say, steps }) {
  let at = -1;
  const show = (index) => {
    at = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[at];
    cross.setAttribute("x1", x(step));
    cross.setAttribute("x2", x(step));
    cross.setAttribute("visibility", "visible");
    const rows = shown.map((curve) => {
      const point = curve.points.find((one) => one[0] === step);
      const band = point && point.length > 3 ? ` [${say(point[2])}, ${say(point[3])}]` : "";
      return point ? h("div", { class: `key ${colour(curve.index)}` }, h("span", { class: "swatch" }), curve.name,
        h("span", { class: "v" }, say(point[1]) + band)) : null;
    });
    put(tip, h("div", { class: "quiet" }, `step ${step}`), rows);
    tip.hidden = false;
    const right = x(step) > W / 2;
    tip.style.left = right ? "auto" : `${(100 * x(step)) / W + 4}%`;
    tip.style.right = right ? `${100 - (100 * x(step)) / W + 4}%` : "auto";
  };
  const hide = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  picture.addEventListener("pointermove", (event) => {
    const frame = picture.getBoundingClientRect();
    const place = ((event.clientX - frame.left) / frame.width) * W;
    let best = 0;
    steps.forEach((step, index) => { if (Math.abs(x(step) - place) < Math.abs(x(steps[best]) - place)) best = index; });
    show(best);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("focus", () => { if (picture.matches(":focus-visible")) show(steps.length - 1); });
  picture.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) { show(at + by); event.preventDefault(); }
  });
}

// rows: [{name, index, rate, low, high, text}]; one line each, over one axis from 0.
export function rates(rows, label) {
  const marks = ticks(0, Math.max(0.05, ...rows.map((row) => row.high)), 4);
  const top = marks.at(-1);
  const name = Math.min(260, 24 + 6 * Math.max(...rows.map((row) => row.name.length)));
  const width = 640;
  const value = 150;
  const x = (rate) => name + (width - name - value) * (rate / top);
  const height = rows.length * 20 + 20;
  const lines = marks.map((rate) => [
    svg("line", { class: "grid", x1: x(rate), x2: x(rate), y1: 0, y2: height - 18 }),
    svg("text", { x: x(rate), y: height - 5, "text-anchor": "middle" }, percent(rate, 0))]);
  const dots = rows.map((row, index) => {
    const middle = index * 20 + 11;
    return svg("g", { class: colour(row.index) },
      svg("text", { x: name - 8, y: middle + 3.5, "text-anchor": "end" }, row.name),
      svg("line", { class: "whisker", x1: x(row.low), x2: x(row.high), y1: middle, y2: middle }),
      svg("circle", { class: "dot", cx: x(row.rate), cy: middle, r: 4 }),
      svg("text", { x: width - value + 10, y: middle + 3.5 }, row.text));
  });
  const summary = rows.map((row) => `${row.name} ${row.text}`).join("; ");
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label}: ${summary}` }, lines, dots);
}
