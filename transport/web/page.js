/**
 * The page: one client, the list of sessions, one open conversation. The address names the conversation (`?session=`), the
 * SDK keeps position and view in this tab's storage, so a reload shows at once what was there and goes on from it.
 */
import { find, el } from "./dom.js";
import { Link } from "./link.js";
import { Sidebar } from "./sidebar.js";
import { forget, offered, signIn, signOut, standing } from "./sign-in.js";
import { fit, Thread } from "./thread.js";
import { BusyError, CommandError, itemText, SessileClient, StoppedError } from "./sessile.js";

/** @typedef {import("./sessile.js").Session} Session */
/** @typedef {import("./sessile.js").SessionInfo} SessionInfo */
/** @typedef {import("./thread.js").Pending} Pending */

const LIST_PAGE = 40;
const TITLE_MAX = 60;
const SPOKEN_MAX = 2000;
const STARTERS = ["Explain how tides work, in four sentences.", "Write a haiku about a lighthouse.", "Give me three ideas for a rainy Sunday."];

const storage = tabStorage();
const client = new SessileClient({
  url: `${location.origin}${location.pathname.replace(/\/[^/]*$/, "")}`,
  storage,
  auth: async () => {
    if (offered) await showWho();
    return storage.getItem("sessile-key") ?? undefined;
  },
});

/** sessionStorage, or memory where the browser forbids it. */
function tabStorage() {
  try {
    sessionStorage.getItem("probe");
    return sessionStorage;
  } catch {
    /** @type {Map<string, string>} */
    const map = new Map();
    return {
      getItem: (/** @type {string} */ key) => map.get(key) ?? null,
      setItem: (/** @type {string} */ key, /** @type {string} */ value) => void map.set(key, value),
      removeItem: (/** @type {string} */ key) => void map.delete(key),
    };
  }
}

// -- what is on the page --------------------------------------------------------------------------------------

const app = find("app");
const scroll = find("scroll");
/** @type {HTMLTextAreaElement} */
const message = find("message");
/** @type {HTMLButtonElement} */
const sendButton = find("send");
/** @type {HTMLButtonElement} */
const stopButton = find("stop");
const title = find("title");
const polite = find("polite");

/** @type {Session | null} */
let session = null;
/** A branch that the user chose; null follows the newest. @type {string | null} */
let tip = null;
/** @type {(() => void)[]} */
let leave = [];
/** Refused sends, per session (the empty name: a conversation that was not made yet). @type {Map<string, Pending[]>} */
const failed = new Map();
/** How many items there were when a send was first seen. @type {Map<string, number>} */
const itemsBefore = new Map();
/** Answers that were open when last drawn, for telling when one ends. @type {Set<string>} */
let writing = new Set();
let isFollowing = true;
let isDrawing = false;
let creating = "";

const thread = new Thread(find("thread"), {
  edit: (itemId, text) => void attempt(async () => {
    tip = null;
    await session?.edit(itemId, text);
  }),
  regenerate: (entry) => void attempt(async () => {
    tip = null;
    const parentId = entry.response?.parentId ?? entry.parentId;
    await session?.regenerate({ parent_id: parentId });
  }),
  show: (id) => {
    tip = id;
    isFollowing = false;
    draw();
  },
  cancel: (responseId) => void attempt(async () => void (await session?.cancel(responseId))),
  retry: (pending) => {
    discard(pending);
    void send(pending.text);
  },
  discard,
  appeal: (about) => void attempt(async () => {
    if ("responseId" in about) return void (await session?.appeal(about));
    await (session ?? (await begun({}))).appeal({ content: about.pending.text });
    discard(about.pending);
  }),
});

const sidebar = new Sidebar(find("list"), { open: (id) => go(id), more: () => void loadList(true) });
const link = new Link({ retry: () => client.connect(), askKey });

// -- drawing --------------------------------------------------------------------------------------------------

function draw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    drawNow();
  });
}

