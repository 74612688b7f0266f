/**
 * The operator's page: what the server says of replicas, load, sessions and usage, read again every few seconds.
 *
 * Everything shown comes from `/v1/operator/…` (the charts: load.js), `/v1/usage` and `/v1/reviews` (reviews.js), and goes in as text. On a
 * gateway of a cluster it is of all replicas together, but for the connections, which are the gateway's own. Rows and cards are kept by what they are of, so that focus and scrolling survive an update. The key is kept in this tab only.
 */

import { arrange, el, find } from "./dom.js";
import { Load } from "./load.js";
import { count, time } from "./numbers.js";
import { Reviews } from "./reviews.js";
import { drawMap, mapKey } from "./session-map.js";
import { CSRF, offered, signIn, signOut, standing } from "./sign-in.js";

const EVERY_MS = 3000;
const KEY = "sessile-key";
const MAP_MAX = "500"; // cells
const MAP_EVERY_MS = 10_000;

/** @type {Map<string, HTMLElement>} */ const cards = new Map();
/** @type {Map<string, HTMLTableRowElement>} */ const rows = new Map();
/** @type {any[]} */ let replicas = [];
let pages = 1;
let asking = false;
let mapAt = -Infinity;

// -- the server -----------------------------------------------------------------------------------------------------

class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @param {string} path @param {{ query?: Record<string, string>, body?: unknown, method?: string, once?: string }} [how] `once`: repeated under this name it is done once */
async function call(path, { query = {}, body, method = body === undefined ? "GET" : "POST", once } = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  const search = given.length === 0 ? "" : `?${new URLSearchParams(given)}`;
  /** @type {Record<string, string>} */ const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key !== null) headers["authorization"] = `Bearer ${key}`;
  else if (offered) {
    await showWho();
    if (method !== "GET") Object.assign(headers, CSRF);
  }
  if (body !== undefined) headers["content-type"] = "application/json";
  if (once !== undefined) headers["idempotency-key"] = once;
  const answer = await fetch(path + search, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, told.error?.message ?? `The server answers ${answer.status}.`);
  return told;
}

/** @param {unknown} error */
function told(error) {
  if (error instanceof Refused) return error.message;
  return "The server does not answer.";
}

/** @param {string} text @param {boolean} [bad] */
function say(text, bad = false) {
  const news = find("news");
  news.textContent = text;
  news.classList.toggle("bad", bad);
}

// -- how well people are served ---------------------------------------------------------------------------------------

/** @param {any} overview */
function showHealth(overview) {
  const { health, doors } = overview;
  const refused = Object.values(doors.refused).reduce((sum, each) => sum + each, 0);
  const lost = (health.activations.takeover ?? 0) + (health.activations.orphaned ?? 0);
  const share = health.in_target === null ? "–" : `${(100 * health.in_target).toFixed(1)}%`;
  /** @type {[string, string, string, boolean][]} */
  const tiles = [
    ["In time", share, "answers within their targets", health.in_target !== null && health.in_target < 0.9],
    ["First token", time(health.ttft_s.p50), `95%: ${time(health.ttft_s.p95)}`, (health.ttft_s.p95 ?? 0) > 5],
    ["Between tokens", time(health.inter_token_s.p50), `95%: ${time(health.inter_token_s.p95)}`, false],
    ["Answers", count(health.answers), `${count(health.decoding)} being written`, false],
    ["Failed", count(health.ended.failed ?? 0), `${count(refused)} commands refused`, (health.ended.failed ?? 0) > 0],
    ["Journal", time(health.journal_s.p50), `99%: ${time(health.journal_s.p99)}`, (health.journal_s.p99 ?? 0) > 0.25],
    ["Sessions read", count(doors.feeds), `${count(doors.connections)} connections so far`, false],
    ["Slow readers", count(doors.slow_readers), `${count(doors.resumes.replay ?? 0)} resumed by replay`, doors.slow_readers > 0],
    ["Failovers", count(lost), `${count(health.activations.restart ?? 0)} after a restart`, lost > 0],
  ];
  const lag = overview.replication_lag_s;
  if (typeof lag === "number") tiles.push(["Copy", time(lag), "of the journal is behind", lag > 10]);
  arrange(find("tiles"), tiles.map(([name, value, about, bad]) => el("div", { class: bad ? "bad" : null },
    el("dt", {}, name), el("dd", {}, value, el("small", {}, about)))));
  const silent = Object.entries(overview.silent).map(([name, why]) => `${name} does not answer: ${why}.`);
  const of = replicas.length === 1 ? `Of ${replicas[0].replica}, since it started` : `Of ${replicas.length} replicas, each since it started`;
  find("health-note").textContent = [`${of}; commands, connections and readers: of this process.`, ...silent].join(" ");
}

// -- replicas -----------------------------------------------------------------------------------------------------------

