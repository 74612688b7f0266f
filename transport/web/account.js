/** Who speaks: the key that this tab keeps or the person who signed in, and what goes with a change of either. */
import { call, KEY, storage } from "./api.js";
import { belongTo } from "./copies.js";
import { find } from "./dom.js";
import { forget, offered, signIn, signOut, standing } from "./sign-in.js";
import { t } from "./texts.js";
import { wipe } from "./wipe.js";

export class Account {
  /** @param {{ connect: () => void, failed: (error: unknown) => void, mayChat: (may: boolean) => void }} actions */
  constructor(actions) {
    this.actions = actions;
    this.takesKeys = true;
    this.wasKnown = false; // the server has taken what this tab has
    /** @type {HTMLDialogElement} */
    this.dialog = find("key");
    /** @type {HTMLInputElement} */
    this.input = find("key-input");
    this.dialog.addEventListener("close", () => void this.entered());
    find("key-sign-in").addEventListener("click", () => signIn());
    find("who-button").addEventListener("click", () => {
      if (this.isSignedIn) signOut().catch(actions.failed);
      else if (storage.getItem(KEY)) void this.forgetKey();
      else signIn();
    });
    this.isSignedIn = false;
  }

  /** The credential for a connection. */
  async key() {
    if (offered) await this.show();
    return storage.getItem(KEY) ?? undefined;
  }

  ask() {
    if (offered) forget();
    const hasKey = Boolean(storage.getItem(KEY));
    find("key-title").textContent = this.takesKeys ? t("This server asks for a key") : t("This server asks who you are");
    if (!this.takesKeys) find("key-text").textContent = t("Sign in to see your conversations.");
    else find("key-text").textContent = hasKey ? t("The server does not know that key. Try another one.") : t("It is kept in this tab only, and forgotten when you close it.");
    find("key-sign-in").hidden = !offered;
    find("key-field").hidden = find("key-yes").hidden = !this.takesKeys;
    this.input.disabled = !this.takesKeys;
    if (!this.dialog.open) this.dialog.showModal();
  }

  async entered() {
    const key = this.input.value;
    if (key === "") return;
    this.input.value = "";
    const before = storage.getItem(KEY);
    const isAnother = Boolean(before && before !== key);
    if (isAnother) await wipe(this.wasKnown); // what another key read is not for this one
    storage.setItem(KEY, key);
    if (isAnother && this.wasKnown) location.assign(location.pathname);
    else this.actions.connect();
  }

  /** Signs out with a key: takes it and what it read out of this browser. */
  async forgetKey() {
    await wipe(true);
    location.assign(location.pathname);
  }

  /** The server has let this tab in. */
  known() {
    this.wasKnown = true;
    void this.showRights();
    if (!this.isSignedIn && storage.getItem(KEY)) this.showWho(t("Here with a key"), t("Forget it"));
  }

  /** Who is signed in, and the button beside it. A key of this tab is forgotten then: one of the two is enough. */
  async show() {
    const state = await standing();
    this.takesKeys = state.keys;
    this.isSignedIn = state.signed_in;
    if (state.signed_in) {
      storage.removeItem(KEY);
      if (!(await belongTo(state.user))) location.replace(location.pathname); // what stands here is another person's
    }
    if (state.signed_in) this.showWho(t("Signed in as {user}", { user: state.user ?? "" }), t("Sign out"));
    else this.showWho("", t("Sign in"));
  }

  /** @param {string} name @param {string} button */
  showWho(name, button) {
    find("who").hidden = false;
    find("who-name").textContent = name;
    find("who-button").textContent = button;
  }

  /** The operator's page, for whoever may see it; and to whoever may not chat, that. */
  async showRights() {
    const me = await call("v1/me").catch(() => null);
    find("operator").hidden = me?.operator !== true;
    this.actions.mayChat(me?.scopes?.includes("chat") ?? true);
  }
}