function drawNow() {
  const entries = session?.view.thread(tip) ?? [];
  const queued = session?.view.open.filter((response) => response.status === "queued") ?? [];
  const pending = pendings();
  const stay = isFollowing;
  thread.render(entries, queued, pending, [...(session?.view.reviews.values() ?? [])]);
  const isGone = session?.phase === "gone" || session?.phase === "deleted";
  const isEmpty = entries.length + queued.length + pending.length === 0;
  const isKnown = session === null || session.phase === "live";
  find("welcome").hidden = !(isEmpty && isKnown && !isGone);
  find("lost").hidden = !isGone;
  thread.root.hidden = isGone;
  if (isGone) {
    find("lost-text").textContent = session?.phase === "deleted" ? "It was deleted." : (session?.error?.message ?? "It may have been deleted.");
  }
  const name = session === null ? "New conversation" : session.view.title || (isGone ? "Gone" : "Untitled");
  if (title.textContent !== name) title.textContent = name;
  document.title = session === null ? "Sessile" : `${name} · Sessile`;
  find("tools").hidden = session === null || isGone;

  const answering = entries.find((entry) => entry.response?.status === "in_progress")?.response;
  stopButton.hidden = answering === undefined;
  stopButton.dataset["response"] = answering?.id ?? "";
  sendButton.setAttribute("aria-label", answering === undefined ? "Send" : "Send after this answer");
  sendButton.disabled = message.value.trim() === "" || isGone;
  announce();
  drawList();
  if (stay) toEnd();
  drawJump();
}

/** What was typed and is not in the log yet. @returns {Pending[]} */
function pendings() {
  const id = session?.id ?? "";
  const isReady = client.status.phase === "ready";
  /** @type {Pending[]} */
  const list = [];
  if (session === null && creating !== "") list.push({ id: "creating", text: creating, state: isReady ? "sending" : "waiting" });
  for (const frame of client.unanswered) {
    if (frame.session !== id || (frame.type !== "message.create" && frame.type !== "message.edit") || session === null) continue;
    const { items } = session.view;
    const before = itemsBefore.get(frame.id) ?? items.size;
    itemsBefore.set(frame.id, before);
    const text = String(frame["content"]);
    // The event comes before the answer to the command: do not show the same words twice meanwhile.
    const arrived = [...items.values()].slice(before).some((item) => item.role === "user" && itemText(item) === text);
    const isQueued = session.view.open.some((response) => response.waiting && itemText(response.waiting) === text);
    if (!arrived && !isQueued) list.push({ id: frame.id, text, state: isReady ? "sending" : "waiting" });
  }
  return [...list, ...(failed.get(id) ?? [])];
}

/** Tells a screen reader of answers when they are whole, not word by word. */
function announce() {
  const now = new Set((session?.view.open ?? []).filter((response) => response.status === "in_progress").map((response) => response.id));
  for (const id of writing) {
    if (now.has(id) || session === null) continue;
    const text = session.view.text(id);
    const status = session.view.responses.get(id)?.status;
    if (text !== "" || status === "failed") {
      polite.textContent = status === "failed" ? "The answer failed." : `Answer: ${text.slice(0, SPOKEN_MAX)}`;
    }
    void loadList(false);
  }
  if ([...now].some((id) => !writing.has(id))) void loadList(false);
  writing = now;
}

function toEnd() {
  scroll.scrollTop = scroll.scrollHeight;
}

function drawJump() {
  const isAway = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight > 160;
  find("jump").hidden = !isAway;
}

// -- conversations --------------------------------------------------------------------------------------------

