/** The files that a tool's run has written: each can be saved, and an image is shown once it comes into view. */
import { request, sentence } from "./api.js";
import { el, icon, save } from "./dom.js";
import { number, t } from "./texts.js";

/** @typedef {{ file_id: string, path: string, size: number }} ToolFile */

/** What the browser shows in place, by its name's ending. A file's own bytes never become a page. */
const IMAGES = new Map([["png", "image/png"], ["jpg", "image/jpeg"], ["jpeg", "image/jpeg"], ["webp", "image/webp"], ["gif", "image/gif"]]);
const SHOWN_BYTES_MAX = 4 << 20;
/** @type {WeakMap<Element, () => void>} */
const unseen = new WeakMap();
const view = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    if (!isIntersecting) continue;
    view.unobserve(target);
    unseen.get(target)?.();
  }
});

/** @param {ToolFile[]} files @param {(text: string) => void} tell */
export function toolFiles(files, tell) {
  return el("ul", { class: "files", "aria-label": t("Files that the tool has written") }, ...files.map((file) => entryOf(file, tell)));
}

/** @param {ToolFile} file @param {(text: string) => void} tell */
function entryOf({ file_id, path, size }, tell) {
  const content = async () => (await request(`v1/files/${encodeURIComponent(file_id)}/content`)).blob();
  const name = path.slice(path.lastIndexOf("/") + 1);
  const label = t("Save {name}", { name: path });
  const click = () => void content().then((blob) => save(blob, name), (error) => tell(t("{name} was not saved: {why}", { name: path, why: sentence(error) })));
  const button = el("button", { class: "quiet", type: "button", "aria-label": label, title: label, click }, icon("save"));
  const chip = el("li", { class: "file" }, el("span", { class: "name", dir: "auto" }, path), el("span", { class: "sent" }, sizeOf(size)), button);
  const type = IMAGES.get(path.slice(path.lastIndexOf(".") + 1).toLowerCase());
  if (type === undefined || size > SHOWN_BYTES_MAX) return chip;
  const show = async () => {
    const src = await content().then((blob) => dataUrl(blob.slice(0, blob.size, type))).catch(() => null);
    if (src === null) return; // Its name and button stay: whoever wants it learns why it is not there.
    chip.classList.add("image");
    chip.prepend(el("img", { src, alt: path }));
  };
  unseen.set(chip, () => void show());
  view.observe(chip);
  return chip;
}

/** @param {number} size in bytes */
function sizeOf(size) {
  return size < 1024 ? t("{n} bytes", { n: number(size) }) : size < 1 << 20 ? t("{n} KB", { n: number(Math.round(size / 1024)) }) : t("{n} MB", { n: number(Math.round(size / (1 << 20))) });
}

/** @param {Blob} blob @returns {Promise<string>} */
function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(String(reader.result)));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(blob);
  });
}
