/** Making and finding elements. Text goes in as text, never as markup. */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {{ [name: string]: string | number | boolean | null | undefined | ((event: any) => void) }} [attributes]
 * @param {...(Node | string | null | undefined | false)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/**
 * Whether a key belongs to an input method. Safari ends the composition before its last Enter, which only the key code 229
 * tells from one that sends.
 * @param {KeyboardEvent} event
 */
export function isComposing(event) {
  return event.isComposing || event.keyCode === 229;
}

/** @param {string} name one of the symbols in index.html */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/**
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id of an element that index.html has
 * @returns {T}
 */
export function find(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`index.html has no #${id}`);
  return /** @type {T} */ (element);
}

/**
 * A small button with an icon and, where there is room, words.
 * @param {string} name
 * @param {string} label
 * @param {() => void} act
 */
export function iconButton(name, label, act) {
  return el("button", { class: "quiet small", type: "button", "aria-label": label, title: label, click: act }, icon(name));
}

/** @param {Node} parent @param {Node[]} wanted in order; only what differs is touched, so focus and selection survive */
export function arrange(parent, wanted) {
  const keep = new Set(wanted);
  for (const child of [...parent.childNodes]) if (!keep.has(child)) child.remove();
  wanted.forEach((node, index) => {
    const there = parent.childNodes[index];
    if (there !== node) parent.insertBefore(node, there ?? null);
  });
}

/** Has the browser save a file. @param {Blob} blob @param {string} name */
export function save(blob, name) {
  const href = URL.createObjectURL(blob);
  el("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
