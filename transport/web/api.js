/** The server's HTTP interface with this tab's key, or the cookie of who signed in; and what this tab keeps. */
import { CSRF, offered } from "./sign-in.js";
import { t } from "./texts.js";
import { leaving } from "./wipe.js";

export const base = `${location.origin}${location.pathname.replace(/\/[^/]*$/, "")}`;
export const KEY = "sessile-key";

const inner = tabStorage();

/** What this tab keeps: sessionStorage, or memory where the browser forbids it. */
export const storage = {
  getItem: (/** @type {string} */ name) => inner.getItem(name),
  setItem(/** @type {string} */ name, /** @type {string} */ value) {
    if (!leaving.is || name === KEY) inner.setItem(name, value);
  },
  removeItem: (/** @type {string} */ name) => inner.removeItem(name),
};

function tabStorage() {
  try {
    sessionStorage.getItem("probe");
    return sessionStorage;
  } catch {
    /** @type {Map<string, string>} */
    const map = new Map();
    return {
      getItem: (/** @type {string} */ name) => map.get(name) ?? null,
      setItem: (/** @type {string} */ name, /** @type {string} */ value) => void map.set(name, value),
      removeItem: (/** @type {string} */ name) => void map.delete(name),
    };
  }
}

/** What the server answered instead; `status` 0: it did not. */
export class Refusal extends Error {
  /** @param {number} status @param {string} message @param {string} [code] */
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** What an error says to people: the server's own words about keys are for programs. @param {unknown} error */
export function sentence(error) {
  const { code } = /** @type {{ code?: string }} */ (error ?? {});
  if (code === "unauthorized" && !storage.getItem(KEY)) return offered ? t("The server asks who you are.") : t("The server asks for a key.");
  if (code === "forbidden") return t("You may not do that here. Ask whoever gave you your key or account.");
  return error instanceof Error ? t(error.message) : String(error);
}

/** The headers that say who asks. @param {boolean} writes @returns {Record<string, string>} */
export function credentials(writes) {
  const key = storage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}` } : offered && writes ? { ...CSRF } : {};
}

/** @param {string} path below the server's address @param {{ method?: string, body?: unknown }} [how] @returns {Promise<Response>} */
export async function request(path, { method, body } = {}) {
  const headers = credentials(method !== undefined);
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(`${base}/${path}`, { method: method ?? "GET", headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) }).catch(() => null);
  if (answer === null) throw new Refusal(0, "There is no connection to the server.");
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  throw new Refusal(answer.status, error?.message ?? `The server answers ${answer.status}.`, error?.code);
}

/** @param {string} path @param {{ method?: string, body?: unknown }} [how] @returns {Promise<any>} */
export async function call(path, how) {
  const answer = await request(path, how);
  return answer.status === 204 ? null : answer.json();
}
