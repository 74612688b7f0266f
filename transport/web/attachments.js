/**
 * Files that go with the next message of a conversation: chosen, dropped or pasted, uploaded at once, a few at a time, and
 * kept by this tab with the conversation's draft until they are sent or removed. A file that is not sent is deleted on the
 * server too; messages keep the text that they were sent with.
 */
import { base, call, credentials, Refusal, sentence, storage } from "./api.js";
import { el, icon } from "./dom.js";
import { number, t } from "./texts.js";
import { leaving } from "./wipe.js";

/** @typedef {import("./sessile.js").ContentPart} ContentPart */
/**
 * `id` is null until the file is uploaded, and `problem` says why it was not. `file` is what is uploaded, if it was not before.
 * @typedef {{ type: string, name: string, id: string | null, file: File | null, problem: string, isRemoved: boolean, request: XMLHttpRequest | null, element: HTMLElement, status: HTMLElement }} Attachment
 */

const FILES_MAX = 32; // The server takes no more in one message.
const UPLOADS_MAX = 3; // They leave connections for the rest of the page.
const TRIES_MAX = 5;
const RETRY_AFTER_S = 3;
const EXPIRES_AFTER_S = 30 * 24 * 3600;
const IMAGES = new Set(["image/png", "image/jpeg", "image/webp", "image/gif"]);
const THUMBNAIL_PX = 40;
const KEY = "sessile-files:";

/** Makes the content of a message: its files, then its words. @param {string} text @param {ContentPart[]} files @returns {string | ContentPart[]} */
export function contentOf(text, files) {
  return files.length === 0 ? text : [...files, ...(text === "" ? [] : [{ type: "input_text", text }])];
}

/** Returns the files and images of a message as they are sent again. @param {{ content?: string | ContentPart[] } | undefined} item @returns {ContentPart[]} */
export function filesOf(item) {
  return attachedTo(item).map(({ type, file_id, filename, image_url }) => {
    if (type === "input_file") return { type, ...(file_id ? { file_id } : {}), filename };
    return { type, ...(file_id ? { file_id } : { image_url }), ...(filename ? { filename } : {}) };
  });
}

/** Returns the parts of a message that are files and images. @param {{ content?: string | ContentPart[] } | undefined} item */
export function attachedTo(item) {
  const parts = typeof item?.content === "string" ? [] : (item?.content ?? []);
  return parts.filter((part) => part.type === "input_file" || (part.type === "input_image" && (part["image_url"] || part["file_id"])));
}

/** Returns the words of a message's content. @param {string | ContentPart[]} content */
export function wordsOf(content) {
  return typeof content === "string" ? content : content.map((part) => (part.type === "input_text" ? part.text : "")).join("");
}

/** Whether an item has the words and files of a message as it is sent. @param {{ content?: ContentPart[] }} item @param {string | ContentPart[]} content */
export function hasContent(item, content) {
  const idsOf = (/** @type {string | ContentPart[]} */ parts) => String(filesOf({ content: parts }).map((file) => file["file_id"] ?? file["image_url"]));
  return wordsOf(item.content ?? []) === wordsOf(content) && idsOf(item.content ?? []) === idsOf(content);
}

/** @param {ContentPart[]} files */
export function namesOf(files) {
  return files.map((file) => String(file["filename"] ?? t("Image")));
}

/** Shows a message's images, and the names of its files. @param {ContentPart[]} files as `attachedTo` returns them */
export function chipsOf(files) {
  return files.map((file) => {
    const [name = ""] = namesOf([file]);
    const { image_url: src, width, height } = /** @type {{ image_url?: string, width?: number, height?: number }} */ (file);
    return src?.startsWith("data:image/") ? el("li", { class: "image" }, el("img", { src, width, height, alt: name })) : el("li", { class: "file", dir: "auto" }, name);
  });
}

/** Deletes files on the server that were not sent; those that it keeps all the same expire. @param {ContentPart[]} files */
export function deleteStored(files) {
  for (const { file_id } of files) if (file_id) void call(`v1/files/${encodeURIComponent(String(file_id))}`, { method: "DELETE" }).catch(() => undefined);
}

