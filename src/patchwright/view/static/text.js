// Text of models and boxes: control characters spelled out, long texts folded, code and diffs set as such.
import { h, put } from "./dom.js";

const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ue000-\uf8ff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const FOLD_LINES = 40;
const FOLD_CHARS = 6000;

export function legible(text) {
  return String(text).replace(/\r\n/g, "\n").replace(UNSAFE, (char) => {
    const code = char.codePointAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

export function pre(text, cls) {
  const whole = legible(text);
  const lines = whole.split("\n");
  const node = h("pre", { class: cls });
  if (lines.length <= FOLD_LINES * 1.5 && whole.length <= FOLD_CHARS * 1.5) {
    node.textContent = whole;
    return node;
  }
  const head = lines.slice(0, FOLD_LINES).join("\n").slice(0, FOLD_CHARS);
  node.textContent = head;
  const left = lines.length > FOLD_LINES ? `${lines.length} lines` : `${whole.length} characters`;
  const button = h("button", { type: "button", class: "more", "aria-expanded": "false" }, `Show all ${left}`);
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    node.textContent = open ? head : whole;
    button.setAttribute("aria-expanded", String(!open));
    button.textContent = open ? `Show all ${left}` : "Show less";
  });
  return h("div", null, node, button);
}

// Prose with ``` blocks: the blocks are set as code.
export function prose(text) {
  const parts = String(text).split(/^```[^\n`]*\n([\s\S]*?)^```[ \t]*$/m);
  return parts.map((part, index) => {
    if (index % 2) return pre(part.replace(/\n$/, ""), "code");
    return part.trim() ? pre(part.replace(/^\n+|\n+$/g, ""), "text") : null;
  });
}

// --- diffs ---------------------------------------------------------------------------------------

export function parseDiff(patch) {
  const files = [];
  let file = null;
  let oldLine = 0;
  let newLine = 0;
  let left = [0, 0];
  for (const line of legible(patch).replace(/\n$/, "").split("\n")) {
    const hunk = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@/.exec(line);
    if (line.startsWith("diff --git ") && left[0] <= 0 && left[1] <= 0) {
      file = { name: line.replace(/^diff --git a\/(.*) b\/.*$/, "$1"), lines: [], added: 0, removed: 0 };
      files.push(file);
      continue;
    }
    if (file === null) {
      file = { name: "", lines: [], added: 0, removed: 0 };
      files.push(file);
    }
    if (hunk) {
      oldLine = Number(hunk[1]);
      newLine = Number(hunk[3]);
      left = [Number(hunk[2] ?? 1), Number(hunk[4] ?? 1)];
      file.lines.push({ kind: "hunk", text: line });
    } else if (left[0] <= 0 && left[1] <= 0) {
      if (line.startsWith("+++ b/")) file.name = line.slice(6).replace(/\t.*$/, "");
      if (!/^(---|\+\+\+|index) /.test(line) && line) file.lines.push({ kind: "note", text: line });
    } else if (line[0] === "+") {
      file.lines.push({ kind: "add", text: line.slice(1), b: newLine++ });
      file.added += 1;
      left[1] -= 1;
    } else if (line[0] === "-") {
      file.lines.push({ kind: "del", text: line.slice(1), a: oldLine++ });
      file.removed += 1;
      left[0] -= 1;
    } else if (line[0] === "\\") {
      file.lines.push({ kind: "note", text: line });
    } else {
      file.lines.push({ kind: "same", text: line.slice(1), a: oldLine++, b: newLine++ });
      left[0] -= 1;
      left[1] -= 1;
    }
  }
  return files;
}

// What differs inside a pair of lines: between their common beginning and end.
function inner(text, other) {
  if (other === undefined) return [text];
  const most = Math.min(text.length, other.length);
  let start = 0;
  while (start < most && text[start] === other[start]) start += 1;
  let end = 0;
  while (end < most - start && text[text.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  if (start + end < 0.3 * text.length || start + end === text.length) return [text];
  return [text.slice(0, start), h("mark", null, text.slice(start, text.length - end)), text.slice(text.length - end)];
}

function pairUp(lines) {
  for (let at = 0; at < lines.length; at += 1) {
    if (lines[at].kind !== "del") continue;
    let dels = at;
    while (dels < lines.length && lines[dels].kind === "del") dels += 1;
    let adds = dels;
    while (adds < lines.length && lines[adds].kind === "add") adds += 1;
    if (adds - dels === dels - at) {
      for (let k = 0; k < dels - at; k += 1) {
        lines[at + k].pair = lines[dels + k].text;
        lines[dels + k].pair = lines[at + k].text;
      }
    }
    at = adds - 1;
  }
}

const DIFF_SIGNS = { add: "+", del: "\u2212", same: "", hunk: "", note: "" };
const FIRST_LINES = 1500;

export function diff(patch) {
  const files = parseDiff(patch);
  return files.map((file) => {
    pairUp(file.lines);
    const body = h("tbody");
    const rows = (lines) => lines.map((line) => h("tr", { class: line.kind },
      h("td", { class: "n" }, line.a ?? ""), h("td", { class: "n" }, line.b ?? ""),
      h("td", { class: "s" }, DIFF_SIGNS[line.kind]), h("td", null, ...inner(line.text, line.pair))));
    body.append(...rows(file.lines.slice(0, FIRST_LINES)));
    const rest = file.lines.slice(FIRST_LINES);
    const more = rest.length ? h("button", { type: "button", onclick: () => { body.append(...rows(rest)); more.remove(); } },
      `Show ${rest.length} more lines`) : null;
    return h("section", { class: "file panel block", tabindex: "-1", "aria-label": `changes to ${file.name}` },
      h("header", null, h("span", null, file.name || "patch"), h("span", { class: "gap" }),
        h("span", null, `+${file.added} \u2212${file.removed}`)),
      h("table", { class: "diff" }, body), more);
  });
}

export function empty(text) {
  return h("p", { class: "quiet" }, text);
}

export function fold(summary, open, make) {
  const details = h("details", { open }, h("summary", null, summary));
  const body = h("div");
  details.append(body);
  const show = () => { if (details.open && !body.hasChildNodes()) put(body, make()); };
  details.addEventListener("toggle", show);
  show();
  return details;
}
