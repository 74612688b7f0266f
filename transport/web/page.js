/**
 * The page: one client, the list of sessions, one open conversation. The address names the conversation (`?session=`), the
 * SDK keeps position and view in this tab's storage, so a reload shows at once what was there and goes on from it.
 */
import { Account } from "./account.js";
import { base, call, storage } from "./api.js";
import { Attachments, contentOf, filesOf, hasContent, namesOf, wordsOf } from "./attachments.js";
import { keeping } from "./copies.js";
import { openMenu } from "./dialogs.js";
import { el, find, isComposing } from "./dom.js";
import { explain, FailedMessages } from "./failed-messages.js";
import { reasonOf } from "./feedback.js";
import { listen, openPreferences } from "./help.js";
import { asksForKey, Link } from "./link.js";
import { ConversationList } from "./list.js";
import { prefer, preferences, read, write } from "./preferences.js";
import { PushButton } from "./push.js";
import { edited, given } from "./settings.js";
import { fit, refuseLonger, Thread } from "./thread.js";
import { CommandError, itemText, SessileClient } from "./sessile.js";
import { t, translate } from "./texts.js";
import { shortTitle, UntitledConversations } from "./untitled.js";
import { FIRST_WORDS, leaving } from "./wipe.js";

export { loadMaths } from "./maths.js";
export { Markdown, parser } from "./markdown.js"; // for tests, as Thread is: the page runs no module that it does not name
export { Thread } from "./thread.js";

/** @typedef {import("./sessile.js").ContentPart} ContentPart */
/** @typedef {import("./sessile.js").Session} Session */
/** @typedef {import("./sessile.js").SessionInfo} SessionInfo */
/** @typedef {import("./settings.js").Settings} Settings */
/** @typedef {import("./thread.js").Pending} Pending */

const TITLE_AFTER_MS = 30_000; // a model that writes titles has written by then
const SPOKEN_MAX = 2000;
const STARTERS = [t("Explain how tides work, in four sentences."), t("Write a haiku about a lighthouse."), t("Give me three ideas for a rainy Sunday.")];
const FRESH = "sessile-fresh";
const FIRST_WORDS_MAX = 50;

translate(document.body);
const client = new SessileClient({ url: base, storage: keeping, auth: () => account.key() });
const account = new Account({ connect: () => client.connect(), failed: (error) => tell(explain(error)), mayChat: (may) => link.allow(may) });

// -- what is on the page --------------------------------------------------------------------------------------

const app = find("app");
const scroll = find("scroll");
/** @type {HTMLTextAreaElement} */
const message = find("message");
/** @type {HTMLButtonElement} */
const sendButton = find("send");
/** @type {HTMLButtonElement} */
const stopButton = find("stop");
const attachments = new Attachments({ list: find("attachments"), input: find("files"), area: app, field: message, tell, changed: () => (sendButton.disabled = !maySend()), sees: () => seesImages(session === null ? fresh.model : settingsSeen(session).model) });
const isGone = () => session?.phase === "gone" || session?.phase === "deleted";
const maySend = () => !isGone() && attachments.obstacle === "" && (message.value.trim() !== "" || !attachments.isEmpty);
const title = find("title");
const polite = find("polite");

/** @type {Session | null} */
let session = null;
/** A branch that the user chose; null follows the newest. @type {string | null} */
let tip = null;
/** @type {(() => void)[]} */
let leave = [];
const failed = new FailedMessages();
/** How many items there were when a send was first seen. @type {Map<string, number>} */
const itemsBefore = new Map();
/** Answers that were open when last drawn, for telling when one ends. @type {Set<string>} */
let writing = new Set();
let isFollowing = true;
let isDrawing = false;
/** The first message of a conversation that is being made. @type {{ text: string, files: ContentPart[] } | null} */
let creating = null;
/** The first words of conversations that were begun or read here and have no title yet. @type {Map<string, string>} */
const firstWords = new Map(read(FIRST_WORDS, /** @type {[string, string][]} */ ([])));
const untitled = new UntitledConversations();
/** @type {import("./settings.js").Model[]} */
let models = [];
let reading = Promise.resolve(); // until they are known
/** What the next new conversation is made with. @type {Settings} */
let fresh = JSON.parse(storage.getItem(FRESH) ?? "{}");
/** The model that answers the next message of a conversation, where another one was chosen. @type {Map<string, string>} */
const chosenModels = new Map();

