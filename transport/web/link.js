/** How the connection stands, said honestly: a word in the corner, a line above the message field when it matters, and to a screen reader once it has lasted. */
import { find } from "./dom.js";
import { offered } from "./sign-in.js";

/** @typedef {import("./sessile.js").Status} Status */

/** A cut that mends itself sooner is not worth words. */
const TELL_AFTER_MS = 1200;

export class Link {
  /** @param {{ retry: () => void, askKey: () => void }} actions */
  constructor(actions) {
    this.actions = actions;
    this.corner = find("link");
    this.word = find("link-text");
    this.notice = find("notice");
    this.noticeText = find("notice-text");
    /** @type {HTMLButtonElement} */
    this.button = find("notice-button");
    this.polite = find("polite");
    /** @type {Status | null} */
    this.status = null;
    /** @type {number | undefined} */
    this.timer = undefined;
    this.troubleSince = 0;
    this.told = "";
    this.button.addEventListener("click", () => {
      if (this.status?.closeCode === 4401) this.actions.askKey();
      else this.actions.retry();
    });
  }

  /** @param {Status} status */
  show(status) {
    this.status = status;
    const isFine = status.phase === "ready";
    if (isFine) this.troubleSince = 0;
    else if (this.troubleSince === 0) this.troubleSince = Date.now();
    clearInterval(this.timer);
    if (!isFine) this.timer = setInterval(() => this.draw(), 500);
    this.draw();
  }

  draw() {
    const { status } = this;
    if (status === null) return;
    const [word, sentence, button] = this.words(status);
    this.corner.dataset["phase"] = status.draining && status.phase === "ready" ? "draining" : status.phase;
    if (this.word.textContent !== word) this.word.textContent = word;
    const isWorthTelling = sentence !== "" && (status.phase === "stopped" || status.draining || Date.now() - this.troubleSince > TELL_AFTER_MS);
    this.notice.hidden = !isWorthTelling;
    if (this.noticeText.textContent !== sentence) this.noticeText.textContent = sentence;
    this.button.hidden = button === "";
    if (this.button.textContent !== button) this.button.textContent = button;
    const said = isWorthTelling ? sentence.replace(/ Next attempt.*$/, "") : "";
    if (said !== this.told) {
      if (said === "" && status.phase === "ready" && this.told !== "") this.polite.textContent = "Connected again.";
      else if (said !== "") this.polite.textContent = said;
      this.told = said;
    }
  }

  /** @param {Status} status @returns {[string, string, string]} a word, a sentence, a button */
  words(status) {
    switch (status.phase) {
      case "ready":
        return status.draining ? ["Server restarting", "The server is about to restart. Answers go on afterwards.", ""] : ["Connected", "", ""];
      case "stopped":
        if (status.closeCode === 4401) return offered ? ["Sign in", "The server asks who you are.", "Sign in"] : ["Key needed", "The server asks for a key.", "Enter a key"];
        return ["Refused", `The server refused the connection${status.closeCode ? ` (${status.closeCode})` : ""}. ${status.error?.message ?? ""}`.trim(), "Try again"];
      case "suspended":
        return ["Paused", "", ""];
      case "connecting":
        return status.attempt > 0 ? ["Reconnecting", "No connection to the server. Trying again now.", ""] : ["Connecting", "Connecting to the server.", ""];
      case "offline": {
        const seconds = Math.max(1, Math.ceil(((status.retryAt ?? Date.now()) - Date.now()) / 1000));
        const why = status.error?.code === "overloaded" ? "The server is overloaded." : "No connection to the server.";
        return ["Offline", `${why} Next attempt in ${seconds} s.`, "Try now"];
      }
    }
  }
}
