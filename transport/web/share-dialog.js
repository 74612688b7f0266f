/** Links under which anybody may read a conversation as it is now: made, listed and revoked. */
import { base, call, Refusal, sentence } from "./api.js";
import { cancel, openDialog } from "./dialogs.js";
import { arrange, el } from "./dom.js";
import { time, t } from "./texts.js";

/** This server shares nothing: known after the first attempt. */
export const sharing = { isOff: false };

/** @param {string} session @param {string | null} tip the branch that is shown; null: the newest */
export function openShares(session, tip) {
  const path = `v1/sessions/${encodeURIComponent(session)}/shares`;
  const list = el("ul", { class: "shares" });
  const news = el("p", { class: "news", role: "status" });
  const fresh = el("div", { hidden: true });
  const failed = (/** @type {unknown} */ error) => {
    if (error instanceof Refusal && [403, 404].includes(error.status)) make.disabled = true;
    if (error instanceof Refusal && error.status === 403) sharing.isOff = true;
    news.textContent = sentence(error);
  };
  const show = async () => {
    const { data } = await call(path);
    const rows = data.map((/** @type {any} */ share) => row(share));
    arrange(list, rows.length > 0 ? rows : [el("li", { class: "none" }, t("No link leads here."))]);
  };
  const row = (/** @type {any} */ share) => {
    const when = time(share.created_at);
    const revoke = el("button", { class: "plain", type: "button", "aria-label": t("Revoke the link of {when}", { when }), click: () => void drop(share.id) }, t("Revoke"));
    return el("li", {}, el("span", {}, t("Made {when}", { when })), revoke);
  };
  const drop = async (/** @type {string} */ id) => {
    try {
      await call(`${path}/${id}`, { method: "DELETE" });
    } catch (error) {
      if (!(error instanceof Refusal && error.status === 404)) return failed(error); // it is in force still
    }
    news.textContent = t("The link leads nowhere now.");
    fresh.hidden = true;
    make.focus();
    await show().catch(failed);
  };
  const create = async () => {
    try {
      const share = await call(path, { method: "POST", body: tip === null ? {} : { item_id: tip } });
      const link = el("input", { id: "share-link", readonly: true, value: `${base}/share#${share.token}` });
      fresh.hidden = false;
      fresh.replaceChildren(el("label", { for: "share-link" }, t("The link. It is shown only now.")), el("div", { class: "link-line" }, link, copier(link)));
      link.select();
      await show();
    } catch (error) {
      failed(error);
    }
  };
  const copier = (/** @type {HTMLInputElement} */ link) =>
    el("button", {
      class: "plain", type: "button",
      click: () => void navigator.clipboard.writeText(link.value).then(() => (news.textContent = t("Copied.")), () => link.select()),
    }, t("Copy"));
  const make = el("button", { class: "danger sea", type: "button", id: "share-make", click: () => void create() }, t("Make a link"));
  const about = t("Whoever has the link may read this conversation as it is now, without a key. What is said later is not in it. You may revoke it at any time.");
  openDialog(t("Share this conversation"), [el("p", {}, about), fresh, list, news], [cancel(t("Close")), make], { id: "share", wide: true });
  make.focus();
  void show().catch(failed);
}
