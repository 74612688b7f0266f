/**
 * The page of the HTTP API at `/docs`: shows this server's OpenAPI document, and sends requests made by hand.
 *
 * What an operation holds is made when it is opened, and what a shape refers to when that is opened, so that shapes that
 * hold themselves end. Everything goes in as text or through the Markdown of the chat. Nothing is loaded from elsewhere.
 */
import { el, find } from "./dom.js";
import { Markdown } from "./markdown.js";

const KEY = "sessile-key"; // the same as the other pages', in this tab only
const METHODS = ["get", "post", "put", "patch", "delete"];
const SHOWN_MAX = 200_000;
const EXAMPLE_DEPTH = 6;

/** @typedef {any} Schema a JSON schema, as it stands in the document */
/** @typedef {{ method: string, path: string, about: any, words: string, element: HTMLDetailsElement }} Operation */

/** @type {{ [name: string]: Schema }} */ let shapes = {};
/** @type {Operation[]} */ const operations = [];

// -- shapes -----------------------------------------------------------------------------------------------------------

/** @param {Schema} schema */
const named = (schema) => String(schema.$ref ?? "").split("/").pop() ?? "";

/** What a schema refers to. @param {Schema} schema @returns {Schema} */
const resolved = (schema) => (schema.$ref === undefined ? schema : (shapes[named(schema)] ?? {}));

/** @param {Schema} schema @returns {Schema[]} */
const branches = (schema) => schema.anyOf ?? schema.oneOf ?? schema.allOf ?? [];

/** A schema in a few words. @param {Schema} schema @returns {string} */
function label(schema) {
  if (schema.$ref !== undefined) return named(schema);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum !== undefined) return schema.enum.map((/** @type {unknown} */ each) => JSON.stringify(each)).join(" | ");
  if (branches(schema).length > 0) return branches(schema).map(label).join(schema.allOf ? " & " : " | ");
  if (schema.type === "array") return `${label(schema.items ?? {})}[]`;
  return [schema.type ?? "any"].flat().join(" | ") + (schema.format ? ` (${schema.format})` : "");
}

/** What else holds for a value. @param {Schema} schema @returns {string} */
function bounds(schema) {
  /** @type {[string, string][]} */
  const signs = [
    ["minimum", "≥ "], ["exclusiveMinimum", "> "], ["maximum", "≤ "], ["exclusiveMaximum", "< "], ["minLength", "characters ≥ "],
    ["maxLength", "characters ≤ "], ["minItems", "items ≥ "], ["maxItems", "items ≤ "], ["pattern", "pattern "],
  ];
  const own = signs.filter(([name]) => schema[name] !== undefined).map(([name, sign]) => `${sign}${schema[name]}`);
  if (schema.default !== undefined && schema.default !== null) own.push(`default ${JSON.stringify(schema.default)}`);
  return [...branches(schema).map(bounds), ...own].filter((each) => each !== "").join(", ");
}

/** The shapes with fields that a schema leads to: name -> schema. @param {Schema} schema @returns {[string, Schema][]} */
function within(schema) {
  if (schema.$ref !== undefined) return [[named(schema), resolved(schema)]];
  if (schema.properties !== undefined) return [[schema.title ?? "fields", schema]];
  return [...branches(schema), ...(schema.items ? [schema.items] : [])].flatMap(within);
}

/** @param {Schema} schema */
function nested(schema) {
  return within(schema).map(([name, shape]) => {
    const details = el("details", { class: "shape" }, el("summary", {}, name));
    details.addEventListener("toggle", () => details.append(...inside(shape)), { once: true });
    return details;
  });
}

/** @param {Schema} shape @returns {Node[]} */
function inside(shape) {
  const about = shape.description ? [prose(shape.description)] : [];
  if (shape.properties === undefined) return [...about, el("div", {}, label(shape), ...nested(shape))];
  const required = new Set(shape.required ?? []);
  const rows = Object.entries(shape.properties).flatMap(([name, field]) => row(name, field, required.has(name), field.description));
  return [...about, el("dl", { class: "fields" }, ...rows)];
}

