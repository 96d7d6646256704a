// Elements, and numbers as people read them. Text goes into text nodes only.

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

export function put(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child instanceof Node));
  return node;
}

// The largest of any number of values: as arguments of Math.max, a hundred thousand would be too many.
export function largest(values, least = -Infinity) {
  return values.reduce((most, value) => Math.max(most, value), least);
}

export function link(page, params) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params || {})) {
    if (value !== "" && value !== null && value !== undefined) query.set(key, value);
  }
  const text = query.toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

export function percent(value, digits = 1) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)}%`;
}

export function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (Number.isInteger(value)) return String(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 0.01) return value.toPrecision(3);
  return value === 0 ? "0" : value.toExponential(1).replace("-", "\u2212");
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 120) return `${seconds.toFixed(0)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

export function ago(then, now = Date.now() / 1000) {
  const seconds = Math.max(0, now - then);
  return seconds < 172800 ? `${duration(Math.round(seconds))} ago` : new Date(then * 1000).toISOString().slice(0, 10);
}

const SIGNS = {
  resolved: "\u2713", unresolved: "\u2717", void: "\u2205", ungraded: "?", passed: "\u2713", failed: "\u2717",
  error: "!", skipped: "\u2212", missing: "?", valid: "\u2713", flaky: "~", hackable: "\u2691", broken: "\u2717",
};

export function tag(word, extra, shown = word) {
  const sign = SIGNS[word];
  return h("span", { class: `tag ${word}` }, sign ? h("span", { "aria-hidden": "true" }, sign) : null, shown, extra);
}

export function sign(word) {
  return SIGNS[word] || "?";
}