export class Attachments {
  /** @param {{ list: HTMLElement, input: HTMLInputElement, area: HTMLElement, field: HTMLElement, tell: (text: string) => void, changed: () => void, sees: () => boolean }} page `sees`: whether the model sees images; `area` takes files that are dropped or pasted; of all text fields only `field` does */
  constructor({ list, input, area, field, tell, changed, sees }) {
    this.list = list;
    this.tell = tell;
    this.changed = changed;
    this.sees = sees;
    /** @type {Map<string, Attachment[]>} */
    this.bySession = new Map();
    this.sessionId = "";
    /** @type {Attachment[]} */
    this.queue = [];
    this.uploads = 0;
    input.addEventListener("change", () => {
      this.add([...(input.files ?? [])]);
      input.value = "";
    });
    area.addEventListener("paste", (event) => {
      const data = event.clipboardData;
      const isElsewhere = event.target !== field && event.target instanceof Element && event.target.matches("input, textarea");
      if (!isElsewhere && !data?.getData("text/plain")) this.takeFrom(event, data); // Office programs offer a picture beside their text.
    });
    area.addEventListener("drop", (event) => this.takeFrom(event, event.dataTransfer));
    area.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
    window.addEventListener("beforeunload", (event) => {
      const isUploading = [...this.bySession.values()].flat().some((attachment) => attachment.id === null);
      if (isUploading && !leaving.is) event.preventDefault();
    });
  }

