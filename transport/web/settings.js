/**
 * How a conversation is answered: model, system prompt, temperature, length; and presets of them, kept in this browser.
 *
 * All of it may change at any time; another model answers from the next message on.
 */
import { cancel, choice, closed, line, openDialog } from "./dialogs.js";
import { el } from "./dom.js";
import { read, write } from "./preferences.js";
import { money, number, t } from "./texts.js";
import { PRESETS } from "./wipe.js";

/** @typedef {{ id: string, capabilities?: { embedding: boolean }, input_modalities?: string[], context_window: number | null, notice: string | null, price: { input: number, cached_input: number, output: number, currency: string } | null }} Model */
/** @typedef {{ model?: string | null, instructions?: string | null, temperature?: number | null, max_output_tokens?: number | null }} Settings null: as the server has it */
/** @typedef {Settings & { name: string }} Preset */

const PRESETS_MAX = 50;

/** How much it reads at once, and what it costs. @param {Model | undefined} model */
function described(model) {
  const window = model?.context_window ? t("{n} tokens", { n: number(model.context_window) }) : "";
  const price = model?.price;
  const cost = price ? t("{input} in, {output} out per million", { input: money(price.input, price.currency), output: money(price.output, price.currency) }) : "";
  return [window, cost].filter((part) => part !== "").join(" · ");
}

/** Only what says something. @param {Settings} settings @returns {Settings} */
export function given(settings) {
  return Object.fromEntries(Object.entries(settings).filter(([, value]) => value !== null && value !== undefined && value !== ""));
}

/** @param {string} value */
const figure = (value) => (value.trim() === "" ? null : Number(value));

/**
 * Lets the user change settings. @param {Settings} before @param {Model[]} models @param {boolean} isNew nothing was said yet
 * @returns {Promise<Settings | null>} null: left as they were
 */
export async function edited(before, models, isNew) {
  const model = el("select", { id: "set-model", "aria-describedby": "set-model-facts set-model-next" }, ...models.map((each) => el("option", { value: each.id }, each.id)));
  const chosen = before.model ?? models[0]?.id ?? "";
  if (!models.some((each) => each.id === chosen)) model.append(el("option", { value: chosen }, chosen));
  const prompt = el("textarea", { id: "set-prompt", rows: 5, maxlength: 100000, placeholder: t("How the model should answer, and as whom") });
  const temperature = el("input", { id: "set-temperature", type: "number", min: 0, max: 2, step: "any", inputmode: "decimal", placeholder: t("as the model has it") });
  const length = el("input", { id: "set-length", type: "number", min: 1, max: models.find((each) => each.id === chosen)?.context_window, step: 1, placeholder: t("as the server allows") });
  const fill = (/** @type {Settings} */ settings) => {
    if (models.some((each) => each.id === settings.model)) model.value = String(settings.model);
    prompt.value = settings.instructions ?? "";
    temperature.value = String(settings.temperature ?? "");
    length.value = String(settings.max_output_tokens ?? "");
    describe();
  };
  const now = () => ({
    model: model.value !== (isNew ? models[0]?.id : chosen) ? model.value : null,
    instructions: prompt.value.trim() || null,
    temperature: figure(temperature.value),
    max_output_tokens: figure(length.value),
  });
  const facts = el("small", { id: "set-model-facts" });
  const describe = () => (facts.textContent = described(models.find((each) => each.id === model.value)));
  model.addEventListener("change", describe);
  model.value = chosen;
  fill(before);
  const box = openDialog(
    t("Settings of this conversation"),
    [
      presets(fill, now),
      el("div", { class: "field" }, el("label", { for: model.id }, t("Model")), model, facts, !isNew && models.length > 1 && el("small", { id: "set-model-next" }, t("Another model answers from your next message on, and reads all that was said."))),
      field(prompt, t("System prompt")),
      el("div", { class: "pair" }, field(temperature, t("Temperature"), t("0 is the most predictable, 2 the wildest")), field(length, t("Longest answer"), t("in tokens"))),
    ],
    [cancel(), choice(t("Save"), "yes", "danger sea")],
    { id: "settings", wide: true },
  );
  (isNew ? model : prompt).focus();
  return (await closed(box)) === "yes" ? now() : null;
}

/** @param {HTMLElement} input @param {string} label @param {string} [hint] */
export function field(input, label, hint = "") {
  if (hint !== "") input.setAttribute("aria-describedby", `${input.id}-hint`);
  return el("div", { class: "field" }, el("label", { for: input.id }, label), input, hint !== "" && el("small", { id: `${input.id}-hint` }, hint));
}

/** @param {(settings: Settings) => void} fill @param {() => Settings} now */
function presets(fill, now) {
  const select = el("select", { id: "set-preset", change: () => use() });
  const drop = el("button", { class: "plain", type: "button", click: () => forget() }, t("Delete preset"));
  const add = el("button", { class: "plain", type: "button", click: () => void save() }, t("Save as preset"));
  /** @type {Preset[]} */
  let list = read(PRESETS, []);
  const draw = (name = "") => {
    select.replaceChildren(el("option", { value: "" }, t("none")), ...list.map((each) => el("option", { value: each.name }, each.name)));
    select.value = name;
    drop.hidden = name === "";
  };
  const put = (/** @type {Preset[]} */ next, name = "") => {
    list = next;
    write(PRESETS, list);
    draw(name);
  };
  const use = () => {
    fill(list.find((each) => each.name === select.value) ?? {});
    drop.hidden = select.value === "";
  };
  const forget = () => {
    put(list.filter((each) => each.name !== select.value));
    select.focus();
  };
  const save = async () => {
    const name = await line(t("Save as preset"), t("Name"), select.value);
    if (name) put([...list.filter((each) => each.name !== name), { name, ...given(now()) }].slice(-PRESETS_MAX), name);
  };
  draw();
  return el("div", { class: "presets" }, field(select, t("Preset")), add, drop);
}
