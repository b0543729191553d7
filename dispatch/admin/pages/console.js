"use strict";
// The pages work without this script; it keeps them current, filters and sorts tables, and sends actions.
const REFRESH_MS = 2000;
const root = document.documentElement;
const stored = localStorage.getItem("theme");
if (stored) root.dataset.theme = stored;
document.getElementById("theme")?.addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  localStorage.setItem("theme", root.dataset.theme = now === "dark" ? "light" : "dark");
});

// -- what changes: parts with data-live are replaced by those of the same page, read again --------------------------
const shown = new WeakMap();
let reading = false, due = 0, events = null;
async function refresh() {
  if (reading || document.hidden || document.querySelector("dialog[open]")) return;
  reading = true;
  try {
    const response = await fetch(location.href, {headers: {Accept: "text/html"}});
    if (response.redirected) { location.href = response.url; return; }
    if (response.ok === (document.querySelector("[data-error]") !== null)) { location.reload(); return; }
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.querySelector(`[data-live="${part.dataset.live}"]`), html = other?.innerHTML;
      if (!other || html === (shown.get(part) ?? part.innerHTML)) continue;
      shown.set(part, html);
      replace(part, other);
    }
    for (const table of document.querySelectorAll("table.sortable")) sort(table);
    for (const input of document.querySelectorAll("[data-filter]")) filter(input);
    root.dataset.offline = "";
  } catch { root.dataset.offline = "1"; } finally { reading = false; }
}
// Focus and sideways scroll stay: an element is the same if it and the first link of its row lead to the same place.
const identify = each => [each.closest("tr")?.querySelector("a")?.href, each.href, each.dataset.path, each.dataset.action, each.ariaLabel].join();
function replace(part, other) {
  const focused = part.contains(document.activeElement) && identify(document.activeElement);
  const scrolled = [...part.querySelectorAll(".scroll")].map(each => each.scrollLeft);
  part.replaceChildren(...other.childNodes);
  part.querySelectorAll(".scroll").forEach((each, at) => { each.scrollLeft = scrolled[at] ?? 0; });
  if (focused) [...part.querySelectorAll("a, button, .scroll")].find(each => identify(each) === focused)?.focus({preventScroll: true});
}
// A browser has six connections to a host for all its tabs: only a page that is seen, not one in the history, has a stream.
function listen(isSeen) {
  if (isSeen === (events !== null)) return;
  events?.close();
  events = isSeen ? new EventSource("/api/events/stream") : null;
  for (const kind of ["circuit", "instance", "catalog", "source", "change-held", "action", "broker"])
    events?.addEventListener(kind, () => { clearTimeout(due); due = setTimeout(refresh, 100); });
}
if (document.querySelector("[data-live]")) {
  setInterval(refresh, REFRESH_MS);
  addEventListener("pageshow", () => listen(!document.hidden));
  addEventListener("pagehide", () => listen(false));
  document.addEventListener("visibilitychange", () => listen(!document.hidden));
}

document.querySelector("nav [aria-current]")?.scrollIntoView({block: "nearest", inline: "center"});

// -- tables ----------------------------------------------------------------------------------------------------
function filter(input) {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  const part = document.getElementById(input.dataset.filter), rows = [...part.querySelectorAll("tbody tr")];
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
  }
  part.closest(".scroll, section").classList.toggle("unmatched", rows.length > 0 && rows.every(row => row.hidden));
}
for (const input of document.querySelectorAll("[data-filter]")) input.addEventListener("input", () => filter(input));
function sort(table) {
  const heads = [...table.tHead.rows[0].cells], at = heads.findIndex(head => head.ariaSort);
  if (at < 0) return;
  const sign = heads[at].ariaSort === "descending" ? -1 : 1;
  const key = row => row.cells[at]?.dataset.sort ?? row.cells[at]?.textContent.trim() ?? "";
  const rows = [...table.tBodies[0].rows].map(row => [key(row), row]);
  rows.sort(([a], [b]) => sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}
for (const button of document.querySelectorAll(".sortable th button")) button.addEventListener("click", () => {
  const head = button.closest("th"), first = head.classList.contains("n") ? "descending" : "ascending";
  const next = head.ariaSort ? (head.ariaSort === "descending" ? "ascending" : "descending") : first;
  for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
  head.ariaSort = next;
  sort(head.closest("table"));
});

// -- actions ---------------------------------------------------------------------------------------------------
const dialog = document.getElementById("act");
let acting = null;
document.addEventListener("click", event => {
  const button = event.target.closest("button[data-path]");
  if (!button) return;
  acting = button.dataset;
  const form = dialog.querySelector("form");
  dialog.querySelector("h2").textContent = acting.what;
  dialog.querySelector(".duration").hidden = acting.durable === undefined;
  dialog.querySelector(".error").textContent = "";
  form.reason.value = "";
  if (form.user) form.user.value = localStorage.getItem("user") || "";
  dialog.showModal();
  form.reason.focus();
});
dialog?.querySelector("[value=cancel]").addEventListener("click", () => dialog.close());
dialog?.querySelector("form").addEventListener("submit", async event => {
  event.preventDefault();
  const form = event.target, button = event.submitter, body = {reason: form.reason.value};
  for (const name of ["action", "fingerprint", "version", "service"]) if (acting[name]) body[name] = acting[name];
  if (form.user) localStorage.setItem("user", body.user = form.user.value);
  if (acting.durable !== undefined && form.for.value) body.for = Number(form.for.value);
  button.disabled = true;
  try {
    await post(acting.path, body);
    dialog.close();
    refresh();
  } catch (error) { dialog.querySelector(".error").textContent = error.message; } finally { button.disabled = false; }
});
async function post(path, body) {
  const sent = {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
  const response = await fetch(path, sent).catch(() => {
    throw new Error("The process does not answer. It may have acted: look at its history when it is back.");
  });
  if (response.ok) return;
  if (response.status === 401 && path !== "/sign-in") throw new Error("You are signed out. Reload the page to sign in; nothing was done.");
  const answer = await response.json().catch(() => ({error: `The answer is ${response.status} ${response.statusText}, and not of this process.`}));
  throw new Error(answer.error);
}
document.getElementById("sign-in")?.addEventListener("submit", async event => {
  event.preventDefault();
  try {
    await post("/sign-in", {token: event.target.token.value});
    const wanted = new URL(new URLSearchParams(location.search).get("to") ?? "/", location.origin);
    location.href = wanted.origin === location.origin ? wanted.href : "/";
  } catch (error) { event.target.querySelector(".error").textContent = error.message; event.target.token.select(); }
});
document.getElementById("sign-out")?.addEventListener("click", () =>
  post("/sign-out", {}).finally(() => { location.href = "/sign-in"; }));

// -- keys ------------------------------------------------------------------------------------------------------
let going = 0;
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog?.open) return;
  if (event.target.matches("input, select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
  if (event.key === "/") { event.preventDefault(); document.querySelector(".filter")?.focus(); }
  else if (event.key === "g") going = Date.now();
  else if (Date.now() - going < 1500) { document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`)?.click(); going = 0; }
});
