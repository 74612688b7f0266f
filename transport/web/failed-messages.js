/** Messages and edits that were refused: kept by this tab with their conversation until they are sent again or discarded. */
import { sentence, storage } from "./api.js";
import { deleteStored } from "./attachments.js";
import { BusyError, CommandError, StoppedError } from "./sessile.js";
import { t } from "./texts.js";

/** @typedef {import("./thread.js").Pending} Pending */

const KEY = "sessile-failed";

/** Says to people why a command was refused. @param {unknown} error */
export function explain(error) {
  if (error instanceof BusyError && error.param === "model") return t("Another model cannot begin while an answer is being written here. Stop the answer, or wait for its end, then try again.");
  if (error instanceof BusyError) return t("An answer is still being written here. Stop it, or wait for its end.");
  if (error instanceof CommandError && error.code === "queue_full") return t("Too many messages wait already.");
  if (error instanceof CommandError && error.retryAfterMs) return `${error.message} ${t("Try again in {n} s.", { n: Math.ceil(error.retryAfterMs / 1000) })}`;
  if (error instanceof StoppedError) return t("There is no connection to the server.");
  return sentence(error);
}

export class FailedMessages {
  constructor() {
    /** By session; the empty name is of a conversation that was not made yet. @type {Map<string, Pending[]>} */
    this.bySession = new Map(JSON.parse(storage.getItem(KEY) ?? "[]"));
  }

  /** Returns the failed messages of a conversation. @param {string} sessionId @returns {Pending[]} */
  list(sessionId) {
    return (this.bySession.get(sessionId) ?? []).map((pending) => ({ ...pending, files: pending.files ?? [] })); // Older pages kept none.
  }

  /** @param {string} sessionId @param {Pick<Pending, "text" | "files" | "itemId">} sent @param {unknown} error */
  add(sessionId, sent, error) {
    const refused = /** @type {{ code?: string }} */ (error).code === "content_filter";
    this.keep(sessionId, [...this.list(sessionId), { ...sent, id: `failed-${Date.now()}`, state: "failed", error: explain(error), refused }]);
  }

  /** Deletes a message with its files; those of an edit belong to the message that it was to replace. @param {Pending} pending */
  discard(pending) {
    if (pending.itemId === undefined) deleteStored(pending.files);
    this.remove(pending);
  }

  /** @param {string} sessionId */
  clear(sessionId) {
    for (const pending of this.list(sessionId)) this.discard(pending);
  }

  /** @param {Pending} pending */
  remove(pending) {
    for (const sessionId of this.bySession.keys()) this.keep(sessionId, this.list(sessionId).filter(({ id }) => id !== pending.id));
  }

  /** @param {string} sessionId @param {Pending[]} messages */
  keep(sessionId, messages) {
    this.bySession.set(sessionId, messages);
    storage.setItem(KEY, JSON.stringify([...this.bySession].filter(([, list]) => list.length > 0)));
  }
}