/** @param {string} name @param {Schema} schema @param {boolean} required @param {string} [about] */
function row(name, schema, required, about) {
  const more = bounds(schema);
  const term = el("dt", {}, name, " ", el("small", {}, label(schema), more && `, ${more}`), required && el("b", {}, " required"));
  return [term, el("dd", {}, about, ...nested(schema))];
}

/** A value that a schema allows: its default or example, else the plainest. @param {Schema} schema @returns {unknown} */
function example(schema, depth = 0) {
  const shape = resolved(schema);
  const given = shape.examples?.[0] ?? shape.example ?? shape.const ?? shape.default ?? shape.enum?.[0];
  if (given !== undefined && given !== null) return given;
  if (depth > EXAMPLE_DEPTH) return null;
  const branch = branches(shape).find((each) => each.type !== "null");
  if (branch !== undefined) return example(branch, depth + 1);
  if (shape.type === "array") return shape.items ? [example(shape.items, depth + 1)] : [];
  if (shape.properties !== undefined) {
    return Object.fromEntries((shape.required ?? []).map((/** @type {string} */ name) => [name, example(shape.properties[name] ?? {}, depth + 1)]));
  }
  return { string: "", integer: shape.minimum ?? 0, number: shape.minimum ?? 0, boolean: false, object: {} }[String(shape.type)] ?? null;
}

// -- operations -------------------------------------------------------------------------------------------------------

/** @param {string} text */
function prose(text) {
  const markdown = new Markdown();
  markdown.update(text);
  return markdown.element;
}

/** @param {Operation} operation @returns {HTMLElement} */
function whole({ about, ...operation }) {
  const body = about.requestBody?.content?.["application/json"]?.schema;
  const answers = Object.entries(about.responses ?? {}).flatMap(([status, answer]) => {
    const contents = Object.entries(answer.content ?? {}).flatMap(([type, { schema }]) => [`${type} ${label(schema ?? {})}`, ...nested(schema ?? {})]);
    return [el("dt", {}, status), el("dd", {}, `${answer.description ?? ""} `, ...contents)];
  });
  const parameters = (about.parameters ?? []).flatMap((/** @type {any} */ each) =>
    row(`${each.name} in ${each.in}`, each.schema ?? {}, each.required === true, each.description),
  );
  return el(
    "div", {},
    about.description && prose(about.description),
    parameters.length > 0 && el("h3", {}, "Parameters"),
    parameters.length > 0 && el("dl", { class: "fields" }, ...parameters),
    body && el("h3", {}, `Body: ${label(body)}`),
    ...(body ? nested(body) : []),
    el("h3", {}, "Answers"),
    el("dl", { class: "fields" }, ...answers),
    el("h3", {}, "Send one"),
    attempt({ about, ...operation }, body),
  );
}

/** @param {Operation} operation @param {Schema | undefined} body */
function attempt({ method, path, about }, body) {
  /** @type {[any, HTMLInputElement][]} */
  const inputs = (about.parameters ?? []).map((/** @type {any} */ each) => [each, el("input", { autocomplete: "off", spellcheck: "false", required: each.required === true })]);
  const text = body && el("textarea", { spellcheck: "false", rows: 6 });
  if (text) text.value = JSON.stringify(example(body), null, 2);
  const status = el("p", { class: "fine", role: "status" });
  const answer = el("pre", { tabindex: 0, "aria-label": "Answer", hidden: true });
  const stop = el("button", { class: "plain", type: "button", hidden: true }, "Stop");
  const send = el("button", { class: "strong", type: "submit" }, "Send");
  const form = el(
    "form", { class: "attempt" },
    ...inputs.map(([each, input]) => el("label", {}, each.name, input)),
    text && el("label", {}, "Body", text),
    el("div", { class: "buttons" }, send, stop), status, answer,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams();
    let place = path.slice(1); // from where this page lies, so that a prefix of a proxy stays
    /** @type {Record<string, string>} */ const headers = {};
    for (const [each, { value }] of inputs) {
      if (each.in === "path") place = place.replace(`{${each.name}}`, encodeURIComponent(value));
      else if (value !== "" && each.in === "query") query.append(each.name, value);
      else if (value !== "" && each.in === "header") headers[each.name] = value;
    }
    const key = sessionStorage.getItem(KEY);
    if (key) headers["authorization"] = `Bearer ${key}`;
    else if (document.documentElement.dataset["signIn"] !== undefined) headers["x-sessile-csrf"] = "1";
    if (text) headers["content-type"] = "application/json";
    const abort = new AbortController();
    stop.onclick = () => abort.abort();
    send.disabled = true;
    stop.hidden = answer.hidden = false;
    answer.textContent = "";
    status.textContent = "Sent…";
    try {
      const url = query.size > 0 ? `${place}?${query}` : place;
      await show(await fetch(url, { method: method.toUpperCase(), headers, body: text?.value, signal: abort.signal }), status, answer);
    } catch {
      status.textContent = abort.signal.aborted ? "Stopped." : "The server does not answer.";
    }
    send.disabled = false;
    stop.hidden = true;
  });
  return form;
}

