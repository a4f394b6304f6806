// Puts the page together: what is shown, what is asked for, and when.

import { dropToken, get, hasToken, keepToken, Refused } from "./api.js";
import { kinds, MapView, paint } from "./map.js";
import { fillSubnets, fillTable, fillUsage, fillWaiting, holderText, make } from "./views.js";

const $ = (id) => document.getElementById(id);
const every = 800, usageEvery = 30000, slowest = 15000;

const shown = { subnet: "", family: "", within: "", from: 0, table: false };
let revision = "", usageAt = 0, failures = 0, timer = 0, looking = false, again = false, asked = 0;

const view = new MapView($("grid"), {
  onFocus: (cell) => tell(cell),
  onOpen: (cell) => (cell.prefix ? go({ within: cell.prefix }) : tell(cell, true)),
  onBack: () => shown.within && go({ within: "" }),
  onHover: (text) => ($("hover").textContent = text),
});

// tell says who has the address that has the focus. Somebody who only passes by asks nothing.
let telling = 0;
function tell(cell, now) {
  clearTimeout(telling);
  if (!cell.address) return $("detail").replaceChildren();
  telling = setTimeout(async () => {
    try {
      const found = await get("find", { q: cell.address });
      $("detail").replaceChildren(...found.who.items.filter((h) => h.subnet === shown.subnet).map((h) => make("p", holderText(cell.address, h))));
    } catch (err) {
      failed(err);
    }
  }, now ? 0 : 250);
  return undefined;
}

// go shows another place.
async function go(change) {
  Object.assign(shown, { from: 0 }, change);
  $("detail").replaceChildren();
  try {
    await draw(true);
  } catch (err) {
    failed(err);
  }
}

// draw waits its turn: of two places the later is shown last.
let turn = Promise.resolve();
function draw(force) {
  turn = turn.catch(() => {}).then(() => drawNow(force));
  return turn;
}

// gone passes over what is no longer there.
const gone = (err) => {
  if (err.status !== 404) throw err;
};

const placeOf = () => ({ subnet: shown.subnet, family: shown.family, within: shown.within });

async function drawNow(force) {
  let place = placeOf();
  const [subnets, waiting, early] = await Promise.all([get("subnets"), get("waiting"), place.subnet ? get("map", place).catch(gone) : undefined]);
  let map = early;
  const counted = subnets.items.filter((s) => s.size !== undefined);
  if (!counted.some((s) => s.name === shown.subnet && s.family === shown.family)) {
    Object.assign(shown, { subnet: counted[0]?.name ?? "", family: counted[0]?.family ?? "", within: "", from: 0 });
  }
  fillSubnets($("subnets"), subnets.items, shown, (s) => go({ subnet: s.name, family: s.family, within: "" }));
  fillWaiting($("waiting"), $("waiting-more"), waiting);
  if (!shown.subnet) return;
  if (!map || place.subnet !== shown.subnet || place.family !== shown.family) {
    if (!map && place.within === shown.within) shown.within = ""; // the subnet is another one now
    map = await get("map", (place = placeOf()));
  }
  $("map-title").textContent = "Map of " + shown.subnet + ", " + shown.family;
  crumbs(map);
  legend(Boolean(map.parts));
  $("grid").hidden = shown.table;
  $("table-view").hidden = !shown.table;
  view.show(map, new Set(waiting.items.flatMap((w) => w.asks.flatMap((a) => a.split(",")))));
  if (shown.table) {
    const rows = map.parts ? { items: map.parts.slice(shown.from, shown.from + 200), from: shown.from, total: map.parts.length } : await get("table", { ...place, from: shown.from });
    fillTable($("table"), rows, Boolean(map.parts), (prefix) => go({ within: prefix }));
    $("where").textContent = rows.total ? `${rows.from + 1} to ${rows.from + rows.items.length} of ${rows.total}` : "no rows";
    $("before").disabled = rows.from === 0;
    $("after").disabled = rows.from + rows.items.length >= rows.total;
  }
  performance.mark("berth-map");
  if (force || Date.now() - usageAt >= usageEvery) {
    usageAt = Date.now();
    fillUsage($("usage"), $("usage-text"), await get("usage", { subnet: shown.subnet, family: shown.family }),
      counted.find((s) => s.name === shown.subnet && s.family === shown.family));
  }
}

function crumbs(map) {
  const whole = make("button", map.cidr, { type: "button", class: "link" });
  whole.addEventListener("click", () => go({ within: "" }));
  $("crumbs").replaceChildren(...(map.within === map.cidr ? [make("span", map.cidr)] : [whole, " › ", make("span", map.within, { "aria-current": "location" })]));
}

function legend(parts) {
  const letters = parts ? ["l", "p", "v", "r", "x", "."] : Object.keys(kinds);
  const style = getComputedStyle(document.documentElement);
  const colours = new Proxy({}, { get: (_, name) => style.getPropertyValue("--" + String(name)).trim() });
  $("legend").replaceChildren(...letters.map((letter) => {
    const canvas = make("canvas", "", { width: 16, height: 16, "aria-hidden": "true" });
    paint(canvas.getContext("2d"), colours, letter, 0, 0, 16);
    return make("li", [canvas, kinds[letter][1]]);
  }));
}

// open shows the page to somebody who has a token.
function open() {
  $("main").hidden = false;
  $("login").hidden = true;
  $("leave").hidden = false;
  return draw(true);
}

