/** How the connection stands, said honestly: a word in the corner, a line above the message field when it matters, and to a screen reader once it has lasted. */
import { find } from "./dom.js";
import { offered } from "./sign-in.js";
import { t } from "./texts.js";

/** @typedef {import("./sessile.js").Status} Status */

/** This machine's own server needs no network: from a loopback address the page stays "Connected" while the browser is offline. */
const isHere = /^(localhost|127\.|\[::1\])/.test(location.hostname);
/** The server wants to know who is here, over whichever way it was asked. @param {Status} status */
export const asksForKey = ({ closeCode, httpStatus }) => closeCode === 4401 || httpStatus === 401;
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
    this.isRenewed = false;
    this.mayChat = true;
    this.button.addEventListener("click", () => {
      if (this.isRenewed && this.status?.phase === "ready") location.reload();
      else if (this.status && asksForKey(this.status)) this.actions.askKey();
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

  /** The page was renewed on the server. */
  renew() {
    this.isRenewed = true;
    this.draw();
  }

  /** @param {boolean} may whoever is here may chat */
  allow(may) {
    this.mayChat = may;
    this.draw();
  }

  draw() {
    const { status } = this;
    if (status === null) return;
    const [word, lasting, button, countdown = ""] = this.words(status);
    const sentence = countdown === "" ? lasting : `${lasting} ${countdown}`;
    this.corner.dataset["phase"] = status.draining && status.phase === "ready" ? "draining" : status.phase;
    if (this.word.textContent !== word) this.word.textContent = word;
    const isWorthTelling = sentence !== "" && (status.phase === "stopped" || status.phase === "ready" || !navigator.onLine || Date.now() - this.troubleSince > TELL_AFTER_MS);
    this.notice.hidden = !isWorthTelling;
    if (this.noticeText.textContent !== sentence) this.noticeText.textContent = sentence;
    this.button.hidden = button === "";
    if (this.button.textContent !== button) this.button.textContent = button;
    const said = isWorthTelling ? lasting : "";
    if (said !== this.told) {
      if (said === "" && status.phase === "ready" && this.told !== "") this.polite.textContent = t("Connected again.");
      else if (said !== "") this.polite.textContent = said;
      this.told = said;
    }
  }

  /** @param {Status} status @returns {[word: string, sentence: string, button: string, countdown?: string]} */
  words(status) {
    if (!navigator.onLine && status.phase !== "stopped" && !(status.phase === "ready" && isHere)) {
      return [t("Offline"), t("You are offline. What you read here before is here; what you write goes out when the connection is back."), ""];
    }
    switch (status.phase) {
      case "ready":
        if (this.isRenewed) return [t("Connected"), t("There is a new version of this page."), t("Load it")];
        if (status.draining) return [t("Server restarting"), t("The server is about to restart. Answers go on afterwards."), ""];
        return [t("Connected"), this.mayChat ? "" : t("You cannot chat with this key or account. Use one that was made for a person."), ""];
      case "stopped":
        if (asksForKey(status)) return offered ? [t("Sign in"), t("The server asks who you are."), t("Sign in")] : [t("Key needed"), t("The server asks for a key."), t("Enter a key")];
        return [t("Refused"), `${t("The server refused the connection.")} ${status.closeCode ? `(${status.closeCode}) ` : ""}${status.error?.message ?? ""}`.trim(), t("Try again")];
      case "suspended":
        return [t("Paused"), "", ""];
      case "connecting":
        return status.attempt > 0 ? [t("Reconnecting"), t("No connection to the server. Trying again now."), ""] : [t("Connecting"), t("Connecting to the server."), ""];
      case "offline": {
        const seconds = Math.max(1, Math.ceil(((status.retryAt ?? Date.now()) - Date.now()) / 1000));
        const why = status.error?.code === "overloaded" ? t("The server is overloaded.") : t("No connection to the server.");
        return [t("Offline"), why, t("Try now"), t("Next attempt in {n} s.", { n: seconds })];
      }
    }
  }
}
