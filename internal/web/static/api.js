// Asks the server. The token is in sessionStorage and goes nowhere but into the Authorization header.

const key = "berth-token";

export const hasToken = () => sessionStorage.getItem(key) !== null;
export const keepToken = (token) => sessionStorage.setItem(key, token);
export const dropToken = () => { sessionStorage.removeItem(key); seen.clear(); };

// What was answered last, by question: the server says when it is still so.
const seen = new Map();
const maxSeen = 40;

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

// Numbers that JavaScript can't hold stay exact.
const exact = (_, value, context) =>
  typeof value === "number" && !Number.isSafeInteger(value) && /^\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;

// get gives an answer; the very same object as before when it has not changed.
export async function get(what, params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, v]) => v !== "" && v !== undefined)).toString();
  const url = "api/" + what + (query ? "?" + query : "");
  const headers = { Authorization: "Bearer " + (sessionStorage.getItem(key) ?? "") };
  const before = seen.get(url);
  if (before) headers["If-None-Match"] = before.tag;
  const answer = await fetch(url, { headers, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" });
  if (answer.status === 304 && before) return before.body;
  const text = await answer.text();
  if (!answer.ok) throw new Refused(answer.status, text.trim());
  const body = JSON.parse(text, exact);
  seen.delete(url);
  if (seen.size >= maxSeen) seen.delete(seen.keys().next().value);
  seen.set(url, { tag: answer.headers.get("ETag"), body });
  return body;
}
