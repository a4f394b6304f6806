// The map: a canvas to look at, and above it one real element that has the focus and says where it is.

import { parse, plus } from "./addr.js";

export const kinds = {
  ".": ["free", "free"], l: ["leased", "leased"], a: ["asked", "leased, asked for"], p: ["pending", "pending"],
  v: ["reserved", "reserved"], r: ["resting", "resting"], x: ["excluded", "excluded"], k: ["kept", "kept for somebody"],
  g: ["gateway", "gateway"], "-": ["unusable", "unusable"], w: ["wanted", "a waiting pod asks for it"],
};

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function palette() {
  return Object.fromEntries(
    ["free", "leased", "asked", "pending", "reserved", "resting", "excluded", "kept", "gateway", "mark", "quiet", "focus"].map((n) => [n, colour(n)]));
}

// paint draws one cell. Each kind has a shape of its own: colour alone tells nobody anything.
export function paint(g, c, letter, x, y, s) {
  const [kind] = kinds[letter];
  const w = s - 1;
  const line = (...points) => {
    g.beginPath();
    points.forEach(([px, py], i) => (i ? g.lineTo(x + px * w, y + py * w) : g.moveTo(x + px * w, y + py * w)));
    g.stroke();
  };
  g.lineWidth = 1;
  if (kind === "unusable") {
    g.strokeStyle = c.quiet;
    return line([0.2, 0.5], [0.8, 0.5]);
  }
  g.fillStyle = kind === "wanted" ? c.free : c[kind];
  if (kind === "resting") {
    g.fillStyle = c.free;
    g.fillRect(x, y, w, w);
    g.fillStyle = c.resting;
    g.fillRect(x, y + w / 2, w, w / 2);
    return undefined;
  }
  g.fillRect(x, y, w, w);
  g.strokeStyle = c.mark;
  g.fillStyle = c.mark;
  if (kind === "asked" || kind === "kept") g.fillRect(x + w * 0.35, y + w * 0.35, w * 0.3, w * 0.3);
  if (kind === "pending") line([0, 1], [1, 0]);
  if (kind === "reserved") line([0.15, 0.5], [0.85, 0.5]);
  if (kind === "excluded") line([0, 0], [1, 1]);
  if (kind === "gateway") line([0.5, 0.15], [0.5, 0.85]);
  if (kind === "wanted") want(g, c, x, y, s);
  return undefined;
}

function want(g, c, x, y, s) {
  g.strokeStyle = c.focus;
  g.lineWidth = 2;
  g.strokeRect(x + 1, y + 1, s - 3, s - 3);
}

// paintPart draws a part as a column: what is in use from below, what is excluded from above.
function paintPart(g, c, part, step, x, y, s) {
  const w = s - 1;
  const size = Number(part.size || step) || 1;
  const bar = (n) => (n ? Math.max(1, Math.round((w * n) / size)) : 0);
  g.fillStyle = c.free;
  g.fillRect(x, y, w, w);
  let up = y + w;
  for (const [kind, n] of [["leased", part.bound], ["pending", part.pending], ["reserved", part.reserved], ["resting", part.resting]]) {
    const h = Math.min(bar(n || 0), up - y);
    g.fillStyle = c[kind];
    g.fillRect(x, up - h, w, h);
    up -= h;
  }
  g.fillStyle = c.excluded;
  g.fillRect(x, y, w, Math.min(bar(Number(part.excluded || 0)), up - y));
}

const words = (part) => {
  const out = [["leased to pods", part.bound], ["pending", part.pending], ["reserved", part.reserved], ["resting", part.resting],
    ["excluded", part.excluded], ["free", part.free]].filter(([, n]) => n).map(([word, n]) => n + " " + word);
  return out.join(", ") || "nothing in it";
};

export class MapView {
  // onFocus hears of the cell that has the focus, onOpen of one that is entered, onBack when somebody wants out.
  constructor(root, { onFocus, onOpen, onBack, onHover }) {
    Object.assign(this, { root, onFocus, onOpen, onBack, onHover, at: 0, map: null, wanted: new Set() });
    this.canvas = root.querySelector("canvas");
    this.row = document.createElement("div");
    this.row.setAttribute("role", "row");
    root.append(this.row);
    root.addEventListener("keydown", (e) => this.key(e));
    root.addEventListener("click", (e) => this.mouse(e, (i) => { this.move(i, true); if (this.map.parts) this.onOpen(this.info(i)); }));
    root.addEventListener("mousemove", (e) => this.mouse(e, (i) => this.onHover(this.label(i))));
    new ResizeObserver(() => this.draw()).observe(root);
  }

  get count() { return this.map ? (this.map.cells ?? this.map.parts ?? []).length : 0; }

  show(map, wanted) {
    const same = this.map && map.subnet === this.map.subnet && map.family === this.map.family && map.within === this.map.within;
    this.map = map;
    this.wanted = wanted;
    if (!same) this.at = 0;
    this.at = Math.min(this.at, Math.max(0, this.count - 1));
    this.root.setAttribute("aria-label", "Addresses of " + map.within + " of subnet " + map.subnet);
    this.draw();
  }

  layout() {
    const width = Math.max(200, this.root.clientWidth - 1);
    const gutter = this.map.sparse ? 0 : 130;
    const room = width - gutter;
    let columns = this.count > 4096 ? 128 : this.count > 1024 ? 64 : 32;
    while (columns > 8 && room / columns < 8) columns /= 2;
    const size = Math.max(7, Math.min(22, Math.floor(room / columns)));
    return { gutter, columns, size, rows: Math.ceil(this.count / columns) };
  }