/** @param {string | null} id @param {boolean} [isBack] the browser already changed the address */
function go(id, isBack = false) {
  closeSide();
  if (id === (session?.id ?? null) && !isBack) return message.focus();
  keepDraft();
  for (const stop of leave.splice(0)) stop();
  session?.close();
  session = null;
  tip = null;
  writing = new Set();
  isFollowing = true;
  thread.clear();
  closeRename();
  if (!isBack) history.pushState(null, "", id === null ? location.pathname : `?session=${encodeURIComponent(id)}`);
  if (id !== null) {
    const opened = (session = client.session(id));
    leave.push(opened.on("change", draw), opened.on("reset", () => (polite.textContent = "The conversation was restored from an earlier state.")));
    opened.open();
    opened.warm(); // whoever opens a conversation is likely to speak: what the model knew of it comes up meanwhile
  }
  message.value = storage.getItem(`sessile-draft:${id ?? ""}`) ?? "";
  fit(message);
  drawNow();
  if (matchMedia("(hover: hover)").matches) message.focus();
}

function keepDraft() {
  const key = `sessile-draft:${session?.id ?? ""}`;
  if (message.value.trim() === "") storage.removeItem(key);
  else storage.setItem(key, message.value);
}

/** Makes the conversation that the page shows from now on. @param {{ title?: string }} settings */
async function begun(settings) {
  const made = await client.create(settings);
  creating = "";
  if (session === null) {
    history.replaceState(null, "", `?session=${encodeURIComponent(made.id)}`);
    session = made; // already open
    leave.push(made.on("change", draw));
  }
  void loadList(false);
  return made;
}

/** @param {string} text */
async function send(text) {
  isFollowing = true;
  try {
    if (session === null) {
      creating = text;
      draw();
      const made = await begun({ title: shortTitle(text) });
      await made.send(text);
    } else {
      const chosen = tip === null ? undefined : session.view.thread(tip).findLast((entry) => entry.item !== undefined)?.id;
      const sending = session.send(text, { queue: true, ...(chosen === undefined ? {} : { parent_id: chosen }) });
      tip = null;
      draw();
      await sending;
    }
  } catch (error) {
    const id = session?.id ?? "";
    creating = "";
    failed.set(id, [...(failed.get(id) ?? []), { id: `failed-${Date.now()}`, text, state: "failed", error: explain(error), refused: /** @type {any} */ (error).code === "content_filter" }]);
    find("urgent").textContent = `Not sent: ${explain(error)}`;
  }
  draw();
}

/** @param {Pending} pending */
function discard(pending) {
  for (const [id, list] of failed) failed.set(id, list.filter((each) => each.id !== pending.id));
  message.focus();
  draw();
}

/** @param {() => Promise<void>} act what may be refused; the refusal is shown */
async function attempt(act) {
  isFollowing = true;
  draw();
  try {
    await act();
  } catch (error) {
    tell(explain(error));
  }
  draw();
}

/** @param {unknown} error */
function explain(error) {
  if (error instanceof BusyError) return "An answer is still being written here. Stop it, or wait for its end.";
  if (error instanceof CommandError && error.code === "queue_full") return "Too many messages wait already.";
  if (error instanceof CommandError && error.retryAfterMs) return `${error.message} Try again in ${Math.ceil(error.retryAfterMs / 1000)} s.`;
  if (error instanceof StoppedError) return "There is no connection to the server.";
  return error instanceof Error ? error.message : String(error);
}

/** @type {number | undefined} */
let tellTimer;
/** @param {string} text a passing trouble */
function tell(text) {
  const urgent = find("urgent");
  urgent.textContent = text;
  find("notice-text").textContent = text;
  find("notice").hidden = false;
  clearTimeout(tellTimer);
  tellTimer = setTimeout(() => link.draw(), 6000);
}

/** @param {string} text */
function shortTitle(text) {
  const line = text.trim().split("\n")[0] ?? "";
  if (line.length <= TITLE_MAX) return line;
  return `${line.slice(0, TITLE_MAX).replace(/\s+\S*$/, "")}…`;
}

// -- the list -------------------------------------------------------------------------------------------------

/** @type {SessionInfo[]} */
let listed = [];
let hasMore = false;
let isLoading = false;
let isWanted = false;

