/** A conversation that somebody shared, to read: no key, no connection that stays. The link's token is behind the `#`, where no server logs it. */
import { el, find } from "./dom.js";
import { Markdown } from "./markdown.js";
import { t, time, translate } from "./texts.js";

const TITLE_MAX = 80;

/** @param {{ role: string, text: string, files?: string[] }} message */
function shown(message) {
  const isUser = message.role === "user";
  const markdown = new Markdown();
  if (!isUser) markdown.update(message.text);
  const words = isUser ? el("p", { class: "said", dir: "auto" }, message.text) : markdown.element;
  const files = (message.files ?? []).map((name) => el("li", { class: "file", dir: "auto" }, name));
  const list = files.length > 0 && el("ul", { class: "files", "aria-label": t("Files of the message") }, ...files);
  return el("li", { class: `message ${isUser ? "user" : "answer"}` }, el("div", { class: "body" }, el("h2", { class: "unseen" }, isUser ? t("Question") : t("Answer")), list, (message.text !== "" || !list) && words));
}

async function show() {
  const base = location.pathname.replace(/\/[^/]*$/, "");
  const answer = await fetch(`${base}/v1/shares/${encodeURIComponent(location.hash.slice(1))}`, { credentials: "omit" }).catch(() => null);
  const { title, model, shared_at, messages } = answer?.ok ? await answer.json() : { title: null, model: null, shared_at: 0, messages: null };
  if (messages === null) {
    find("title").textContent = t("This link leads nowhere");
    find("about").textContent = answer === null ? t("There is no connection to the server.") : t("It was revoked, or the conversation was deleted, or it is not whole.");
    return;
  }
  const first = (messages[0]?.text.trim() || (messages[0]?.files ?? []).join(", ")).split("\n")[0].slice(0, TITLE_MAX);
  const name = title || first || t("Shared conversation");
  find("title").textContent = name;
  document.title = `${name} · Sessile`;
  find("about").textContent = [t("Shared {when}, to read", { when: time(shared_at) }), model].filter(Boolean).join(" · ");
  find("thread").replaceChildren(...messages.map(shown));
}

translate(document.body);
window.addEventListener("hashchange", () => void show());
void show();
