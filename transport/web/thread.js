/**
 * One branch of a conversation on the page. Elements are kept per item and changed only where the item changed, so a
 * growing answer costs its last block, and focus and selection stay where they are.
 *
 * It shows what the view says and calls `actions` for what the user wants; it knows nothing of connections.
 */
import { arrange, el, icon, iconButton } from "./dom.js";
import { Markdown, copyText } from "./markdown.js";
import { itemText } from "./sessile.js";

/** @typedef {import("./sessile.js").Entry} Entry */
/** @typedef {import("./sessile.js").ResponseRecord} ResponseRecord */
/** @typedef {import("./sessile.js").ReviewRecord} ReviewRecord */
/** @typedef {{ id: string, text: string, state: "sending" | "waiting" | "failed", error?: string, refused?: boolean }} Pending */
/**
 * @typedef {object} Actions
 * @property {(itemId: string, text: string) => void} edit
 * @property {(entry: Entry) => void} regenerate
 * @property {(id: string) => void} show a sibling
 * @property {(responseId: string) => void} cancel
 * @property {(pending: Pending) => void} retry
 * @property {(pending: Pending) => void} discard
 * @property {(about: { responseId: string } | { pending: Pending }) => void} appeal
 */

/** @type {{ [reason: string]: string }} */
const REASONS = {
  cancelled: "Stopped.",
  max_output_tokens: "Cut off at the length limit.",
  content_filter: "The rest was withheld by a safety filter.",
  recovery_incompatible: "It could not be continued after a failure of the server.",
  tool_timeout: "A tool did not answer in time.",
  orphaned: "Ended because nobody was reading.",
  quarantined: "Ended because it failed repeatedly.",
};

/** What came of asking that a person looks at something. @param {ReviewRecord | undefined} review */
function standing(review) {
  if (review?.outcome === "overturned") return "A person has looked at it: it need not have been withheld. You may ask again.";
  if (review?.outcome === "upheld") return "A person has looked at it: it stays withheld.";
  return review?.appealed ? "A person will look at it." : "";
}

/** @param {ResponseRecord | undefined} response */
function isWriting(response) {
  return response !== undefined && (response.status === "in_progress" || response.status === "queued");
}

class Message {
  /** @param {Entry} entry @param {Actions} actions */
  constructor(entry, actions) {
    this.actions = actions;
    this.entry = entry;
    this.isUser = entry.item?.role === "user";
    this.markdown = new Markdown();
    this.words = this.isUser ? el("p", { class: "said" }) : this.markdown.element;
    this.note = el("p", { class: "note", hidden: true });
    this.shows = /** @type {unknown[]} */ ([]);
    this.bar = el("div", { class: "bar" });
    this.barKey = "";
    this.body = el("div", { class: "body" }, el("h2", { class: "unseen" }, this.isUser ? "You" : "Answer"), this.words, this.note, this.bar);
    this.element = el("li", { class: `message ${this.isUser ? "user" : "answer"}`, "data-id": entry.id }, this.body);
    /** @type {Entry | null} */
    this.shown = null;
  }

  /** @param {Entry} entry @param {boolean} isLastOfResponse @param {ReviewRecord} [review] of its response */
  update(entry, isLastOfResponse, review) {
    const before = this.shown;
    this.entry = this.shown = entry;
    const { item, response } = entry;
    // Records are replaced where they change, so the same ones show the same: a token costs its message, not all of them.
    const shows = [item, response, entry.siblings.length, entry.index, ...Array.from(arguments).slice(1), /** @type {any} */ (this.actions).prices?.()];
    if (this.shows.length === shows.length && shows.every((each, index) => each === this.shows[index])) return;
    this.shows = shows;
    if (item !== before?.item || before === null) this.fill();
    const writing = isWriting(response) && isLastOfResponse;
    this.element.classList.toggle("writing", writing);
    this.element.classList.toggle("empty", writing && (item === undefined || itemText(item) === ""));
    this.body.setAttribute("aria-busy", String(writing));
    this.fillNote(isLastOfResponse ? response : undefined, review);
    const withheld = isLastOfResponse && response?.reason === "content_filter" && !review?.appealed ? response.id : null;
    const barKey = JSON.stringify([writing, isLastOfResponse, entry.siblings, entry.index, response?.status, withheld]);
    if (barKey !== this.barKey) {
      this.barKey = barKey;
      this.fillBar(writing, isLastOfResponse, withheld);
    }
  }

