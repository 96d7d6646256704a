// The keyboard: what the page in view listens to, a moving mark for j and k, and the list of all of it.
import { h, put } from "./dom.js";

let table = {};
let mark = null;

// keys: {"x": ["what it does", act]}; blocks: selector of what j and k move over.
export function listen(keys, blocks) {
  table = keys;
  mark = blocks ? { selector: blocks, node: null } : null;
}

export function marked() {
  return mark && mark.node && mark.node.isConnected ? mark.node : null;
}

export function move(by) {
  const nodes = mark ? [...document.querySelectorAll(mark.selector)].filter((node) => node.offsetParent !== null) : [];
  if (!nodes.length) return;
  const at = nodes.indexOf(marked());
  const next = nodes[Math.max(0, Math.min(nodes.length - 1, at < 0 ? (by > 0 ? 0 : nodes.length - 1) : at + by))];
  for (const node of nodes) node.classList.toggle("here", node === next);
  mark.node = next;
  next.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

const ALWAYS = { j: "Next", k: "Previous", "/": "Search", "?": "This list", Esc: "Leave the search, close the list, go back" };

export function help(show = true) {
  const box = document.getElementById("help");
  const rows = Object.entries({ ...ALWAYS, ...Object.fromEntries(Object.entries(table).map(([key, [what]]) => [key, what])) });
  const close = h("button", { type: "button", onclick: () => help(false) }, "Close");
  put(box, h("div", { role: "dialog", "aria-modal": "true", "aria-labelledby": "help-title" },
    h("h1", { id: "help-title" }, "Keyboard"),
    h("dl", null, rows.map(([key, what]) => [h("dt", null, h("kbd", null, key)), h("dd", null, what)])), close));
  box.hidden = !show;
  if (show) close.focus();
}

function escape(event) {
  const box = document.getElementById("help");
  if (!box.hidden) help(false);
  else if (event.target.matches("input, select")) event.target.blur();
  else if (table.Escape) table.Escape[1]();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target instanceof Element && event.target.matches("input[type=search], input[type=text], textarea, select");
  if (event.key === "Escape") escape(event);
  else if (typing) return;
  else if (!document.getElementById("help").hidden) { if (event.key === "Tab") event.preventDefault(); return; }
  else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
  else if (event.key === "?") help();
  else if (event.key === "/") document.querySelector("input[type=search]")?.focus();
  else if (event.key === "Enter") {
    if (marked() !== event.target || !event.target.dataset.href) return; // a link or a button: the browser's own
    location.hash = event.target.dataset.href;
  }
  else if (table[event.key]) table[event.key][1]();
  else return;
  if (event.key !== "Escape") event.preventDefault();
});