/** @param {any} replica */
function card(replica) {
  let item = cards.get(replica.replica);
  if (item === undefined) {
    const drain = el("button", { class: "plain", type: "button", click: () => drainOrTakeBack(replica.replica) }, "Drain");
    item = el("li", {},
      el("p", { class: "name" }, el("span", {}, replica.replica), el("span", { class: "tag" })),
      el("p", { class: "about" }),
      el("div", { class: "load", role: "meter", "aria-label": `Load of ${replica.replica}`, "aria-valuemin": 0, "aria-valuemax": 100 }, el("span")),
      el("div", { class: "cells", "aria-hidden": "true" }),
      el("p", { class: "fine map-words" }),
      el("div", { class: "replica-foot" }, el("span", { class: "about" }), drain),
    );
    cards.set(replica.replica, item);
  }
  const tag = /** @type {HTMLElement} */ (item.querySelector(".tag"));
  tag.textContent = replica.state;
  tag.className = `tag ${replica.state}`;
  const [about, of] = /** @type {[HTMLElement, HTMLElement]} */ ([...item.querySelectorAll(".about")]);
  about.textContent = [replica.model, replica.address].filter(Boolean).join(" · ");
  const percent = Math.round(100 * replica.load);
  const slots = replica.slots === null ? "" : ` of ${replica.slots} slots`;
  of.textContent = `Load ${percent}%${slots}`;
  const meter = /** @type {HTMLElement} */ (item.querySelector(".load"));
  meter.classList.toggle("full", replica.load > 1);
  meter.setAttribute("aria-valuenow", String(Math.min(100, percent)));
  meter.setAttribute("aria-valuetext", `${percent}%`);
  /** @type {HTMLElement} */ (meter.firstElementChild).style.width = `${Math.min(100, percent)}%`;
  const drain = /** @type {HTMLButtonElement} */ (item.querySelector("button"));
  const label = replica.state === "draining" ? "Undrain" : "Drain";
  drain.textContent = label;
  drain.disabled = label === "Drain" && replicas.length < 2;
  drain.setAttribute("aria-label", `${label} ${replica.replica}`);
  drain.title = drain.disabled ? "There is no other replica to take its sessions." : "";
  return item;
}

function showReplicas() {
  arrange(find("replicas"), replicas.map(card));
  const select = /** @type {HTMLSelectElement} */ (find("by-replica"));
  const names = ["", ...replicas.map((each) => String(each.replica))];
  if ([...select.options].map((option) => option.value).join("\n") !== names.join("\n")) {
    const chosen = select.value;
    select.replaceChildren(...names.map((name) => el("option", { value: name }, name || "every one")));
    if (names.includes(chosen)) select.value = chosen;
  }
}

// -- sessions -----------------------------------------------------------------------------------------------------------

/**
 * @typedef {HTMLElement} Cell
 * @typedef {[Cell, Cell, Cell, Cell, Cell, Cell, Cell, Cell]} Cells
 */

/** @param {any} session */
function row(session) {
  const name = `${session.tenant}/${session.session}`;
  let line = rows.get(name);
  if (line === undefined) {
    const cell = (/** @type {string} */ title, kind = "") => el("td", { "data-title": title, class: kind || null });
    const move = el("button", { class: "plain", type: "button", "aria-label": `Hand off ${name}` }, "Hand off");
    line = el("tr", {}, el("th", { scope: "row", "data-title": "Session" }, el("span", { class: "id" }, name)),
      cell("Where"), cell("State"), cell("Open answer"), cell("KV"), cell("Readers", "number"), cell("Why there"), el("td", { "data-title": "" }, move));
    rows.set(name, line);
  }
  const [, where, state, open, kv, readers, why, last] = /** @type {Cells} */ ([...line.children]);
  where.textContent = session.replica;
  const idle = session.state === "idle" ? ` ${Math.round(session.idle_s)} s` : "";
  if (state.textContent !== session.state + idle) {
    state.replaceChildren(el("span", { class: `tag ${session.state}` }, session.state + idle));
  }
  open.textContent = session.open.length === 0 ? "none" : session.open.join(" ");
  open.className = session.open.length === 0 ? "none" : "id";
  kv.textContent = session.kv_tokens === 0 ? "none" : `${session.kv_tier}, ${count(session.kv_tokens)} tokens`;
  kv.className = session.kv_tokens === 0 ? "none" : "";
  readers.textContent = count(session.readers);
  why.textContent = session.reason;
  const move = /** @type {HTMLButtonElement} */ (last.firstElementChild);
  move.disabled = replicas.length < 2;
  move.title = replicas.length < 2 ? "There is no other replica." : "";
  move.onclick = () => askHandOff(session);
  return line;
}