  fill() {
    const { item } = this.entry;
    if (item?.type === "function_call") this.words.replaceChildren(toolCall(`${item.name ?? "tool"}(${item.arguments ?? ""})`, "Tool call"));
    else if (item?.type === "function_call_output") this.words.replaceChildren(toolCall(String(item.output ?? ""), "Tool output"));
    else if (this.isUser) this.words.textContent = itemText(item);
    else this.markdown.update(itemText(item));
  }

  /** @param {ResponseRecord | undefined} response @param {ReviewRecord} [review] */
  fillNote(response, review) {
    const parts = [];
    if (response?.dropped) {
      const what = response.dropped === 1 ? "oldest message was" : `${response.dropped} oldest messages were`;
      parts.push(`The ${what} left out: the conversation is longer than the model can read at once.`);
    }
    if (response?.status === "failed") parts.push(`No answer: ${response.error?.message ?? "the server failed"}`);
    if (response?.status === "incomplete") parts.push(REASONS[response.reason ?? ""] ?? `Ended early${response.reason ? ` (${response.reason})` : ""}.`);
    if (response !== undefined && standing(review) !== "") parts.push(standing(review));
    const text = parts.join(" ");
    if (this.note.textContent !== text) this.note.textContent = text;
    this.note.hidden = text === "";
    this.note.classList.toggle("bad", response?.status === "failed");
  }

  /** @param {boolean} writing @param {boolean} isLastOfResponse @param {string | null} withheld a response that may be appealed against */
  fillBar(writing, isLastOfResponse, withheld) {
    const { entry, actions } = this;
    const children = [];
    if (entry.siblings.length > 1) {
      const go = (/** @type {number} */ by) => actions.show(entry.siblings[entry.index + by] ?? entry.id);
      const what = this.isUser ? "version" : "answer";
      const back = iconButton("back", `Previous ${what}`, () => go(-1));
      const forth = iconButton("forth", `Next ${what}`, () => go(1));
      back.disabled = entry.index === 0;
      forth.disabled = entry.index === entry.siblings.length - 1;
      const count = el("span", { class: "count" }, el("span", { class: "unseen" }, `${what} `), `${entry.index + 1}/${entry.siblings.length}`);
      children.push(el("span", { class: "branches", role: "group", "aria-label": `${what}s` }, back, count, forth));
    }
    if (this.isUser) children.push(iconButton("edit", "Edit and ask again", () => this.edit()));
    else if (isLastOfResponse && !writing) {
      if (entry.item) {
        /** @type {HTMLButtonElement} */
        const copy = iconButton("copy", "Copy the answer", () => void copyText(itemText(this.entry.item), copy));
        children.push(copy);
      }
      children.push(iconButton("again", "Answer again", () => actions.regenerate(this.entry)));
      if (withheld !== null) children.push(reviewButton(() => actions.appeal({ responseId: withheld })));
    }
    // The same button again keeps the focus that the old one had.
    const label = this.bar.contains(document.activeElement) ? document.activeElement?.getAttribute("aria-label") : null;
    this.bar.replaceChildren(...children);
    if (label) [...this.bar.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === label && !button.disabled)?.focus();
  }