const thread = new Thread(find("thread"), {
  edit: (itemId, text) => edit(itemId, text, filesOf(session?.view.items.get(itemId))),
  draft: (itemId) => edits()[itemId],
  keepDraft: (itemId, text) => {
    const { [itemId]: _, ...others } = edits();
    storage.setItem(`sessile-edits:${session?.id}`, JSON.stringify(text === null ? others : { ...others, [itemId]: text }));
  },
  regenerate: (entry) => void attempt(async () => {
    tip = null;
    const parentId = entry.response?.parentId ?? entry.parentId;
    await turn(session, (asked, options) => asked.regenerate({ parent_id: parentId, ...options }));
  }),
  show: (id) => {
    tip = id;
    isFollowing = false;
    draw();
  },
  cancel: (responseId) => void attempt(async () => void (await session?.cancel(responseId))),
  retry: (pending) => {
    forget(pending);
    if (pending.itemId !== undefined) edit(pending.itemId, pending.text, pending.files);
    else void send(pending.text, pending.files);
  },
  discard: (pending) => (failed.discard(pending), forget(pending)),
  compose: (pending) => {
    forget(pending);
    if (pending.itemId !== undefined && pending.files.length > 0 && thread.edit(pending.itemId, pending.text)) return;
    if (pending.itemId === undefined) attachments.restore(pending.files);
    message.value = [pending.text, message.value].filter((words) => words.trim() !== "").join("\n\n");
    keepDraft();
    fit(message);
  },
  tell: (text) => tell(text),
  appeal: (about) => void attempt(async () => {
    if ("responseId" in about) return void (await session?.appeal(about));
    await (session ?? (await begun(about.pending.text))).appeal({ content: about.pending.text });
    forget(about.pending);
  }),
  rate: (responseId, rating) => void rate(responseId, rating),
  prices: () => models,
  cost: (response) => {
    const { usage } = response;
    const price = models.find((each) => each.id === response.model)?.price;
    if (usage?.["cost"]) return /** @type {any} */ (usage["cost"]);
    if (!usage || !price) return null;
    const cached = usage.input_tokens_details?.cached_tokens ?? 0;
    const amount = ((usage.input_tokens - cached) * price.input + cached * price.cached_input + usage.output_tokens * price.output) / 1e6;
    return { amount, currency: price.currency };
  },
});

/** What edits of this conversation's messages were left with, by message. @returns {Record<string, string>} */
const edits = () => JSON.parse(storage.getItem(`sessile-edits:${session?.id}`) ?? "{}");

const list = new ConversationList(client, {
  open: (id) => go(id),
  changed: () => draw(),
  loaded: () => void untitled.look(list.listed.filter(({ id, title }) => !title && !firstWords.has(String(id))), draw),
  deleted: (id) => {
    for (const kind of ["draft", "edits"]) storage.removeItem(`sessile-${kind}:${id}`);
    attachments.clear(id);
    failed.clear(id);
    if (session?.id === id) go(null);
  },
  failed: (text) => tell(text),
  done: (text) => (find("polite").textContent = text),
  attempt: (act) => act().catch((error) => tell(explain(error))),
  tip: (id) => (id === session?.id ? tip : null),
});
const link = new Link({ retry: () => client.connect(), askKey: () => account.ask() });

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
  thread.render(entries, queued, pending, [...(session?.view.reviews.values() ?? [])], (id) => session?.view.feedbackOf(id)?.rating ?? "");
  const isEmpty = entries.length + queued.length + pending.length === 0;
  const isKnown = session === null || session.phase === "live";
  find("welcome").hidden = !(isEmpty && isKnown && !isGone());
  find("lost").hidden = !isGone();
  thread.root.hidden = isGone();
  if (isGone()) {
    find("lost-text").textContent = session?.phase === "deleted" ? t("It was deleted.") : (session?.error?.message ?? t("It may have been deleted."));
  }
  find("absent").hidden = !(isEmpty && session?.phase === "attaching" && client.status.phase === "offline");
  const name = session === null ? t("New conversation") : titleOf(session) || (isGone() ? t("Gone") : t("Untitled"));
  if (title.textContent !== name) title.textContent = name;
  document.title = session === null ? "Sessile" : `${name} · Sessile`;
  find("tools").hidden = session === null || isGone();

  const answering = entries.find((entry) => entry.response?.status === "in_progress")?.response;
  stopButton.hidden = answering === undefined;
  stopButton.dataset["response"] = answering?.id ?? "";
  sendButton.setAttribute("aria-label", answering === undefined ? t("Send") : t("Send after this answer"));
  sendButton.disabled = !maySend();
  drawSettings();
  announce();
  list.draw(known, session?.id ?? null);
  if (stay) toEnd();
  drawJump();
}