  /** @param {Event} event @param {DataTransfer | null} data */
  takeFrom(event, data) {
    const files = [...(data?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    this.add(files);
  }

  /** Shows the files of a conversation's next message. @param {string} sessionId empty: of a new one */
  show(sessionId) {
    this.sessionId = sessionId;
    this.read(sessionId);
    this.draw();
  }

  /** Returns a conversation's attachments; those that this tab kept at first. @param {string} sessionId */
  read(sessionId) {
    const known = this.bySession.get(sessionId);
    if (known !== undefined) return known;
    /** @type {ContentPart[]} */
    const kept = JSON.parse(storage.getItem(KEY + sessionId) ?? "[]");
    const attachments = kept.map((part) => this.newAttachment(part.type, String(part["filename"]), String(part["file_id"])));
    this.bySession.set(sessionId, attachments);
    return attachments;
  }

  get current() {
    return this.read(this.sessionId);
  }

  get isEmpty() {
    return this.current.length === 0;
  }

  /** Why the message cannot be sent yet; empty if it can. */
  get obstacle() {
    if (this.current.some((attachment) => attachment.problem !== "")) return t("A file was not uploaded. Try it again, or remove it.");
    return this.current.some((attachment) => attachment.id === null) ? t("A file is still being uploaded.") : "";
  }

  /** Puts files back whose message was not sent. @param {ContentPart[]} parts */
  restore(parts) {
    for (const { type, file_id, filename } of parts) this.current.push(this.newAttachment(type, String(filename), String(file_id)));
    this.keep(this.sessionId);
  }

  /** Hands out the files, which now belong to a message. @returns {ContentPart[]} */
  take() {
    const parts = partsOf(this.current);
    this.bySession.set(this.sessionId, []);
    this.keep(this.sessionId);
    return parts;
  }

  /** Gives the files of the new conversation to the one that it has become. @param {string} sessionId */
  move(sessionId) {
    this.bySession.set(sessionId, this.read(""));
    this.bySession.set("", []);
    this.sessionId = sessionId;
    this.keep("");
    this.keep(sessionId);
  }

  /** Removes the files of a conversation that was deleted. @param {string} sessionId */
  clear(sessionId) {
    for (const attachment of [...this.read(sessionId)]) this.remove(attachment);
  }

  /** @param {File[]} files */
  add(files) {
    const room = Math.max(0, FILES_MAX - this.current.length);
    if (files.length > room) this.tell(t("A message has {n} files at most.", { n: number(FILES_MAX) }));
    const typeOf = (/** @type {File} */ file) => (IMAGES.has(file.type) && this.sees() ? "input_image" : "input_file");
    const attachments = files.slice(0, room).map((file) => this.newAttachment(typeOf(file), file.name, null, file));
    this.current.push(...attachments);
    this.enqueue(attachments);
  }

  /** @param {Attachment[]} attachments */
  enqueue(attachments) {
    for (const attachment of attachments) {
      attachment.problem = "";
      showProgress(attachment, 0);
    }
    this.queue.push(...attachments);
    this.draw();
    this.startUploads();
  }

  startUploads() {
    for (const attachment of this.queue.splice(0, UPLOADS_MAX - this.uploads)) void this.upload(attachment);
  }

  /** Uploads a file, and again where the server is busy or away. @param {Attachment} attachment */
  async upload(attachment) {
    this.uploads++;
    for (let tries = 1; attachment.id === null && attachment.problem === "" && !attachment.isRemoved; tries++) {
      try {
        attachment.id = await upload(attachment);
      } catch (error) {
        const { status = 0, retryAfterS = 0 } = /** @type {{ status?: number, retryAfterS?: number }} */ (error);
        const isPassing = status === 0 || status === 503 || (status === 429 && retryAfterS > 0); // A quota names no time.
        if (attachment.isRemoved) break;
        if (isPassing && tries < TRIES_MAX) await new Promise((resolve) => setTimeout(resolve, 1000 * (retryAfterS || RETRY_AFTER_S)));
        else attachment.problem = sentence(error);
      }
    }
    this.uploads--;
    if (attachment.isRemoved) deleteStored(partsOf([attachment]));
    else if (attachment.problem !== "") this.tell(t("{name} was not uploaded: {why}", { name: attachment.name, why: attachment.problem }));
    showProgress(attachment, 1);
    for (const [sessionId, attachments] of this.bySession) if (attachments.includes(attachment)) this.keep(sessionId);
    this.startUploads();
  }

  /** @param {string} type @param {string} name @param {string | null} id @param {File | null} [file] @returns {Attachment} */
  newAttachment(type, name, id, file = null) {
    const status = el("span", { class: "sent" });
    const again = el("button", { class: "quiet again", type: "button", "aria-label": t("Upload {name} again", { name }), title: t("Try again"), click: () => this.enqueue([attachment]) }, icon("again"));
    const remove = el("button", { class: "quiet", type: "button", "aria-label": t("Remove {name}", { name }), click: () => this.remove(attachment) }, icon("close"));
    const element = el("li", { class: "file" }, el("span", { class: "name", dir: "auto" }, name), status, again, remove);
    /** @type {Attachment} */
    const attachment = { type, name, id, file, problem: "", isRemoved: false, request: null, element, status };
    showProgress(attachment, 0);
    if (type === "input_image" && file !== null) void thumbnailOf(file).then((image) => image && element.prepend(image));
    return attachment;
  }

  /** @param {Attachment} attachment */
  remove(attachment) {
    attachment.isRemoved = true;
    attachment.request?.abort();
    deleteStored(partsOf([attachment]));
    for (const [sessionId, attachments] of this.bySession) {
      if (!attachments.includes(attachment)) continue;
      this.bySession.set(sessionId, attachments.filter((other) => other !== attachment));
      this.keep(sessionId);
    }
  }

  /** @param {string} sessionId */
  keep(sessionId) {
    const parts = partsOf(this.read(sessionId));
    if (parts.length === 0) storage.removeItem(KEY + sessionId);
    else storage.setItem(KEY + sessionId, JSON.stringify(parts));
    this.draw();
  }

  draw() {
    this.list.replaceChildren(...this.current.map((attachment) => attachment.element));
    this.list.hidden = this.isEmpty;
    this.changed();
  }
}

/** @param {Attachment[]} attachments @returns {ContentPart[]} */
function partsOf(attachments) {
  return attachments.filter((attachment) => attachment.id !== null).map(({ type, id, name }) => ({ type, file_id: id, filename: name }));
}

/** Returns a small picture of an image; null for what the browser cannot show. @param {File} file */
async function thumbnailOf(file) {
  const bitmap = await createImageBitmap(file, { resizeHeight: THUMBNAIL_PX }).catch(() => null);
  if (bitmap === null) return null;
  const canvas = el("canvas", { class: "thumbnail", width: bitmap.width, height: bitmap.height, "aria-hidden": "true" });
  /** @type {HTMLCanvasElement} */ (canvas).getContext("2d")?.drawImage(bitmap, 0, 0);
  return canvas;
}

/** Shows how far an upload is, or why it failed. @param {Attachment} attachment @param {number} part of its bytes */
function showProgress({ id, problem, element, status }, part) {
  status.textContent = problem || (id === null ? t("{n} %", { n: number(Math.floor(part * 100)) }) : "");
  element.classList.toggle("bad", problem !== "");
}

/** Uploads a file, and returns its id. @param {Attachment} attachment @returns {Promise<string>} */
function upload(attachment) {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("expires_after[anchor]", "created_at");
  form.append("expires_after[seconds]", String(EXPIRES_AFTER_S));
  form.append("file", /** @type {File} */ (attachment.file), attachment.name);
  const request = (attachment.request = new XMLHttpRequest());
  request.open("POST", `${base}/v1/files`);
  for (const [name, value] of Object.entries(credentials(true))) request.setRequestHeader(name, value);
  request.upload.addEventListener("progress", ({ loaded, total }) => showProgress(attachment, total === 0 ? 0 : loaded / total));
  return new Promise((resolve, reject) => {
    const refuse = () => reject(new Refusal(0, "There is no connection to the server."));
    request.addEventListener("abort", refuse);
    request.addEventListener("error", refuse);
    request.addEventListener("load", () => {
      /** @type {any} */
      let answer = {};
      try {
        answer = JSON.parse(request.responseText);
      } catch {
        answer = {}; // A proxy answers with a page.
      }
      if (request.status === 200) return resolve(answer.id);
      const refusal = new Refusal(request.status, answer.error?.message ?? `The server answers ${request.status}.`, answer.error?.code);
      reject(Object.assign(refusal, { retryAfterS: Number(request.getResponseHeader("retry-after")) || 0 }));
    });
    request.send(form);
  });
}