/** Writes what comes as it comes; a whole JSON answer in lines. @param {Response} response @param {HTMLElement} status @param {HTMLElement} answer */
async function show(response, status, answer) {
  status.textContent = `${response.status} ${response.statusText}`;
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let piece = await reader?.read(); piece && !piece.done && text.length < SHOWN_MAX; piece = await reader?.read()) {
    text += piece.value;
    answer.append(piece.value);
  }
  await reader?.cancel();
  if (text.length >= SHOWN_MAX) status.textContent += `: the first ${SHOWN_MAX} characters`;
  else if (response.headers.get("content-type")?.includes("json")) answer.textContent = JSON.stringify(JSON.parse(text), null, 2);
}

// -- the page ---------------------------------------------------------------------------------------------------------

/** @param {any} document the OpenAPI document */
function fill(document) {
  shapes = document.components?.schemas ?? {};
  find("title").textContent = `API ${document.info?.version ?? ""}`;
  /** @type {Map<string, HTMLElement>} */ const sections = new Map();
  for (const [path, item] of Object.entries(document.paths ?? {})) {
    for (const method of METHODS.filter((each) => item[each] !== undefined)) {
      const about = item[method];
      const tag = about.tags?.[0] ?? "others";
      const section = sections.get(tag) ?? el("section", { "aria-label": tag }, el("h2", {}, tag));
      sections.set(tag, section);
      const summary = el("summary", {}, el("span", { class: `method ${method}` }, method), el("code", {}, path), el("span", {}, about.summary));
      const element = el("details", { class: "operation", id: about.operationId }, summary);
      const operation = { method, path, about, element, words: `${method} ${path} ${about.summary} ${about.description}`.toLowerCase() };
      element.addEventListener("toggle", () => element.append(whole(operation)), { once: true });
      section.append(element);
      operations.push(operation);
    }
  }
  find("main").append(...sections.values());
}

function filter() {
  const word = /** @type {HTMLInputElement} */ (find("filter")).value.trim().toLowerCase();
  for (const { element, words } of operations) element.hidden = !words.includes(word);
  for (const section of find("main").querySelectorAll("section")) section.hidden = section.querySelector(".operation:not([hidden])") === null;
  const left = operations.filter(({ element }) => !element.hidden).length;
  find("news").textContent = `${left} of ${operations.length} operations`;
}

async function start() {
  const key = /** @type {HTMLInputElement} */ (find("key"));
  key.value = sessionStorage.getItem(KEY) ?? "";
  key.addEventListener("input", () => (key.value === "" ? sessionStorage.removeItem(KEY) : sessionStorage.setItem(KEY, key.value)));
  find("filter").addEventListener("input", filter);
  find("tools").addEventListener("submit", (event) => event.preventDefault());
  try {
    const answer = await fetch("openapi.json");
    if (!answer.ok) throw new Error(`The server answers ${answer.status}.`);
    fill(await answer.json());
    filter();
    const opened = operations.find(({ element }) => `#${element.id}` === location.hash);
    if (opened) opened.element.open = true;
    opened?.element.scrollIntoView();
  } catch (error) {
    find("news").textContent = error instanceof TypeError ? "The server does not answer." : String(error);
    find("news").classList.add("bad");
  }
}

void start();
