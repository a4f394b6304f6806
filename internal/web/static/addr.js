// Addresses as numbers, and back.

const v4 = (n) => [24n, 16n, 8n, 0n].map((s) => (n >> s) & 255n).join(".");

function v6(n) {
  const groups = [];
  for (let s = 112n; s >= 0n; s -= 16n) groups.push(((n >> s) & 0xffffn).toString(16));
  let best = { at: -1, len: 1 };
  for (let i = 0; i < 8; i++) {
    let j = i;
    while (j < 8 && groups[j] === "0") j++;
    if (j - i > best.len) best = { at: i, len: j - i };
  }
  if (best.at < 0) return groups.join(":");
  return groups.slice(0, best.at).join(":") + "::" + groups.slice(best.at + best.len).join(":");
}

export function parse(text) {
  if (!text.includes(":")) return text.split(".").reduce((n, part) => (n << 8n) | BigInt(part), 0n);
  const [head, tail] = text.split("::");
  const words = (t) => (t ? t.split(":") : []);
  const first = words(head), last = words(tail);
  const zeros = tail === undefined ? 0 : 8 - first.length - last.length;
  return [...first, ...Array(zeros).fill("0"), ...last].reduce((n, w) => (n << 16n) | BigInt("0x" + w), 0n);
}

// plus is the address that comes so many after another.
export function plus(base, count) {
  const n = parse(base) + BigInt(count);
  return base.includes(":") ? v6(n) : v4(n);
}
