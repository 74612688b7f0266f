/**
 * One branch of a conversation on the page. Elements are kept per item and changed only where the item changed, so a
 * growing answer costs its last block, and focus and selection stay where they are.
 *
 * It shows what the view says and calls `actions` for what the user wants; it knows nothing of connections.
 */
import { attachedTo, chipsOf, filesOf, namesOf } from "./attachments.js";
import { arrange, el, icon, iconButton, isComposing } from "./dom.js";
import { Markdown, copyText } from "./markdown.js";
import { itemText } from "./sessile.js";
import { money, number, t, time } from "./texts.js";
import { toolFiles } from "./tool-files.js";

/** @typedef {import("./sessile.js").ContentPart} ContentPart */
/** @typedef {import("./sessile.js").Entry} Entry */
/** @typedef {import("./sessile.js").ResponseRecord} ResponseRecord */
/** @typedef {import("./sessile.js").ReviewRecord} ReviewRecord */
/** @typedef {{ id: string, text: string, state: "sending" | "waiting" | "failed", files: import("./sessile.js").ContentPart[], itemId?: string | undefined, error?: string, refused?: boolean }} Pending */
/**
 * @typedef {object} Actions
 * @property {(itemId: string, text: string) => void} edit
 * @property {(itemId: string) => string | undefined} draft what an edit of it was left with
 * @property {(itemId: string, text: string | null) => void} keepDraft null: the edit ended
 * @property {(entry: Entry) => void} regenerate
 * @property {(id: string) => void} show a sibling
 * @property {(responseId: string) => void} cancel
 * @property {(pending: Pending) => void} retry
 * @property {(pending: Pending) => void} discard
 * @property {(pending: Pending) => void} compose puts its words back into the message field
 * @property {(text: string) => void} tell
 * @property {(about: { responseId: string } | { pending: Pending }) => void} appeal
 * @property {(responseId: string, rating: "up" | "down" | null) => void} rate
 * @property {() => unknown} prices another object when they are others
 * @property {(response: ResponseRecord) => { amount: number | string, currency: string } | null} cost
 */

/** @type {{ [reason: string]: string }} */
const REASONS = {
  cancelled: t("Stopped."),
  max_output_tokens: t("Cut off at the length limit."),
  content_filter: t("The rest was withheld by a safety filter."),
  recovery_incompatible: t("It could not be continued after a failure of the server."),
  orphaned: t("Ended because nobody was reading."),
};

/** What came of asking that a person looks at something. @param {ReviewRecord | undefined} review */
function standing(review) {
  if (review?.outcome === "overturned") return t("A person has looked at it: it need not have been withheld. You may ask again.");
  if (review?.outcome === "upheld") return t("A person has looked at it: it stays withheld.");
  return review?.appealed ? t("A person will look at it.") : "";
}

/** What the model thought before its text. @param {Entry["item"]} item */
function thoughtsOf(item) {
  return (item?.content ?? []).map((part) => part.reasoning ?? "").join("");
}

/** @param {ResponseRecord | undefined} response */
function isWriting(response) {
  return response !== undefined && (response.status === "in_progress" || response.status === "queued");
}

/** What a model thought, folded: how long it took, where it was seen to begin. */
class Thoughts {
  constructor() {
    this.summary = el("summary");
    this.words = el("p", { dir: "auto" });
    this.element = el("details", { class: "thoughts", hidden: true }, this.summary, this.words);
    /** @type {number | null} */
    this.begun = null;
    this.seconds = 0;
  }

  /** @param {string} text @param {boolean} going it is still being thought */
  update(text, going) {
    this.element.hidden = text === "";
    if (text === "") return;
    if (this.words.textContent !== text) this.words.textContent = text;
    const now = performance.now();
    if (going) this.begun ??= now;
    else if (this.begun !== null && this.seconds === 0) this.seconds = Math.max(1, Math.round((now - this.begun) / 1000));
    const summary = going ? t("Thinking…") : this.seconds === 0 ? t("Thoughts") : this.seconds === 1 ? t("Thought for a second") : t("Thought for {n} seconds", { n: number(this.seconds) });
    if (this.summary.textContent !== summary) this.summary.textContent = summary;
  }
}