/** Of each replica's sessions those that there is a cell for. @param {any[]} sessions */
function showMap(sessions) {
  for (const replica of replicas) {
    const item = cards.get(replica.replica);
    const cells = /** @type {HTMLElement | null | undefined} */ (item?.querySelector(".cells"));
    const words = /** @type {HTMLElement | null | undefined} */ (item?.querySelector(".map-words"));
    if (cells && words) drawMap(cells, words, sessions.filter((each) => each.replica === replica.replica), replica.sessions);
  }
}

/** The table has them all, if nothing is filtered out and they are few; else they are read for themselves, and less often. @param {any} query @param {any[]} listed @param {boolean} whole */
async function refreshMap(query, listed, whole) {
  if (whole && Object.values(query).every((value) => value === "")) return showMap(listed);
  if (performance.now() - mapAt < MAP_EVERY_MS) return;
  mapAt = performance.now();
  showMap((await call("/v1/operator/sessions", { query: { limit: MAP_MAX } })).data);
}

/** @param {string} id */
const chosen = (id) => /** @type {HTMLInputElement} */ (find(id)).value.trim();

async function showSessions() {
  const query = { replica: chosen("by-replica"), state: chosen("by-state"), tenant: chosen("by-tenant"), session: chosen("by-session") };
  /** @type {any[]} */ const data = [];
  let after = "";
  let told;
  for (let page = 0; page < pages; page++) {
    told = await call("/v1/operator/sessions", { query: { ...query, limit: "50", after } });
    data.push(...told.data);
    after = told.last_id ?? "";
    if (!told.has_more) break;
  }
  await refreshMap(query, data, !told.has_more);
  const shown = data.map(row);
  const names = new Set(data.map((each) => `${each.tenant}/${each.session}`));
  for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  const nothing = el("tr", {}, el("td", { colspan: 8, class: "none", "data-title": "" }, "No session is in memory that fits. Parked ones are in no memory: whoever speaks to them wakes them."));
  arrange(find("sessions"), shown.length === 0 ? [nothing] : shown);
  find("sessions-count").textContent = count(told.total);
  find("more").hidden = !told.has_more;
  find("sessions-note").textContent = Object.entries(told.silent).map(([name, why]) => `${name} does not answer: ${why}`).join(" ");
}

// -- usage ----------------------------------------------------------------------------------------------------------------

async function showUsage() {
  const by = chosen("group");
  const found = await call("/v1/usage", { query: { from: chosen("from"), to: chosen("to"), group_by: by, tenant: chosen("usage-tenant"), limit: "200" } });
  const dimensions = by.split(",");
  const titles = [...dimensions.map((name) => name.charAt(0).toUpperCase() + name.slice(1)), "Answers", "Input", "Cached", "Output", "Retried", "Withheld", "Cost"];
  arrange(find("usage-head"), titles.map((title, index) => el("th", { scope: "col", class: index < dimensions.length ? null : "number" }, title)));
  const lines = found.data.map((/** @type {any} */ each) => {
    const cost = each.cost === null ? "–" : `${each.cost.amount} ${each.cost.currency}`;
    const numbers = [each.responses, each.input_tokens, each.cached_tokens, each.output_tokens, each.retried_tokens, each.withheld_tokens];
    const named = dimensions.map((name, index) => el(index === 0 ? "th" : "td", { scope: index === 0 ? "row" : null, "data-title": titles[index] }, each[name] ?? "nobody named"));
    return el("tr", {}, ...named,
      ...numbers.map((value, index) => el("td", { class: "number", "data-title": titles[dimensions.length + index] }, count(value))),
      el("td", { class: "number", "data-title": "Cost" }, cost));
  });
  const nothing = el("tr", {}, el("td", { colspan: titles.length, class: "none", "data-title": "" }, "Nothing was used in this time."));
  arrange(find("usage"), lines.length === 0 ? [nothing] : lines);
  find("usage-note").textContent = `Tenant ${found.tenant}${found.has_more ? "; the first 200 lines" : ""}.`;
}

// -- asking before something is done ------------------------------------------------------------------------------------

const dialog = /** @type {HTMLDialogElement} */ (find("ask"));

/**
 * @param {string} title @param {string} text @param {string} yes @param {string[] | null} to
 * @returns {Promise<string | null>} where to ("" for wherever it is best), or null
 */
function ask(title, text, yes, to) {
  find("ask-title").textContent = title;
  find("ask-text").textContent = text;
  find("ask-yes").textContent = yes;
  find("ask-where").hidden = to === null;
  const select = /** @type {HTMLSelectElement} */ (find("ask-to"));
  select.replaceChildren(el("option", { value: "" }, "wherever it is best"), ...(to ?? []).map((name) => el("option", {}, name)));
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? select.value : null), { once: true });
  });
}