  draw() {
    if (!this.map || this.root.hidden || !this.root.clientWidth) return;
    const l = (this.shape = this.layout());
    const c = palette();
    const scale = devicePixelRatio || 1;
    const width = l.gutter + l.columns * l.size, height = Math.max(1, l.rows) * l.size;
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.canvas.style.width = width + "px";
    this.canvas.style.height = height + "px";
    const g = this.canvas.getContext("2d");
    g.scale(scale, scale);
    for (let i = 0; i < this.count; i++) this.cell(g, c, i);
    this.labels(g, c);
    this.root.setAttribute("aria-rowcount", l.rows);
    this.root.setAttribute("aria-colcount", l.columns);
    this.move(this.at, this.root.contains(document.activeElement));
  }

  place(i) {
    const { gutter, columns, size } = this.shape;
    return [gutter + (i % columns) * size, Math.floor(i / columns) * size, size];
  }

  cell(g, c, i) {
    const [x, y, s] = this.place(i);
    if (this.map.parts) return paintPart(g, c, this.map.parts[i], this.map.step, x, y, s);
    paint(g, c, this.map.cells[i], x, y, s);
    if (this.wanted.size && this.wanted.has(this.address(i))) want(g, c, x, y, s);
    return undefined;
  }

  labels(g, c) {
    const { gutter, columns, size, rows } = this.shape;
    if (!gutter) return;
    g.fillStyle = c.quiet;
    g.font = "12px ui-monospace, monospace";
    const every = Math.max(1, Math.ceil(15 / size));
    for (let row = 0; row < rows; row += every) {
      const i = row * columns;
      g.fillText(this.map.parts ? this.map.parts[i].prefix : this.address(i), 0, row * size + Math.max(11, size / 2 + 5), gutter - 6);
    }
  }

  address(i) { return plus(this.map.within.split("/")[0], i); }

  info(i) {
    return this.map.parts ? { prefix: this.map.parts[i].prefix } : { address: this.address(i), letter: this.map.cells[i] };
  }

  label(i) {
    if (this.map.parts) return this.map.parts[i].prefix + ": " + words(this.map.parts[i]);
    const a = this.address(i);
    return a + ": " + kinds[this.map.cells[i]][1] + (this.wanted.has(a) ? ", " + kinds.w[1] : "");
  }

  // move makes another cell the one that Tab reaches; focus takes the focus there as well.
  move(i, focus) {
    if (!this.count) return this.row.replaceChildren();
    this.at = Math.max(0, Math.min(this.count - 1, i));
    const [x, y, s] = this.place(this.at);
    const label = this.label(this.at);
    const before = this.row.firstChild;
    const moved = before?.getAttribute("aria-label") !== label;
    const cell = moved ? document.createElement("div") : before; // what says the same stays, or it would be read out again
    cell.setAttribute("role", "gridcell");
    cell.setAttribute("aria-label", label);
    cell.setAttribute("aria-colindex", (this.at % this.shape.columns) + 1);
    cell.tabIndex = 0;
    Object.assign(cell.style, { left: x - 1 + "px", top: y - 1 + "px", width: s + 1 + "px", height: s + 1 + "px" });
    this.row.setAttribute("aria-rowindex", Math.floor(this.at / this.shape.columns) + 1);
    if (moved) this.row.append(cell);
    if (focus) {
      cell.focus({ preventScroll: true });
      if (moved) cell.scrollIntoView({ block: "nearest" });
    }
    if (moved) before?.remove();
    if (focus && moved) this.onFocus(this.info(this.at));
    return undefined;
  }

  // find takes the focus to an address, or to the part that has it.
  find(address) {
    if (!this.count) return;
    const n = parse(address);
    if (this.map.cells) return void this.move(Number(n - parse(this.map.within.split("/")[0])), true);
    const i = this.map.parts.findLastIndex((p) => parse(p.prefix.split("/")[0]) <= n);
    if (i >= 0) this.move(i, true);
  }

  key(e) {
    if (!this.count || e.altKey || e.metaKey) return;
    const { columns } = this.shape;
    const start = this.at - (this.at % columns);
    const to = {
      ArrowRight: this.at + 1, ArrowLeft: this.at - 1, ArrowDown: Math.min(this.at + columns, this.count - 1), ArrowUp: Math.max(this.at - columns, this.at % columns),
      Home: e.ctrlKey ? 0 : start, End: e.ctrlKey ? this.count - 1 : start + columns - 1,
      PageDown: Math.min(this.at + 10 * columns, this.count - 1), PageUp: Math.max(this.at - 10 * columns, this.at % columns),
    }[e.key];
    if (to !== undefined) this.move(to, true);
    else if (e.key === "Enter" || e.key === " ") this.onOpen(this.info(this.at));
    else if (e.key === "Backspace" || e.key === "Escape") this.onBack();
    else return;
    e.preventDefault();
  }

  mouse(e, then) {
    if (!this.count) return;
    const box = this.canvas.getBoundingClientRect();
    const { gutter, columns, size } = this.shape;
    const column = Math.floor((e.clientX - box.left - gutter) / size), row = Math.floor((e.clientY - box.top) / size);
    const i = row * columns + column;
    if (column >= 0 && column < columns && row >= 0 && i < this.count) then(i);
  }
}
