/** Keyboard shortcuts, the sheet that lists them, and how the page looks and speaks. */
import { cancel, openDialog } from "./dialogs.js";
import { el, isComposing } from "./dom.js";
import { prefer, preferences } from "./preferences.js";
import { field } from "./settings.js";
import { language, languages, t } from "./texts.js";

const isMac = /mac|iphone|ipad/i.test(navigator.platform);

/** @typedef {{ keys: string[], label: string, fits: (event: KeyboardEvent) => boolean, act: () => void }} Shortcut */

/** @param {string} code @param {string} name @param {string} label @param {() => void} act with Ctrl (⌘) and Shift @returns {Shortcut} */
function chord(code, name, label, act) {
  const fits = (/** @type {KeyboardEvent} */ event) => event.code === code && event.shiftKey && !event.altKey && (isMac ? event.metaKey : event.ctrlKey);
  return { keys: [isMac ? "⌘" : t("Ctrl"), t("Shift"), name], label, fits, act };
}

/** Listens for them. @param {{ begin: () => void, search: () => void, write: () => void, copy: () => void, list: () => void, settings: () => void, stop: () => boolean }} actions */
export function listen(actions) {
  /** @type {Shortcut[]} */
  const shortcuts = [
    chord("KeyO", "O", t("New conversation"), actions.begin),
    { keys: [isMac ? "⌘" : t("Ctrl"), "K"], label: t("Search the conversations"), fits: (event) => event.code === "KeyK" && (isMac ? event.metaKey : event.ctrlKey) && !event.shiftKey && !event.altKey, act: actions.search },
    { keys: [t("Shift"), "Esc"], label: t("Go to the message field"), fits: (event) => event.key === "Escape" && event.shiftKey, act: actions.write },
    chord("KeyC", "C", t("Copy the last answer"), actions.copy),
    chord("KeyS", "S", t("Show or hide the list"), actions.list),
    chord("Comma", ",", t("Settings of this conversation"), actions.settings),
    { keys: ["?"], label: t("This help"), fits: (event) => event.key === "?" && preferences.helpKey !== false && !isTyping(event), act: () => openHelp(shortcuts) },
  ];
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || isComposing(event) || document.querySelector("dialog[open]")) return;
    const shortcut = shortcuts.find(({ fits }) => fits(event));
    if (shortcut === undefined && event.key === "Escape" && !event.shiftKey && actions.stop()) event.preventDefault();
    if (shortcut === undefined) return;
    event.preventDefault();
    shortcut.act();
  });
  return () => openHelp(shortcuts);
}

/** @param {KeyboardEvent} event */
function isTyping({ target }) {
  return target instanceof HTMLElement && target.matches("input, textarea, select");
}

/** @param {Shortcut[]} shortcuts */
function openHelp(shortcuts) {
  const rows = [
    ...shortcuts,
    { keys: ["Enter"], label: t("Send the message") },
    { keys: [t("Shift"), "Enter"], label: t("Begin a new line") },
    { keys: ["Esc"], label: t("Stop the answer, or close what is open") },
    { keys: ["↑"], label: t("In an empty message field: edit the last message") },
    { keys: ["F2"], label: t("In the list: rename") },
    { keys: [t("Del")], label: t("In the list: delete") },
  ];
  const keys = (/** @type {string[]} */ names) => names.flatMap((name, index) => [index > 0 ? " + " : "", el("kbd", {}, name)]);
  const list = el("dl", { class: "keys" }, ...rows.map((row) => el("div", {}, el("dt", {}, row.label), el("dd", {}, ...keys(row.keys)))));
  const single = el("input", { type: "checkbox", id: "help-key", change: () => prefer({ helpKey: single.checked }) });
  single.checked = preferences.helpKey !== false;
  openDialog(t("Keyboard shortcuts"), [list, el("p", { class: "check" }, single, el("label", { for: "help-key" }, t("The single key ? opens this help")))], [cancel(t("Close"))], { id: "help", wide: true });
}

/** How the page looks and which language it speaks. @param {{ save: () => void }} actions */
export function openPreferences({ save }) {
  const theme = select("pref-theme", { system: t("As the system"), light: t("Light"), dark: t("Dark") }, preferences.theme ?? "system");
  const speech = select("pref-language", { browser: t("As the browser"), ...languages }, preferences.language ?? "browser");
  theme.addEventListener("change", () => {
    prefer({ theme: theme.value });
    if (theme.value === "system") delete document.documentElement.dataset["theme"];
    else document.documentElement.dataset["theme"] = theme.value;
  });
  speech.addEventListener("change", () => {
    prefer({ language: speech.value });
    save();
    location.reload();
  });
  openDialog(t("Preferences"), [field(theme, t("Theme")), field(speech, t("Language"), language === "de" ? "" : "Sprache")], [cancel(t("Close"))], { id: "preferences" });
  theme.focus();
}

/** @param {string} id @param {Record<string, string>} options @param {string} value */
function select(id, options, value) {
  const made = el("select", { id }, ...Object.entries(options).map(([name, label]) => el("option", { value: name }, label)));
  made.value = value;
  return made;
}