  edit() {
    const { entry, actions } = this;
    const before = itemText(entry.item);
    const input = el("textarea", { "aria-label": "Edit your message", rows: 1, maxlength: 200000 });
    input.value = before;
    const leave = () => {
      form.replaceWith(this.words);
      this.element.classList.remove("editing");
      /** @type {HTMLElement | null} */ (this.bar.querySelector("button[aria-label^=Edit]"))?.focus();
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
        el("button", { class: "plain", type: "button", click: leave }, "Cancel"),
        el("button", { class: "plain strong", type: "submit" }, "Ask again"),
      ),
    );
    input.addEventListener("input", () => fit(input));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.words.replaceWith(form);
    this.element.classList.add("editing");
    fit(input);
    input.focus();
    input.setSelectionRange(before.length, before.length);
  }
}

/** @param {() => void} ask */
function reviewButton(ask) {
  const title = "A person looks at what was withheld; you see here what they decide";
  /** @type {HTMLButtonElement} */
  const button = el("button", { class: "plain", type: "button", title, click: () => ((button.disabled = true), ask()) }, "Ask for a review");
  return button;
}

/** @param {string} text @param {string} label */
function toolCall(text, label) {
  return el("figure", { class: "code" }, el("figcaption", {}, label), el("pre", { tabindex: 0 }, el("code", {}, text)));
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

  /** @param {Entry[]} entries @param {ResponseRecord[]} queued @param {Pending[]} pending @param {ReviewRecord[]} [reviews] */
  render(entries, queued, pending, reviews = []) {
    const kept = new Map();
    entries.forEach((entry, index) => {
      const message = this.messages.get(entry.id) ?? new Message(entry, this.actions);
      const after = entries[index + 1];
      const isLast = after === undefined || after.response?.id !== entry.response?.id;
      const review = reviews.findLast((each) => each.responseId !== null && each.responseId === entry.response?.id);
      message.update(entry, isLast, review);
      kept.set(entry.id, message);
    });
    this.messages = kept;
    const nodes = [...kept.values()].map((message) => message.element);
    const extras = new Map();
    for (const response of queued) {
      const text = response.waiting === undefined ? "Another answer" : itemText(response.waiting);
      extras.set(response.id, this.extra(response.id, `queued ${text}`, () => this.queued(response.id, text)));
    }
    for (const each of pending) extras.set(each.id, this.extra(each.id, `${each.state} ${each.error} ${each.text}`, () => this.pending(each)));
    for (const each of reviews.filter((review) => review.responseId === null && standing(review) !== "")) {
      const note = `A message that was refused. ${standing(each)}`;
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

  /** @param {string} id @param {string} text */
  queued(id, text) {
    const cancel = el("button", { class: "plain", type: "button", click: () => this.actions.cancel(id) }, "Take back");
    return waiting(text, "Waits for the answer above.", [cancel], "queued");
  }

  /** @param {Pending} pending */
  pending(pending) {
    if (pending.state !== "failed") {
      return waiting(pending.text, pending.state === "sending" ? "Sending…" : "Will be sent when the connection is back.", [], "pending");
    }
    const again = el("button", { class: "plain", type: "button", click: () => this.actions.retry(pending) }, icon("again"), "Try again");
    const drop = el("button", { class: "plain", type: "button", click: () => this.actions.discard(pending) }, "Discard");
    const review = pending.refused ? [reviewButton(() => this.actions.appeal({ pending }))] : [];
    return waiting(pending.text, `Not sent: ${pending.error}`, [again, drop, ...review], "failed");
  }
}

/** @param {string} text @param {string} note @param {HTMLElement[]} buttons @param {string} kind */
function waiting(text, note, buttons, kind) {
  return el(
    "li",
    { class: `message user ${kind}` },
    el(
      "div",
      { class: "body" },
      el("h2", { class: "unseen" }, "You, not yet said"),
      el("p", { class: "said" }, text),
      el("p", { class: `note${kind === "failed" ? " bad" : ""}` }, note),
      buttons.length > 0 && el("div", { class: "bar always" }, ...buttons),
    ),
  );
}