/** @typedef {{ number: number, filename: string, text: string }} Passage */
/** @type {Passage[]} */
const NO_PASSAGES = [];
/** @type {WeakMap<object, Passage[]>} */
const passages = new WeakMap();

/** What a search of documents found. @param {NonNullable<Entry["item"]>} item its output, or the message that it was for */
function passagesOf(item) {
  let results = passages.get(item);
  if (results === undefined) {
    if (item.type !== "function_call_output") results = (item.content ?? []).filter(isPassage).map(passageOf);
    else try {
      const output = JSON.parse(String(item.output)).results;
      results = Array.isArray(output) ? output.filter((passage) => typeof passage?.number === "number") : NO_PASSAGES;
    } catch {
      results = NO_PASSAGES; // A filter has replaced it.
    }
    passages.set(item, results);
  }
  return results;
}

/** Whether a part of a message is a passage whose document is not deleted. @param {ContentPart} part */
function isPassage(part) {
  return part.type === "input_passage" && part.text !== "" && typeof part.number === "number";
}

/** A passage without the lines around it, which are for the model. @param {ContentPart} part @returns {Passage} */
function passageOf(part) {
  return { number: part.number ?? 0, filename: String(part["filename"]), text: (part.text ?? "").split("\n").slice(1, -2).join("\n") };
}