/** @param {string | null | undefined} model null: the first */
const seesImages = (model) => models.find(({ id }) => !model || id === model)?.input_modalities?.includes("image") ?? false;

/** The model, and whether this conversation has settings of its own. */
function drawSettings() {
  const { model, instructions, temperature, max_output_tokens } = session === null ? fresh : settingsSeen(session);
  const isOwn = Boolean(instructions) || typeof temperature === "number" || typeof max_output_tokens === "number";
  const text = `${model ?? models[0]?.id ?? t("Model")}${isOwn ? ` · ${t("own settings")}` : ""}`;
  if (find("settings-model").textContent !== text) find("settings-model").textContent = text;
}

/** @param {Session} of @returns {Settings} */
function settingsSeen({ id, view }) {
  return { model: chosenModels.get(String(id)) ?? view.model, instructions: view.instructions, temperature: view.temperature, max_output_tokens: view.maxOutputTokens };
}

/** What was typed and is not in the log yet. @returns {Pending[]} */
function pendings() {
  const id = session?.id ?? "";
  const isReady = client.status.phase === "ready";
  /** @type {Pending[]} */
  const list = [];
  if (client.unanswered.length === 0) itemsBefore.clear();
  if (session === null && creating !== null) list.push({ id: "creating", ...creating, state: isReady ? "sending" : "waiting" });
  for (const frame of client.unanswered) {
    if (frame.session !== id || (frame.type !== "message.create" && frame.type !== "message.edit") || session === null) continue;
    const { items } = session.view;
    const before = itemsBefore.get(frame.id) ?? items.size;
    itemsBefore.set(frame.id, before);
    const content = /** @type {string | ContentPart[]} */ (frame["content"]);
    // The event comes before the answer to the command: do not show the same words twice meanwhile.
    const arrived = [...items.values()].slice(before).some((item) => item.role === "user" && hasContent(item, content));
    const isQueued = session.view.open.some((response) => response.waiting && hasContent(response.waiting, content));
    if (!arrived && !isQueued) list.push({ id: frame.id, text: wordsOf(content), files: filesOf({ content }), state: isReady ? "sending" : "waiting" });
  }
  return [...list, ...failed.list(id)];
}

/** Tells a screen reader of answers when they are whole, not word by word. */
function announce() {
  const now = new Set((session?.view.open ?? []).filter((response) => response.status === "in_progress").map((response) => response.id));
  for (const id of writing) {
    if (now.has(id) || session === null) continue;
    const text = session.view.text(id);
    const status = session.view.responses.get(id)?.status;
    if (text !== "" || status === "failed") {
      polite.textContent = status === "failed" ? t("The answer failed.") : t("Answer: {text}", { text: text.slice(0, SPOKEN_MAX) });
      entitle(session);
    }
    void list.load(false);
  }
  if ([...now].some((id) => !writing.has(id))) void list.load(false);
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
    leave.push(opened.on("change", draw), opened.on("reset", () => (polite.textContent = t("The conversation was restored from an earlier state."))));
    opened.open();
    opened.live().then(() => entitle(opened), () => undefined);
    opened.warm(); // whoever opens a conversation is likely to speak: what the model knew of it comes up meanwhile
  }
  message.value = storage.getItem(`sessile-draft:${id ?? ""}`) ?? "";
  attachments.show(id ?? "");
  fit(message);
  drawNow();
  if (matchMedia("(hover: hover)").matches) message.focus();
}

