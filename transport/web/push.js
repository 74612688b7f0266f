/** Push: this browser is told when an answer is there and nobody reads. A button turns it on and off; the worker shows what comes. */
import { call } from "./api.js";
import { find } from "./dom.js";
import { t } from "./texts.js";

const SUBSCRIPTIONS = "v1/push/subscriptions";

export class PushButton {
  /** @param {(error: unknown) => void} failed */
  constructor(failed) {
    this.failed = failed;
    this.key = "";
    /** @type {PushSubscription | null} */
    this.subscription = null;
    /** @type {HTMLButtonElement} */
    this.button = find("push");
    this.button.addEventListener("click", () => void this.change());
  }

  /** Offers it where the server sends and this browser can; a subscription that there is, is said anew: it may be another person's. */
  async offer() {
    if (!("PushManager" in globalThis) || !navigator.serviceWorker) return;
    const server = await call("v1/push").catch(() => null);
    if (server === null || server.application_server_key === "") return;
    this.key = server.application_server_key;
    const registration = await navigator.serviceWorker.ready;
    this.subscription = await registration.pushManager.getSubscription();
    if (this.subscription !== null) await this.say(this.subscription).catch(() => undefined);
    this.draw();
  }

  async change() {
    this.button.disabled = true;
    try {
      if (this.subscription === null) await this.begin();
      else await this.end(this.subscription);
    } catch (error) {
      this.failed(error);
    } finally {
      this.button.disabled = false;
      this.draw();
    }
  }

  async begin() {
    if ((await Notification.requestPermission()) !== "granted") throw new Error(t("This browser does not allow notifications here."));
    const registration = await navigator.serviceWorker.ready;
    const subscription = await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: this.key });
    try {
      await this.say(subscription);
    } catch (error) {
      await subscription.unsubscribe(); // the server would never send to it
      throw error;
    }
    this.subscription = subscription;
  }

  /** @param {PushSubscription} subscription */
  async say(subscription) {
    const { id } = await call(SUBSCRIPTIONS, { method: "POST", body: subscription.toJSON() });
    this.id = String(id);
  }

  /** @param {PushSubscription} subscription */
  async end(subscription) {
    await subscription.unsubscribe();
    this.subscription = null;
    if (this.id) await call(`${SUBSCRIPTIONS}/${this.id}`, { method: "DELETE" });
  }

  draw() {
    this.button.hidden = this.key === "";
    this.button.setAttribute("aria-pressed", String(this.subscription !== null));
  }
}