/** @param {boolean} more the page after what is shown; otherwise what is shown, anew */
async function loadList(more) {
  if (isLoading) {
    isWanted = true;
    return;
  }
  isLoading = true;
  try {
    const last = listed[listed.length - 1];
    const page = await client.page(more && last ? { limit: LIST_PAGE, after: String(last.id) } : { limit: Math.min(100, Math.max(LIST_PAGE, listed.length)) });
    listed = more ? [...listed, ...page.data] : page.data;
    hasMore = page.has_more;
  } catch (error) {
    if (!(error instanceof StoppedError)) tell(`The list of conversations could not be read: ${explain(error)}`);
  }
  isLoading = false;
  draw();
  if (isWanted) {
    isWanted = false;
    void loadList(false);
  }
}

function drawList() {
  const id = session?.id ?? null;
  const rows = listed.map((info) => (info.id === id && session?.view.title ? { ...info, title: session.view.title, open: writing.size > 0 } : info));
  sidebar.render(rows, id, hasMore);
}

// -- the message field ------------------------------------------------------------------------------------------

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = message.value.trim();
  if (text === "") return;
  message.value = "";
  keepDraft();
  fit(message);
  void send(text);
});
message.addEventListener("input", () => {
  fit(message);
  sendButton.disabled = message.value.trim() === "";
  keepDraft();
  if (message.value !== "") session?.warm();
});
message.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    /** @type {HTMLFormElement} */ (find("composer")).requestSubmit();
  } else if (event.key === "Escape" && !stopButton.hidden) stop();
});
stopButton.addEventListener("click", () => {
  stop();
  message.focus();
});
function stop() {
  const id = stopButton.dataset["response"];
  if (id) void attempt(async () => void (await session?.cancel(id)));
}

scroll.addEventListener(
  "scroll",
  () => {
    isFollowing = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48;
    drawJump();
  },
  { passive: true },
);
find("thread").addEventListener("grown", () => {
  if (isFollowing) toEnd();
  drawJump();
});
find("jump").addEventListener("click", () => {
  isFollowing = true;
  toEnd();
  drawJump();
  message.focus();
});
find("skip").addEventListener("click", (event) => {
  event.preventDefault();
  message.focus();
});
for (const text of STARTERS) find("starters").append(el("li", {}, el("button", { class: "starter", type: "button", click: () => void send(text) }, text)));

// -- title, deleting, the drawer, the key -----------------------------------------------------------------------

/** @type {HTMLFormElement} */
const rename = find("rename");
/** @type {HTMLInputElement} */
const renameInput = find("rename-input");
find("rename-open").addEventListener("click", () => {
  renameInput.value = session?.view.title ?? "";
  rename.hidden = false;
  title.hidden = true;
  renameInput.focus();
  renameInput.select();
});
function closeRename() {
  if (rename.hidden) return;
  rename.hidden = true;
  title.hidden = false;
}
rename.addEventListener("submit", (event) => {
  event.preventDefault();
  const name = renameInput.value.trim();
  closeRename();
  find("rename-open").focus();
  if (name !== "" && name !== session?.view.title) {
    void attempt(async () => {
      await session?.update({ title: name });
      void loadList(false);
    });
  }
});
renameInput.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  closeRename();
  find("rename-open").focus();
});

/** @type {HTMLDialogElement} */
const confirmDialog = find("confirm");
find("delete").addEventListener("click", () => {
  find("confirm-text").textContent = `“${session?.view.title || "Untitled"}” and everything said in it will be gone, on all your devices.`;
  confirmDialog.returnValue = "no";
  confirmDialog.showModal();
});
confirmDialog.addEventListener("close", () => {
  const doomed = session;
  if (confirmDialog.returnValue !== "yes" || doomed === null) return;
  void attempt(async () => {
    await doomed.delete();
    storage.removeItem(`sessile-draft:${doomed.id}`);
    listed = listed.filter((info) => info.id !== doomed.id);
    polite.textContent = "The conversation was deleted.";
    if (session === doomed) go(null);
    void loadList(false);
  });
});
find("lost-new").addEventListener("click", () => go(null));
find("new").addEventListener("click", () => go(null));