function keepDraft() {
  const key = `sessile-draft:${session?.id ?? ""}`;
  if (message.value.trim() === "") storage.removeItem(key);
  else storage.setItem(key, message.value);
}

/** Makes the conversation that the page shows from now on. @param {string} words it begins with */
async function begun(words) {
  const made = await client.create(/** @type {object} */ (given(fresh)));
  creating = null;
  remember(made.id, shortTitle(words));
  if (session === null) {
    history.replaceState(null, "", `?session=${encodeURIComponent(made.id)}`);
    storage.removeItem("sessile-draft:");
    session = made; // already open
    attachments.move(made.id);
    keepDraft();
    leave.push(made.on("change", draw));
  }
  void list.load(false);
  return made;
}

/** Has a turn answered by the model that was chosen for it. @param {Session | null} of @param {(of: Session, options: { model?: string }) => Promise<unknown>} ask */
async function turn(of, ask) {
  if (of === null) return;
  const id = String(of.id);
  const model = chosenModels.get(id);
  await ask(of, model === undefined ? {} : { model });
  if (chosenModels.get(id) === model) chosenModels.delete(id);
}

/** @param {string} text @param {ContentPart[]} [files] */
async function send(text, files = []) {
  const content = contentOf(text, files);
  let sessionId = session?.id ?? "";
  isFollowing = true;
  try {
    if (session === null) {
      creating = { text, files };
      draw();
      const made = await begun(text || namesOf(files).join(", "));
      sessionId = made.id;
      await made.send(content);
    } else {
      const chosen = tip === null ? undefined : session.view.thread(tip).findLast((entry) => entry.item !== undefined)?.id;
      const sending = turn(session, (asked, options) => asked.send(content, { queue: true, ...options, ...(chosen === undefined ? {} : { parent_id: chosen }) }));
      tip = null;
      draw();
      await sending;
    }
  } catch (error) {
    creating = null;
    notSent(sessionId, { text, files }, error);
  }
  draw();
}

/** Sends an edit of a message. @param {string} itemId @param {string} text @param {ContentPart[]} files */
function edit(itemId, text, files) {
  const edited = session;
  tip = null;
  void attempt(() => turn(edited, (asked, options) => asked.edit(itemId, contentOf(text, files), options)).catch((error) => notSent(edited?.id ?? "", { text, files, itemId }, error)));
}

/** Keeps a refused message with its conversation. @param {string} sessionId @param {{ text: string, files: ContentPart[], itemId?: string }} sent @param {unknown} error */
function notSent(sessionId, sent, error) {
  failed.add(sessionId, sent, error);
  find("urgent").textContent = t("Not sent: {why}", { why: explain(error) });
}

