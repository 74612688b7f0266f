/**
 * Files that go with the next message of a conversation: chosen, dropped or pasted, uploaded at once, and kept by this tab
 * with the conversation's draft until they are sent or removed.
 */
import { base, credentials, Refusal, sentence, storage } from "./api.js";
import { el, icon } from "./dom.js";
import { number, t } from "./texts.js";

/** @typedef {import("./sessile.js").ContentPart} ContentPart */
/** @typedef {{ name: string, id: string | null, sent: number, request: XMLHttpRequest | null, element: HTMLElement }} Attachment */

const MOST = 32; // files of a message, as the server takes them
const KEY = "sessile-files:";

/** What is sent: words, and files before them. @param {string} text @param {ContentPart[]} files @returns {string | ContentPart[]} */
export function contentOf(text, files) {
  return files.length === 0 ? text : [...files, ...(text === "" ? [] : [{ type: "input_text", text }])];
}

/** A message's files, as they are sent again. @param {{ content?: ContentPart[] } | undefined} item @returns {ContentPart[]} */
export function filesOf(item) {
  return (item?.content ?? []).filter((part) => part.type === "input_file").map(({ type, file_id, filename }) => ({ type, file_id, filename }));
}

/** The words of a message; where it has none, the names of its files. @param {string | ContentPart[]} content */
export function wordsOf(content) {
  if (typeof content === "string") return content;
  return content.map((part) => (part.type === "input_text" ? part.text : "")).join("") || content.map((part) => part["filename"]).join(", ");
}

export class Attachments {
  /** @param {{ list: HTMLElement, input: HTMLInputElement, area: HTMLElement, tell: (text: string) => void, changed: () => void }} page `area`: where files may be dropped and pasted */
  constructor({ list, input, area, tell, changed }) {
    this.list = list;
    this.tell = tell;
    this.changed = changed;
    /** @type {Map<string, Attachment[]>} */
    this.all = new Map();
    this.of = "";
    input.addEventListener("change", () => {
      this.add([...(input.files ?? [])]);
      input.value = "";
    });
    area.addEventListener("paste", (event) => {
      const data = event.clipboardData;
      if (!data?.getData("text/plain")) this.takeFrom(event, data); // office programs offer a picture beside their text
    });
    area.addEventListener("drop", (event) => this.takeFrom(event, event.dataTransfer));
    area.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  }

  /** @param {Event} event @param {DataTransfer | null} data */
  takeFrom(event, data) {
    const files = [...(data?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    this.add(files);
  }

  /** Shows the files of a conversation's next message. @param {string} session its id; empty: a new one */
  show(session) {
    this.of = session;
    if (!this.all.has(session)) {
      this.all.set(session, []);
      this.put(JSON.parse(storage.getItem(KEY + session) ?? "[]"));
    }
    this.draw();
  }

  get here() {
    return this.all.get(this.of) ?? [];
  }

  get isEmpty() {
    return this.here.length === 0;
  }

  /** Whether a file is still on its way. */
  get isBusy() {
    return this.here.some((each) => each.id === null);
  }

  /** Puts files back that were sent. @param {ContentPart[]} parts */
  put(parts) {
    for (const { file_id, filename } of parts) this.here.push(this.made(String(filename), String(file_id)));
    this.keep(this.of);
  }

  /** The files, which now belong to a message. @returns {ContentPart[]} */
  take() {
    const parts = partsOf(this.here);
    this.all.set(this.of, []);
    this.keep(this.of);
    return parts;
  }

  /** @param {File[]} files */
  add(files) {
    const room = MOST - this.here.length;
    if (files.length > room) this.tell(t("A message has {n} files at most.", { n: number(MOST) }));
    for (const file of files.slice(0, room)) void this.upload(file, this.of);
  }

  /** @param {File} file @param {string} session */
  async upload(file, session) {
    const attachment = this.made(file.name, null);
    this.all.get(session)?.push(attachment);
    this.keep(session);
    try {
      const stored = await posted(file, attachment, () => fill(attachment));
      attachment.id = stored.id;
      fill(attachment);
    } catch (error) {
      this.remove(attachment);
      if (error !== null) this.tell(t("{name} was not uploaded: {why}", { name: file.name, why: sentence(error) }));
    }
    this.keep(session);
  }

  /** @param {string} name @param {string | null} id @returns {Attachment} */
  made(name, id) {
    /** @type {Attachment} */
    const attachment = { name, id, sent: 0, request: null, element: el("li", { class: "file" }) };
    const remove = el("button", { class: "quiet", type: "button", "aria-label": t("Remove {name}", { name }), click: () => this.remove(attachment) }, icon("close"));
    attachment.element.append(el("span", { class: "name", dir: "auto" }, name), el("span", { class: "sent" }), remove);
    fill(attachment);
    return attachment;
  }

  /** @param {Attachment} attachment */
  remove(attachment) {
    for (const [session, list] of this.all) {
      if (!list.includes(attachment)) continue;
      this.all.set(session, list.filter((each) => each !== attachment));
      this.keep(session);
    }
    attachment.request?.abort();
  }

  /** @param {string} session */
  keep(session) {
    const parts = partsOf(this.all.get(session) ?? []);
    if (parts.length === 0) storage.removeItem(KEY + session);
    else storage.setItem(KEY + session, JSON.stringify(parts));
    this.draw();
  }

  draw() {
    this.list.replaceChildren(...this.here.map((each) => each.element));
    this.list.hidden = this.isEmpty;
    this.changed();
  }
}

/** @param {Attachment[]} attachments @returns {ContentPart[]} */
function partsOf(attachments) {
  return attachments.filter((each) => each.id !== null).map(({ id, name }) => ({ type: "input_file", file_id: id, filename: name }));
}

/** How far an upload is. @param {Attachment} attachment */
function fill({ id, sent, element }) {
  const text = id !== null ? "" : t("{n} %", { n: number(Math.floor(sent * 100)) });
  const shown = element.querySelector(".sent");
  if (shown !== null) shown.textContent = text;
}

/** Uploads a file; rejects with null where it was removed meanwhile. @param {File} file @param {Attachment} attachment @param {() => void} progressed @returns {Promise<{ id: string }>} */
function posted(file, attachment, progressed) {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", file, file.name);
  const request = (attachment.request = new XMLHttpRequest());
  request.open("POST", `${base}/v1/files`);
  for (const [name, value] of Object.entries(credentials(true))) request.setRequestHeader(name, value);
  request.upload.addEventListener("progress", ({ loaded, total }) => {
    attachment.sent = total === 0 ? 0 : loaded / total;
    progressed();
  });
  return new Promise((resolve, reject) => {
    request.addEventListener("abort", () => reject(null));
    request.addEventListener("error", () => reject(new Refusal(0, "There is no connection to the server.")));
    request.addEventListener("load", () => {
      /** @type {any} */
      let answer = {};
      try {
        answer = JSON.parse(request.responseText);
      } catch {
        answer = {}; // a proxy's page
      }
      if (request.status === 200) resolve(answer);
      else reject(new Refusal(request.status, answer.error?.message ?? `The server answers ${request.status}.`, answer.error?.code));
    });
    request.send(form);
  });
}