const narrow = matchMedia("(max-width: 52rem)");
function drawSide() {
  const isShown = app.classList.contains("side-shown");
  find("side").inert = narrow.matches && !isShown;
  find("main").inert = narrow.matches && isShown;
  find("veil").hidden = !(narrow.matches && isShown);
  find("side-open").setAttribute("aria-expanded", String(isShown));
}
function closeSide() {
  if (!app.classList.contains("side-shown")) return;
  app.classList.remove("side-shown");
  drawSide();
  find("side-open").focus();
}
find("side-open").addEventListener("click", () => {
  app.classList.add("side-shown");
  drawSide();
  find("side-close").focus();
});
find("side-close").addEventListener("click", closeSide);
find("veil").addEventListener("click", closeSide);
document.addEventListener("keydown", (event) => event.key === "Escape" && closeSide());
narrow.addEventListener("change", drawSide);

/** @type {HTMLDialogElement} */
const keyDialog = find("key");
/** @type {HTMLInputElement} */
const keyInput = find("key-input");
let takesKeys = true;
function askKey() {
  if (offered) forget();
  find("key-title").textContent = takesKeys ? "This server asks for a key" : "This server asks who you are";
  if (!takesKeys) find("key-text").textContent = "Sign in to see your conversations.";
  else if (storage.getItem("sessile-key")) find("key-text").textContent = "The server does not know that key. Try another one.";
  else find("key-text").textContent = "It is kept in this tab only, and forgotten when you close it.";
  find("key-sign-in").hidden = !offered;
  find("key-field").hidden = find("key-yes").hidden = !takesKeys;
  keyInput.disabled = !takesKeys;
  if (!keyDialog.open) keyDialog.showModal();
}
keyDialog.addEventListener("close", () => {
  if (keyInput.value === "") return;
  storage.setItem("sessile-key", keyInput.value);
  keyInput.value = "";
  client.connect();
});

/** Who is signed in, and the button beside it. A key of this tab is forgotten then: one of the two is enough. */
async function showWho() {
  const state = await standing();
  takesKeys = state.keys;
  if (state.signed_in) storage.removeItem("sessile-key");
  find("who").hidden = false;
  find("who-name").textContent = state.signed_in ? `Signed in as ${state.user}` : "";
  find("who-button").textContent = state.signed_in ? "Sign out" : "Sign in";
}
find("who-button").addEventListener("click", () => {
  if (find("who-button").textContent === "Sign in") return signIn();
  signOut().catch((error) => tell(explain(error)));
});
find("key-sign-in").addEventListener("click", () => signIn());

// -- the connection, and coming back --------------------------------------------------------------------------------

/** What the server says its model is worth, where it says anything. */
async function showWorth() {
  const key = storage.getItem("sessile-key");
  const answer = await fetch("v1/models", { headers: key ? { authorization: `Bearer ${key}` } : {} }).catch(() => null);
  const { data } = answer?.ok ? await answer.json() : { data: [] };
  const worth = find("worth");
  worth.textContent = data[0]?.notice ?? "";
  worth.hidden = !worth.textContent;
}

let wasReady = false;
client.on("status", (status) => {
  link.show(status);
  if (status.phase === "ready" && !wasReady) {
    void loadList(false);
    void showWorth();
  }
  wasReady = status.phase === "ready";
  if (status.phase === "stopped" && status.closeCode === 4401) askKey();
  draw();
});
client.on("unanswered", draw);
client.on("error", (error) => {
  if (error instanceof CommandError) tell(explain(error)); // storage that is full costs a longer reload, no words
});
window.addEventListener("pagehide", () => {
  keepDraft();
  client.suspend();
});
window.addEventListener("pageshow", (event) => event.persisted && client.resume());
window.addEventListener("online", () => client.resume());
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState !== "visible") return client.save();
  client.resume();
  void loadList(false);
});
window.addEventListener("popstate", () => go(new URLSearchParams(location.search).get("session"), true));

drawSide();
link.show(client.status);
client.connect();
go(new URLSearchParams(location.search).get("session"), true);