/** @param {Pending} pending */
function forget(pending) {
  failed.remove(pending);
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

/** @param {Session} of */
function titleOf(of) {
  if (of.view.title) return of.view.title;
  const [first] = firstWords.has(of.id) ? [] : of.view.items.values();
  if (first?.role === "user") remember(of.id, shortTitle(itemText(first)));
  return firstWords.get(of.id) ?? "";
}

/** @param {string} id @param {string} words */
function remember(id, words) {
  firstWords.set(id, words);
  write(FIRST_WORDS, [...firstWords].slice(-FIRST_WORDS_MAX));
}

/** Gives titles to those that were begun here and left before they had one. */
async function entitleOthers() {
  for (const { id, title, open, updated_at } of list.listed) {
    const words = firstWords.get(String(id));
    const isLeft = id !== session?.id && !title && !(/** @type {unknown[]} */ (open)?.length) && Date.now() - Number(updated_at) > TITLE_AFTER_MS;
    if (words && isLeft) await client.session(String(id)).update({ title: words }).catch(() => undefined);
  }
}

/** A row with what the page knows before the list does. @param {SessionInfo} info @returns {SessionInfo} */
function known(info) {
  const isShown = session !== null && info.id === session.id;
  const title = (isShown && session !== null && titleOf(session)) || info.title || firstWords.get(String(info.id)) || untitled.words(String(info.id));
  return { ...info, ...(title ? { title } : {}), ...(isShown ? { open: writing.size > 0 } : {}) };
}

/** A title by its first words, where no model writes one. @param {Session} of */
function entitle(of) {
  const title = titleOf(of);
  if (of.view.title || title === "") return;
  const write = async () => {
    const { state } = /** @type {any} */ (await of.get());
    if (state.title) return;
    await of.update({ title });
    void list.load(false);
  };
  setTimeout(() => void write().catch(() => undefined), TITLE_AFTER_MS); // else at the next visit
}

/** @param {string} responseId @param {"up" | "down" | null} rating */
async function rate(responseId, rating) {
  const rated = session;
  const reason = rating === "down" ? await reasonOf() : "";
  if (rated === null || reason === null) return;
  await attempt(async () => {
    await rated.feedback(responseId, rating, reason || undefined);
    polite.textContent = rating === null ? t("Taken back.") : t("Thank you.");
  });
}

async function openSettings() {
  const of = session;
  const [before] = await Promise.all([of === null ? fresh : settingsOf(of), models.length > 0 || reading]);
  if (before === null) return;
  if (of !== null) before.model = chosenModels.get(String(of.id)) ?? before.model;
  const after = await edited(before, models, of === null);
  if (after === null) return;
  if (of === null) {
    fresh = given(after);
    storage.setItem(FRESH, JSON.stringify(fresh));
    return draw();
  }
  const { model, ...changes } = after;
  if (model) {
    chosenModels.set(String(of.id), model);
    polite.textContent = t("{model} answers your next message.", { model });
  }
  await attempt(() => of.update(changes));
}

/** @param {Session} of @returns {Promise<Settings | null>} */
async function settingsOf(of) {
  try {
    return /** @type {any} */ (await of.get())["state"];
  } catch (error) {
    tell(explain(error));
    return null;
  }
}

// -- the message field ------------------------------------------------------------------------------------------

find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = message.value.trim();
  if (attachments.obstacle !== "") tell(attachments.obstacle);
  if (!maySend()) return;
  message.value = "";
  keepDraft();
  fit(message);
  void send(text, attachments.take());
});
message.addEventListener("input", () => {
  fit(message);
  sendButton.disabled = !maySend();
  keepDraft();
  if (message.value !== "") session?.warm();
});
message.addEventListener("keydown", (event) => {
  if (event.key === "ArrowUp" && message.value === "" && !isComposing(event) && thread.editNewest()) event.preventDefault();
  if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
    event.preventDefault();
    /** @type {HTMLFormElement} */ (find("composer")).requestSubmit();
  }
});
refuseLonger(message, (text) => tell(text));
stopButton.addEventListener("click", () => {
  stop();
  message.focus();
});
function stop() {
  const id = stopButton.dataset["response"];
  if (id) void attempt(async () => void (await session?.cancel(id)));
  return Boolean(id);
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
      void list.load(false);
    });
  }
});
renameInput.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  event.preventDefault();
  closeRename();
  find("rename-open").focus();
});

/** The row of what is shown. @returns {SessionInfo} */
function shownInfo() {
  const there = list.listed.find((info) => info.id === session?.id);
  return known({ ...there, id: session?.id ?? "", metadata: session?.view.metadata ?? {} });
}
find("delete").addEventListener("click", () => void list.remove(shownInfo()));
find("more").addEventListener("click", () => openMenu(find("more"), list.items(shownInfo())));
find("settings-open").addEventListener("click", () => void openSettings());
find("lost-new").addEventListener("click", () => go(null));
find("new").addEventListener("click", () => go(null));

