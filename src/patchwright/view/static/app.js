// Which page is shown, and what stands above every page.
import { get, turnPage } from "./api.js";
import { attemptView } from "./attempt.js";
import { comparePage } from "./compare.js";
import { h, link, put } from "./dom.js";
import { help, listen } from "./keys.js";
import { attemptsPage, tasksPage } from "./lists.js";
import { livePage } from "./live.js";
import { runsPage } from "./runs.js";

const NAV = [["runs", "Runs"], ["attempts", "Attempts"], ["tasks", "Tasks"], ["live", "Live"]];
const main = document.getElementById("main");
let runs = [];
let leave = null;

function place() {
  const [page, query = ""] = location.hash.replace(/^#\//, "").split("?");
  return { page: page || "runs", params: Object.fromEntries(new URLSearchParams(query)), address: location.hash };
}

async function attemptPage(params, address) {
  const data = await get("attempt", { run: params.run, id: params.id });
  const where = { run: params.run, tab: params.tab, remember: (tab) => {
    if (location.hash !== address) return; // on the way to another page
    where.tab = tab;
    history.replaceState(null, "", link("attempt", { run: params.run, id: params.id, tab: tab === "conversation" ? "" : tab }));
    address = location.hash;
  } };
  await attemptView(main, data, where, () => get("tokens", { run: params.run, id: params.id }));
}

const PAGES = {
  runs: () => runsPage(main),
  attempts: (params) => attemptsPage(main, params, runs),
  tasks: (params) => tasksPage(main, params, runs),
  attempt: attemptPage,
  compare: (params) => comparePage(main, params),
  live: (params) => livePage(main, params),
};

let before = "";

async function show() {
  turnPage();
  const { page, params, address } = place();
  leave?.();
  leave = null;
  try {
    if (!runs.length) runs = (await get("runs")).runs;
    if (page !== "runs" && !params.run && runs.length) params.run = runs[0].name;
    top(page, params);
    const left = await (PAGES[page] || PAGES.runs)(params, address);
    leave = typeof left === "function" ? left : null;
    document.title = `${params.id || NAV.find(([key]) => key === page)?.[1] || "Patchwright"} \u00b7 ${params.run || "Patchwright"}`;
  } catch (error) {
    listen({ Escape: ["Back to the runs", () => { location.hash = link("runs"); }] });
    put(main, h("h1", null, "This could not be shown"), h("p", { role: "alert" }, error.message), h("p", null, h("a", { href: link("runs") }, "Back to the runs")));
  }
  if (before !== page + (params.id || "")) { window.scrollTo(0, 0); document.getElementById("said").textContent = document.title; }
  before = page + (params.id || "");
}

function top(page, params) {
  const current = params.run || runs[0]?.name || "";
  put(document.getElementById("nav"), ...NAV.map(([key, name]) => h("a", { href: link(key, key === "runs" ? {} : { run: current }),
    "aria-current": key === page || (key === "attempts" && ["attempt", "compare"].includes(page)) ? "page" : null }, name)));
  const select = document.getElementById("run");
  put(select, ...runs.map((run) => h("option", { value: run.name, selected: run.name === current }, run.name)));
  select.onchange = () => { location.hash = link(["tasks", "live"].includes(page) ? page : "attempts", { run: select.value }); };
}

const THEMES = ["auto", "light", "dark"];

function theme(next) {
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  document.getElementById("theme").textContent = `Theme: ${next}`;
  localStorage.setItem("theme", next);
}

const cleaned = new URL(location.href);
if (cleaned.searchParams.has("token")) {
  cleaned.searchParams.delete("token");
  history.replaceState(null, "", cleaned.pathname + cleaned.search + cleaned.hash);
}
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "auto");
document.getElementById("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("theme")) + 1) % THEMES.length]));
document.getElementById("keys").addEventListener("click", () => help());
window.addEventListener("hashchange", show);
setInterval(async () => { if (!document.hidden && place().page !== "runs") runs = (await get("runs").catch(() => ({ runs }))).runs; }, 30000);
show();