/** @param {string} replica */
async function drainOrTakeBack(replica) {
  if (replicas.find((each) => each.replica === replica)?.state === "draining") {
    await act(`${replica} takes sessions again.`, `/v1/operator/replicas/${encodeURIComponent(replica)}/undrain`, {});
    return;
  }
  const text = "All its sessions are handed to other replicas, answers under way included. Readers do not notice. It takes nothing new until you undrain it, or start it again.";
  if ((await ask(`Drain ${replica}?`, text, "Drain it", null)) === null) return;
  await act(`${replica} is handing its sessions off.`, `/v1/operator/replicas/${encodeURIComponent(replica)}/drain`, {});
}

/** @param {any} session */
async function askHandOff(session) {
  const others = replicas.filter((each) => each.replica !== session.replica && each.state === "serving").map((each) => String(each.replica));
  const to = await ask(`Hand off ${session.session}?`, `It is on ${session.replica} and goes on elsewhere at the next token. Readers do not notice.`, "Hand it off", others);
  if (to === null) return;
  const path = `/v1/operator/sessions/${encodeURIComponent(session.tenant)}/${encodeURIComponent(session.session)}/handoff`;
  await act((answer) => `${session.session} is on ${answer.replica} now.`, path, { replica: session.replica, to });
}

/** @param {string | ((answer: any) => string)} done @param {string} path @param {unknown} body */
async function act(done, path, body) {
  try {
    const answer = await call(path, { body });
    say(typeof done === "string" ? done : done(answer));
  } catch (error) {
    say(told(error), true);
  }
  await refresh();
}

// -- the key --------------------------------------------------------------------------------------------------------------

const keyDialog = /** @type {HTMLDialogElement} */ (find("key"));

/** @param {string} why */
function askKey(why) {
  if (keyDialog.open) return;
  find("key-text").textContent = sessionStorage.getItem(KEY) === null ? "It is kept in this tab only." : why;
  find("key-sign-in").hidden = !offered;
  keyDialog.showModal();
}

find("key-form").addEventListener("submit", () => {
  sessionStorage.setItem(KEY, chosen("key-input"));
  /** @type {HTMLInputElement} */ (find("key-input")).value = "";
  void refresh().then(usage);
});

/** Who is signed in, and the button beside it. */
async function showWho() {
  const state = await standing();
  find("who").hidden = false;
  find("who-name").textContent = state.signed_in ? `Signed in as ${state.user}` : "";
  find("who-button").textContent = state.signed_in ? "Sign out" : "Sign in";
}
find("who-button").addEventListener("click", () => {
  if (find("who-button").textContent === "Sign in") return signIn();
  signOut().catch((error) => say(told(error), true));
});
find("key-sign-in").addEventListener("click", () => signIn());

const load = new Load(call, told);
find("map-key").replaceChildren(mapKey());
const reviews = new Reviews(call, told, () => void refresh());

// -- keeping up to date ---------------------------------------------------------------------------------------------------

/** @param {boolean} good @param {string} text */
function pulse(good, text) {
  find("pulse").className = `pulse ${good ? "good" : "bad"}`;
  if (find("pulse-text").textContent !== text) find("pulse-text").textContent = text;
}

async function refresh() {
  if (asking) return;
  asking = true;
  try {
    const overview = await call("/v1/operator/overview");
    replicas = overview.replicas;
    showHealth(overview);
    showReplicas();
    load.offer(replicas.map((each) => String(each.replica)));
    await load.refresh();
    await showSessions();
    await reviews.show();
    const serving = replicas.filter((each) => each.state === "serving").length;
    pulse(serving > 0, serving > 0 ? `${serving} of ${replicas.length} serving` : "No replica is serving");
  } catch (error) {
    pulse(false, told(error));
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) askKey(error.message);
  } finally {
    asking = false;
  }
}

async function usage() {
  try {
    await showUsage();
  } catch (error) {
    find("usage-note").textContent = told(error);
  }
}

find("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  pages = 1;
  void refresh();
});
for (const id of ["by-replica", "by-state"]) {
  find(id).addEventListener("change", () => {
    pages = 1;
    void refresh();
  });
}
find("usage-filters").addEventListener("submit", (event) => {
  event.preventDefault();
  void usage();
});
find("group").addEventListener("change", () => void usage());
find("more").addEventListener("click", () => {
  pages++;
  void refresh();
});

const today = new Date();
/** @type {HTMLInputElement} */ (find("to")).value = today.toISOString().slice(0, 10);
/** @type {HTMLInputElement} */ (find("from")).value = new Date(today.getTime() - 29 * 86_400_000).toISOString().slice(0, 10);
for (const table of document.querySelectorAll("table")) table.classList.add("stack");

const keep = /** @type {HTMLInputElement} */ (find("keep"));
setInterval(() => {
  if (keep.checked && !document.hidden && !dialog.open && !keyDialog.open && !reviews.open) void refresh();
}, EVERY_MS);
void refresh().then(usage);