const narrow = matchMedia("(max-width: 52rem)");
function drawSide() {
  const isShown = app.classList.contains("side-shown");
  find("side").inert = narrow.matches && !isShown;
  find("main").inert = narrow.matches && isShown;
  find("veil").hidden = !(narrow.matches && isShown);
  const isHidden = !narrow.matches && preferences.isSideHidden === true;
  app.classList.toggle("side-hidden", isHidden);
  find("side-open").setAttribute("aria-expanded", String(narrow.matches ? isShown : !isHidden));
}
function toggleSide() {
  if (narrow.matches) return app.classList.contains("side-shown") ? closeSide() : openSide();
  prefer({ isSideHidden: !preferences.isSideHidden });
  const hadFocus = find("side").contains(document.activeElement);
  drawSide();
  if (hadFocus) find("side-open").focus();
}
function openSide() {
  app.classList.add("side-shown");
  drawSide();
  find("side-close").focus();
}
function closeSide() {
  if (!app.classList.contains("side-shown")) return;
  app.classList.remove("side-shown");
  drawSide();
  find("side-open").focus();
}
find("side-open").addEventListener("click", toggleSide);
find("side-close").addEventListener("click", toggleSide);
find("veil").addEventListener("click", closeSide);
document.addEventListener("keydown", (event) => event.key === "Escape" && !document.querySelector("dialog[open]") && closeSide());
narrow.addEventListener("change", drawSide);

const openHelp = listen({
  begin: () => go(null),
  search: () => {
    if (narrow.matches ? !app.classList.contains("side-shown") : preferences.isSideHidden) toggleSide();
    find("search").focus();
  },
  write: () => message.focus(),
  copy: () => /** @type {HTMLElement | undefined} */ ([...document.querySelectorAll(".answer .copy")].pop())?.click(),
  list: toggleSide,
  settings: () => void openSettings(),
  stop: () => !app.classList.contains("side-shown") && stop(),
});
find("help-open").addEventListener("click", openHelp);
find("preferences-open").addEventListener("click", () => openPreferences({ save: keepDraft }));

// -- the connection, and coming back --------------------------------------------------------------------------------

/** Reads which models can chat, and the notice of the first one. */
async function readModels() {
  const { data } = await call("v1/models").catch(() => ({ data: models }));
  models = data.filter((/** @type {import("./settings.js").Model} */ model) => !model.capabilities?.embedding);
  const notice = models[0]?.notice ?? "";
  find("worth-text").textContent = notice;
  find("worth").hidden = notice === "" || preferences.worthClosed === notice;
  draw();
}
find("worth-close").addEventListener("click", () => {
  prefer({ worthClosed: find("worth-text").textContent ?? "" });
  find("worth").hidden = true;
  message.focus();
});

const push = new PushButton((error) => tell(explain(error)));
let wasReady = false;
client.on("status", (status) => {
  link.show(status);
  if (status.phase === "ready" && !wasReady) {
    void list.load(false).then(entitleOthers);
    reading = readModels();
    account.known();
    void push.offer().catch(() => undefined); // without it the page is whole
  }
  wasReady = status.phase === "ready";
  if (status.phase === "stopped" && asksForKey(status)) account.ask();
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
window.addEventListener("pageshow", (event) => {
  if (event.persisted && leaving.is) location.reload(); // what stands here was read by who has left
  else if (event.persisted) client.resume();
});
for (const name of ["online", "offline"]) {
  window.addEventListener(name, () => {
    client.resume(); // or, while it seems to be there, a sign of life
    link.draw();
  });
}
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState !== "visible") return client.save();
  client.resume();
  void list.load(false);
});
navigator.serviceWorker?.addEventListener("message", ({ data }) => data === "renewed" && link.renew());
window.addEventListener("load", () => void navigator.serviceWorker?.register("service-worker.js").catch(() => undefined));
window.addEventListener("popstate", () => go(new URLSearchParams(location.search).get("session"), true));

drawSide();
link.show(client.status);
client.connect();
message.value = storage.getItem("sessile-draft:") ?? ""; // `go` keeps what stands there
go(new URLSearchParams(location.search).get("session"), true);