// look asks whether there is something new, and shows it.
async function look(force) {
  if (looking) return void (again ||= force);
  looking = true;
  try {
    // Whoever comes for the first time waits for one answer, not for one after another.
    const [state] = await Promise.all([get("state"), force ? open() : undefined]);
    $("who").textContent = `${state.self}; ${state.leader.alive ? "leader: " + state.leader.holder : "NO WORKER LEADS"}; ${state.waiting} waiting`;
    if (!force && (state.revision !== revision || Date.now() - usageAt >= usageEvery)) await draw(false);
    // What was drawn beside the first answer may be of a moment before it: the next look draws again, and costs little.
    revision = force ? "" : state.revision;
    failures = 0;
    $("trouble").hidden = true;
  } catch (err) {
    failed(err);
  } finally {
    looking = false;
  }
  if (again) {
    again = false;
    return look(true);
  }
  return plan();
}

function failed(err) {
  if (err instanceof Refused && (err.status === 401 || err.status === 403)) {
    dropToken();
    return login(err.status === 401 ? "The API server does not know this token, or it has run out." : err.message);
  }
  failures++;
  $("trouble").textContent = err instanceof Refused ? err.message : "The worker does not answer; what is shown may be old. Trying again.";
  $("trouble").hidden = false;
  return undefined;
}

function plan() {
  clearTimeout(timer);
  if (hasToken() && !document.hidden) timer = setTimeout(look, Math.min(slowest, every * 2 ** Math.min(failures, 4)), false);
}

function login(why) {
  clearTimeout(timer);
  revision = "";
  for (const id of ["main", "leave", "trouble"]) $(id).hidden = true;
  $("who").textContent = "";
  $("login").hidden = false;
  $("login-why").textContent = why;
  $("token").focus();
}

async function search() {
  const mine = ++asked;
  const q = $("query").value.trim();
  if (!hasToken()) return;
  if (!q) return void ($("found").hidden = true);
  try {
    const found = await get("find", { q });
    if (mine !== asked) return; // somebody types faster than the answers come
    results(found);
  } catch (err) {
    failed(err);
  }
}

function results(found) {
  const rows = [];
  const jump = (subnet, address, text) => {
    const b = make("button", text, { type: "button", class: "link" });
    b.addEventListener("click", () => jumpTo(subnet, address));
    rows.push(make("li", [b]));
  };
  for (const h of found.who?.items ?? []) jump(h.subnet, h.lease?.address ?? found.who.asked, holderText(found.who.asked, h));
  for (const l of found.leases) jump(l.subnet, l.address, `${l.pod ? l.namespace + "/" + l.pod : l.owner}: ${l.address || l.mac} of ${l.subnet}, ${l.state}`);
  for (const w of found.waiting) rows.push(make("li", `${w.namespace}/${w.name} waits for ${w.why.join("; ")}`));
  const total = (found.who?.items.length ?? 0) + found.total + found.waiting.length;
  $("found-count").textContent = total === 0 ? `Nothing is known of “${found.asked}”.` : rows.length < total ? `The first ${rows.length} of ${total}.` : `${total} found.`;
  $("found-list").replaceChildren(...rows);
  $("found").hidden = false;
}

// jumpTo shows an address on the map and takes the focus there.
async function jumpTo(subnet, address) {
  if (!address || address.split(":").length === 6 && !address.includes("::")) return; // a MAC has no place
  shown.table = false;
  $("as-table").setAttribute("aria-pressed", "false");
  await go({ subnet, family: address.includes(":") ? "IPv6" : "IPv4", within: address });
  if (view.map?.subnet === subnet) view.find(address);
}

function theme(change) {
  const order = ["system", "dark", "light"];
  let now = document.documentElement.dataset.theme ?? "system";
  if (change) {
    now = order[(order.indexOf(now) + 1) % order.length];
    if (now === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    if (now === "system") localStorage.removeItem("berth-theme");
    else localStorage.setItem("berth-theme", now);
  }
  $("theme").textContent = "Theme: " + now;
  view.draw();
  if (change) legend(Boolean(view.map?.parts));
}

function listen() {
  $("theme").addEventListener("click", () => theme(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(false); legend(Boolean(view.map?.parts)); });
  $("leave").addEventListener("click", () => { dropToken(); login("You have signed out."); });
  $("login-form").addEventListener("submit", (e) => {
    e.preventDefault();
    keepToken($("token").value.trim());
    $("token").value = "";
    look(true);
  });
  $("search").addEventListener("submit", (e) => { e.preventDefault(); search(); });
  let typing = 0;
  $("query").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 200); });
  $("query").addEventListener("keydown", (e) => { if (e.key === "Escape") { $("query").value = ""; search(); } });
  document.addEventListener("keydown", (e) => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
    e.preventDefault();
    $("query").focus();
  });
  $("as-table").addEventListener("click", () => {
    shown.table = !shown.table;
    $("as-table").setAttribute("aria-pressed", String(shown.table));
    look(true);
  });
  $("before").addEventListener("click", () => { shown.from = Math.max(0, shown.from - 200); look(true); });
  $("after").addEventListener("click", () => { shown.from += 200; look(true); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && hasToken()) look(false); });
}

listen();
theme(false);
if (hasToken()) look(true);
else login("");
