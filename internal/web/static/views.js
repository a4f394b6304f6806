// Fills tables and the chart. Everything goes in as text, never as markup.

export function make(name, content, attributes = {}) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...[content].flat());
  return e;
}

const number = (v) => make("td", v === undefined ? "–" : String(v), { class: "n" });

export function fillSubnets(table, items, shown, choose) {
  const focused = table.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  table.tBodies[0].replaceChildren(...items.map((s) => {
    const key = s.name + " " + (s.family ?? "");
    const here = s.name === shown.subnet && s.family === shown.family;
    const button = make("button", s.name, { type: "button", class: "link", "data-key": key });
    button.addEventListener("click", () => choose(s));
    if (s.size === undefined) {
      return make("tr", [make("th", s.name, { scope: "row" }), make("td", s.family ?? "–"), make("td", s.cidr ?? "–"), make("td", s.problem ?? "no addresses", { colspan: 9 })]);
    }
    const used = make("td", [make("meter", "", { min: 0, max: Number(s.size) || 1, value: s.leased, "aria-label": `${s.leased} of ${s.size} leased` })]);
    return make("tr", [make("th", [button], { scope: "row" }), make("td", s.family), make("td", s.cidr), used,
      ...["size", "leased", "bound", "pending", "resting", "reserved", "excluded", "free"].map((f) => {
        const cell = number(s[f]);
        cell.dataset.figure = f;
        return cell;
      })], here ? { "aria-current": "true", "data-row": key } : { "data-row": key });
  }));
  if (focused) [...table.querySelectorAll("button")].find((b) => b.dataset.key === focused)?.focus();
}

export function fillWaiting(table, more, waiting) {
  const rows = waiting.items.map((w) => make("tr", [make("th", w.namespace + "/" + w.name, { scope: "row" }),
    make("td", [make("time", new Date(w.created).toLocaleString(), { datetime: w.created })]), make("td", w.from.join(", ") || "–"),
    make("td", w.asks.join(", ") || "–"), make("td", w.why.map((text) => make("div", text)))]));
  table.tBodies[0].replaceChildren(...(rows.length ? rows : [make("tr", [make("td", "No pod waits.", { colspan: 5 })])]));
  more.textContent = waiting.total > rows.length ? `${waiting.total - rows.length} more wait; the oldest are shown.` : "";
}

export function fillTable(table, rows, parts, open) {
  const head = parts ? ["Network", "Bound", "Pending", "Reserved", "Resting", "Excluded", "Free"] : ["Address", "Count", "State", "Who", "MAC", "Network of the pod"];
  table.tHead.replaceChildren(make("tr", head.map((h) => make("th", h, { scope: "col" }))));
  table.tBodies[0].replaceChildren(...rows.items.map((r) => {
    if (parts) {
      const button = make("button", r.prefix, { type: "button", class: "link" });
      button.addEventListener("click", () => open(r.prefix));
      return make("tr", [make("th", [button], { scope: "row" }), ...["bound", "pending", "reserved", "resting", "excluded", "free"].map((f) => number(r[f] ?? 0))]);
    }
    const l = r.lease ?? {};
    return make("tr", [make("th", r.last ? r.first + " to " + r.last : r.first, { scope: "row" }), number(r.count), make("td", r.state),
      make("td", l.pod ? l.namespace + "/" + l.pod : l.owner ?? ""), make("td", l.mac ?? ""), make("td", l.provider ?? "")]);
  }));
}

export function holderText(address, h) {
  const who = h.who ? h.state + ", " + h.who : h.state;
  const lease = h.lease ? `; ${h.lease.state}, ${h.lease.mac ?? "no MAC"}, network ${h.lease.provider ?? "–"}, claim ${h.lease.claim}` : "";
  const freed = h.freed ? `; freed ${new Date(h.freed).toLocaleString()}${h.formerOwner ? " by " + h.formerOwner : ""}` : "";
  return `${address} of ${h.subnet}: ${who}${lease}${freed}`;
}

const svg = (name, attributes) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  return e;
};

export function fillUsage(box, text, usage, subnet) {
  const points = usage.samples.map((s) => [s.at, s.bound + s.pending + s.reserved]);
  const now = subnet?.leased ?? points.at(-1)?.[1] ?? 0;
  if (points.length < 2) {
    box.replaceChildren();
    text.textContent = `${now} leased now. This worker has looked for less than a minute.`;
    return;
  }
  const values = points.map(([, n]) => n);
  const low = Math.min(...values), high = Math.max(...values);
  const bottom = Math.max(0, low - Math.max(1, (high - low) * 0.2)), span = high - bottom || 1;
  const end = points.at(-1)[0], x = (at) => 1000 - ((end - at) / 3600) * 1000, y = (n) => 80 - ((n - bottom) / span) * 70;
  const line = points.map(([at, n]) => x(at).toFixed(1) + "," + y(n).toFixed(1));
  const chart = svg("svg", { viewBox: "0 0 1000 90", preserveAspectRatio: "none", role: "img", "aria-labelledby": "usage-text" });
  chart.append(svg("polygon", { class: "area", points: `${x(points[0][0]).toFixed(1)},90 ${line.join(" ")} 1000,90` }), svg("polyline", { class: "edge", points: line.join(" ") }));
  box.replaceChildren(chart);
  text.textContent = `Leased in the last ${Math.round((end - points[0][0]) / 60)} minutes: ${low} to ${high}, now ${now} of ${subnet?.size ?? "?"}.`;
}