/** As the server's `transport/openai/citations.py`: no part of a link. */
const CITED = /(?<![^0-9]\])\[([0-9]{1,3})\](?!\()/g;
/** @type {WeakMap<Passage[], [Passage[], Passage[]]>} */
const joins = new WeakMap();

/** The passages of several searches, each of which numbers from 1: a number of different ones is left out. @param {Passage[]} earlier @param {Passage[]} later */
function joined(earlier, later) {
  const known = joins.get(later);
  if (known?.[0] === earlier) return known[1];
  const differs = (/** @type {Passage} */ one, /** @type {Passage[]} */ others) => others.some((other) => other.number === one.number && other.text !== one.text);
  const again = (/** @type {Passage} */ one) => earlier.some((other) => other.number === one.number);
  const both = [...earlier.filter((one) => !differs(one, later)), ...later.filter((one) => !again(one))];
  joins.set(later, [earlier, both]);
  return both;
}

/** The passages that an answer cites by their numbers, folded. */
class Sources {
  constructor() {
    this.list = el("ol");
    this.element = el("details", { class: "sources", hidden: true }, el("summary", {}, t("Sources")), this.list);
  }

  /** @param {string} text @param {Passage[]} passages */
  update(text, passages) {
    const numbers = new Set([...text.matchAll(CITED)].map((mark) => Number(mark[1])));
    const cited = passages.filter((passage) => numbers.has(passage.number));
    this.element.hidden = cited.length === 0;
    this.list.replaceChildren(...cited.map((passage) => el("li", { value: passage.number }, el("cite", { dir: "auto" }, passage.filename), el("p", { dir: "auto" }, passage.text))));
  }
}

class Message {
  /** @param {Entry} entry @param {Actions} actions */
  constructor(entry, actions) {
    this.actions = actions;
    this.entry = entry;
    this.isUser = entry.item?.role === "user";
    this.markdown = new Markdown();
    this.words = this.isUser ? el("p", { class: "said", dir: "auto" }) : this.markdown.element;
    this.thoughts = new Thoughts();
    this.sources = new Sources();
    this.files = el("ul", { class: "files", "aria-label": t("Files of the message"), hidden: true });
    this.note = el("p", { class: "note", hidden: true });
    this.shows = /** @type {unknown[]} */ ([]);
    this.bar = el("div", { class: "bar" });
    this.barKey = "";
    this.body = el("div", { class: "body" }, el("h2", { class: "unseen" }, this.isUser ? t("Question") : t("Answer")), this.isUser ? this.files : this.thoughts.element, this.words, !this.isUser && this.sources.element, this.note, this.bar);
    this.element = el("li", { class: `message ${this.isUser ? "user" : "answer"}`, "data-id": entry.id }, this.body);
    /** @type {Entry | null} */
    this.shown = null;
  }

  /** @param {Entry} entry @param {boolean} isLastOfResponse @param {ReviewRecord} [review] of its response @param {string | null} [rating] null: this server takes none @param {Passage[]} [results] which it may cite */
  update(entry, isLastOfResponse, review, rating = null, results = NO_PASSAGES) {
    const before = this.shown;
    this.entry = this.shown = entry;
    const { item, response } = entry;
    // Records are replaced where they change, so the same ones show the same: a token costs its message, not all of them.
    const shows = [item, response, entry.siblings.length, entry.index, isLastOfResponse, review, rating, results, this.actions.prices()];
    if (this.shows.length > 0 && shows.every((each, index) => each === this.shows[index])) return;
    this.shows = shows;
    if (item !== before?.item || before === null) this.fill();
    const draft = this.isUser && before === null ? this.actions.draft(entry.id) : undefined;
    if (draft !== undefined) this.edit(draft);
    const writing = isWriting(response) && isLastOfResponse;
    if (!this.isUser && !isWriting(response)) this.sources.update(itemText(item), results);
    this.thoughts.update(thoughtsOf(item), writing && itemText(item) === "");
    this.element.classList.toggle("writing", writing);
    this.element.classList.toggle("empty", writing && (item === undefined || itemText(item) === ""));
    this.body.setAttribute("aria-busy", String(writing));
    this.fillNote(isLastOfResponse ? response : undefined, review);
    const withheld = isLastOfResponse && response?.reason === "content_filter" && !review?.appealed ? response.id : null;
    const meta = isLastOfResponse && !writing && response !== undefined ? this.meta(response) : "";
    const barKey = JSON.stringify([writing, isLastOfResponse, entry.siblings, entry.index, response?.status, withheld, rating, meta]);
    if (barKey !== this.barKey) {
      this.barKey = barKey;
      this.fillBar(writing, isLastOfResponse, { withheld, rating, meta });
    }
  }

  fill() {
    const { item } = this.entry;
    if (item?.type === "function_call") this.words.replaceChildren(toolCall(callOf(item), t("Tool call")));
    else if (item?.type === "function_call_output") {
      const files = /** @type {import("./tool-files.js").ToolFile[]} */ (item["files"] ?? []);
      this.words.replaceChildren(toolCall(String(item.output ?? ""), t("Tool output")), ...(files.length > 0 ? [toolFiles(files, this.actions.tell)] : []));
    } else if (this.isUser) {
      this.words.textContent = itemText(item);
      this.words.hidden = itemText(item) === "" && filesOf(item).length > 0;
      this.files.replaceChildren(...chipsOf(attachedTo(item)));
      this.files.hidden = filesOf(item).length === 0;
    } else this.markdown.update(itemText(item));
  }

  /** @param {ResponseRecord | undefined} response @param {ReviewRecord} [review] */
  fillNote(response, review) {
    const parts = [];
    if (response?.dropped) {
      const n = response.dropped;
      parts.push(n === 1 ? t("The oldest message was left out: the conversation is longer than the model can read at once.") : t("The {n} oldest messages were left out: the conversation is longer than the model can read at once.", { n }));
    }
    if (response?.summarised) parts.push(t("Earlier messages were summarised: from here on the model reads a summary of the {n} oldest.", { n: response.summarised }));
    if (response?.status === "failed") parts.push(t("No answer: {why}", { why: response.error?.message ?? t("the server failed") }));
    if (response?.status === "incomplete") parts.push(REASONS[response.reason ?? ""] ?? `${t("Ended early.")}${response.reason ? ` (${response.reason})` : ""}`);
    if (response !== undefined && standing(review) !== "") parts.push(standing(review));
    const text = parts.join(" ");
    if (this.note.textContent !== text) this.note.textContent = text;
    this.note.hidden = text === "";
    this.note.classList.toggle("bad", response?.status === "failed");
  }

  /** When, how much, for how much, by whom. @param {ResponseRecord} response */
  meta(response) {
    const { usage, model, completedAt } = response;
    const at = completedAt ?? this.entry.item?.created_at;
    const cost = this.actions.cost(response);
    const tokens = usage?.output_tokens;
    const parts = [at && time(at), tokens !== undefined && (tokens === 1 ? t("1 token") : t("{n} tokens", { n: number(tokens) })), cost && money(cost.amount, cost.currency), model];
    return parts.filter(Boolean).join(" · ");
  }

  /** @param {boolean} writing @param {boolean} isLastOfResponse @param {{ withheld: string | null, rating: string | null, meta: string }} about `withheld`: a response that may be appealed against */
  fillBar(writing, isLastOfResponse, { withheld, rating, meta }) {
    const { entry, actions } = this;
    const children = [];
    if (entry.siblings.length > 1) children.push(this.branches());
    if (this.isUser) children.push(iconButton("edit", t("Edit and ask again"), () => this.edit()));
    else if (isLastOfResponse && !writing) {
      if (entry.item) {
        /** @type {HTMLButtonElement} */
        const copy = iconButton("copy", t("Copy the answer"), () => void copyText(itemText(this.entry.item), copy));
        copy.classList.add("copy");
        children.push(copy);
      }
      children.push(iconButton("again", t("Answer again"), () => actions.regenerate(this.entry)));
      const { response } = entry;
      if (response && entry.item && rating !== null) {
        const rate = (/** @type {"up" | "down"} */ way) => actions.rate(response.id, rating === way ? null : way);
        children.push(thumb("up", t("Good answer"), rating, () => rate("up")), thumb("down", t("Bad answer"), rating, () => rate("down")));
      }
      if (withheld !== null) children.push(reviewButton(() => actions.appeal({ responseId: withheld })));
      if (meta !== "") children.push(el("span", { class: "meta" }, meta));
    }
    // The same button again keeps the focus that the old one had.
    const label = this.bar.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    this.bar.replaceChildren(...children);
    if (label) [...this.bar.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === label && !button.disabled)?.focus();
  }

  /** The arrows between an answer, or a question, and its siblings. */
  branches() {
    const { entry, actions, isUser } = this;
    const go = (/** @type {number} */ by) => actions.show(entry.siblings[entry.index + by] ?? entry.id);
    const back = iconButton("back", isUser ? t("Previous version") : t("Previous answer"), () => go(-1));
    const forth = iconButton("forth", isUser ? t("Next version") : t("Next answer"), () => go(1));
    back.disabled = entry.index === 0;
    forth.disabled = entry.index === entry.siblings.length - 1;
    const count = el("span", { class: "count" }, el("span", { class: "unseen" }, `${isUser ? t("version") : t("answer")} `), `${entry.index + 1}/${entry.siblings.length}`);
    return el("span", { class: "branches", role: "group", "aria-label": isUser ? t("versions") : t("answers") }, back, count, forth);
  }

  /** @param {string} [draft] what an edit that the page was left with had */
  edit(draft) {
    const { entry, actions } = this;
    const before = itemText(entry.item);
    const input = el("textarea", { "aria-label": t("Edit your message"), dir: "auto", rows: 1, maxlength: 200000 });
    input.value = draft ?? before;
    refuseLonger(input, actions.tell);
    const leave = () => {
      actions.keepDraft(entry.id, null);
      form.replaceWith(this.words);
      this.element.classList.remove("editing");
      /** @type {HTMLElement | null} */ (this.bar.querySelector(":scope > button"))?.focus();
    };
    const form = el(
      "form",
      {
        class: "edit",
        submit: (event) => {
          event.preventDefault();
          const text = input.value.trim();
          leave();
          if (text !== "" && text !== before) actions.edit(entry.id, text);
        },
      },
      input,
      el(
        "div",
        { class: "edit-buttons" },
        el("button", { class: "plain", type: "button", click: leave }, t("Cancel")),
        el("button", { class: "plain strong", type: "submit" }, t("Ask again")),
      ),
    );
    input.addEventListener("input", () => {
      fit(input);
      actions.keepDraft(entry.id, input.value);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault(); // it would stop the answer too
        leave();
      } else if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.words.replaceWith(form);
    this.element.classList.add("editing");
    fit(input);
    if (draft !== undefined) return void requestAnimationFrame(() => fit(input)); // once it stands in the page; the focus stays where it is
    input.focus();
    input.setSelectionRange(before.length, before.length);
  }
}

/** @param {() => void} ask */
function reviewButton(ask) {
  const title = t("A person looks at what was withheld; you see here what they decide");
  /** @type {HTMLButtonElement} */
  const button = el("button", { class: "plain", type: "button", title, click: () => ((button.disabled = true), ask()) }, t("Ask for a review"));
  return button;
}

/** @param {"up" | "down"} way @param {string} label @param {string} rating @param {() => void} act */
function thumb(way, label, rating, act) {
  const button = iconButton(way === "up" ? "up" : "bad", label, act);
  button.setAttribute("aria-pressed", String(rating === way));
  return button;
}

/** A call as people read it: code in its own lines. @param {NonNullable<Entry["item"]>} item */
function callOf({ name = "tool", arguments: text = "" }) {
  try {
    const { code, ...rest } = JSON.parse(text);
    if (typeof code === "string" && Object.keys(rest).length === 0) return `${name}\n${code}`;
  } catch {
    return `${name}(${text})`; // It is still being written.
  }
  return `${name}(${text})`;
}

/** @param {string} text @param {string} label */
function toolCall(text, label) {
  return el("figure", { class: "code" }, el("figcaption", {}, label), el("pre", { tabindex: 0 }, el("code", {}, text)));
}

/** Refuses a paste or drop that the field would cut at its end. @param {HTMLTextAreaElement} area @param {(text: string) => void} tell */
export function refuseLonger(area, tell) {
  /** @param {Event} event @param {DataTransfer | null} data */
  const check = (event, data) => {
    const n = area.value.length - (area.selectionEnd - area.selectionStart) + (data?.getData("text/plain") ?? "").length;
    if (n <= area.maxLength) return;
    event.preventDefault();
    tell(t("Not inserted: the message would have {n} characters, and {max} are the most. Send it in parts.", { n: number(n), max: number(area.maxLength) }));
  };
  area.addEventListener("paste", (event) => check(event, event.clipboardData));
  area.addEventListener("drop", (event) => check(event, event.dataTransfer));
}

/** As high as its text. @param {HTMLTextAreaElement} area */
export function fit(area) {
  area.rows = 1;
  const line = Number.parseFloat(getComputedStyle(area).lineHeight) || 24;
  const pad = area.offsetHeight - line;
  area.rows = Math.max(1, Math.min(12, Math.round((area.scrollHeight - pad) / line)));
}

export class Thread {
  /** @param {HTMLElement} root @param {Actions} actions */
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
    /** @type {Map<string, Message>} */
    this.messages = new Map();
    /** @type {Map<string, { key: string, element: HTMLElement }>} */
    this.extras = new Map();
  }

  clear() {
    this.messages.clear();
    this.extras.clear();
    this.root.replaceChildren();
  }

  /** Opens a question for editing; false where it is not shown. @param {string} itemId @param {string} draft */
  edit(itemId, draft) {
    const message = this.messages.get(itemId);
    message?.edit(draft);
    message?.element.querySelector("textarea")?.focus();
    if (message !== undefined) this.actions.keepDraft(itemId, draft);
    return message !== undefined;
  }

  /** Opens the newest question for editing; false where there is none. */
  editNewest() {
    const newest = [...this.messages.values()].findLast((message) => message.isUser);
    newest?.edit();
    return newest !== undefined;
  }

  /** @param {Entry[]} entries @param {ResponseRecord[]} queued @param {Pending[]} pending @param {ReviewRecord[]} [reviews] @param {(responseId: string) => string} [rating] what the reader thinks of an answer; absent: nobody asks */
  render(entries, queued, pending, reviews = [], rating = undefined) {
    const kept = new Map();
    const searches = new Set();
    let results = NO_PASSAGES;
    entries.forEach((entry, index) => {
      const { item } = entry;
      if (item?.type === "function_call" && item.name === "file_search") searches.add(item.call_id);
      else if (item?.type === "function_call_output" && searches.has(item.call_id)) results = joined(results, passagesOf(item));
      else if (item?.role === "user") results = passagesOf(item);
      const message = this.messages.get(entry.id) ?? new Message(entry, this.actions);
      const after = entries[index + 1];
      const isLast = after === undefined || after.response?.id !== entry.response?.id;
      const review = reviews.findLast((each) => each.responseId !== null && each.responseId === entry.response?.id);
      message.update(entry, isLast, review, rating?.(entry.response?.id ?? ""), results);
      kept.set(entry.id, message);
    });
    this.messages = kept;
    const nodes = [...kept.values()].map((message) => message.element);
    const extras = new Map();
    for (const response of queued) {
      const text = response.waiting === undefined ? t("Another answer") : itemText(response.waiting);
      const files = filesOf(response.waiting);
      extras.set(response.id, this.extra(response.id, `queued ${text} ${namesOf(files)}`, () => this.queued(response.id, text, files)));
    }
    for (const message of pending) extras.set(message.id, this.extra(message.id, `${message.state} ${message.error} ${message.text}`, () => this.pending(message)));
    for (const each of reviews.filter((review) => review.responseId === null && standing(review) !== "")) {
      const note = `${t("A message that was refused.")} ${standing(each)}`;
      extras.set(each.id, this.extra(each.id, note, () => el("li", { class: "message review" }, el("p", { class: "note" }, note))));
    }
    this.extras = extras;
    arrange(this.root, [...nodes, ...[...extras.values()].map((extra) => extra.element)]);
  }

  /** @param {string} id @param {string} key @param {() => HTMLElement} make */
  extra(id, key, make) {
    const there = this.extras.get(id);
    return there?.key === key ? there : { key, element: make() };
  }

  /** @param {string} id @param {string} text @param {import("./sessile.js").ContentPart[]} files */
  queued(id, text, files) {
    const cancel = el("button", { class: "plain", type: "button", click: () => this.actions.cancel(id) }, t("Take back"));
    return waiting(text, files, t("Waits for the answer above."), [cancel], "queued");
  }

  /** @param {Pending} pending */
  pending(pending) {
    if (pending.state !== "failed") {
      return waiting(pending.text, pending.files, pending.state === "sending" ? t("Sending…") : t("Will be sent when the connection is back."), [], "pending");
    }
    const again = el("button", { class: "plain", type: "button", click: () => this.actions.retry(pending) }, icon("again"), t("Try again"));
    const edit = el("button", { class: "plain", type: "button", click: () => this.actions.compose(pending) }, icon("edit"), t("Edit"));
    const drop = el("button", { class: "plain", type: "button", click: () => this.actions.discard(pending) }, t("Discard"));
    const review = pending.refused && pending.files.length === 0 ? [reviewButton(() => this.actions.appeal({ pending }))] : [];
    return waiting(pending.text, pending.files, t("Not sent: {why}", { why: pending.error ?? "" }), [again, edit, drop, ...review], "failed");
  }
}

/** @param {string} text @param {import("./sessile.js").ContentPart[]} files @param {string} note @param {HTMLElement[]} buttons @param {string} kind */
function waiting(text, files, note, buttons, kind) {
  return el(
    "li",
    { class: `message user ${kind}` },
    el(
      "div",
      { class: "body" },
      el("h2", { class: "unseen" }, t("Not yet sent")),
      files.length > 0 && el("ul", { class: "files", "aria-label": t("Files of the message") }, ...chipsOf(files)),
      (text !== "" || files.length === 0) && el("p", { class: "said", dir: "auto" }, text),
      el("p", { class: `note${kind === "failed" ? " bad" : ""}` }, note),
      buttons.length > 0 && el("div", { class: "bar always" }, ...buttons),
    ),
  );
}
