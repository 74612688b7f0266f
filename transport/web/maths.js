/**
 * Formulas in TeX's notation as MathML, by Temml. The page names it in a template, with its hash as for every script, and it is loaded
 * when a text has its first formula. A formula that is faulty, or larger than anybody writes, gives null: it is shown as its source.
 *
 * What a model writes is a stranger's text: it defines no macros, leads nowhere, and gives no element an id.
 */

const SOURCE_MAX = 1500; // characters: Temml's time grows faster than its source
const NESTING_MAX = 24;
const ELEMENTS_MAX = 3000;
const EXPANSIONS_MAX = 100;
const SIZE_MAX = [25, 300]; // em and points: of what a formula may set the size of
const REFUSED = /\\(?:[gex]?def|(?:future)?let|global|long|(?:new|renew|provide)command|char|toggle|verb|(?:eq)?ref)(?![A-Za-z])/;
const NUMBERED = /\\(begin|end)\s*\{(?:(alignat|equation|gather|multline)|align|eqnarray|flalign)\*?\}/g; // and set on lines of their own
const MACROS = { "\\diag": "\\operatorname{diag}", "\\sech": "\\operatorname{sech}", "\\csch": "\\operatorname{csch}" };
const NAMES = new Set(["id", "href", "src", "title"]); // attributes that no formula may set

/** @typedef {{ type?: string, attributes?: Record<string, unknown>, children?: Tree[], toNode(): Element }} Tree */
/** @typedef {{ __renderToMathMLTree(source: string, options: object): Tree }} Temml */

/** @type {Promise<boolean> | null} */
let loading = null;

/** @returns {Temml | undefined} */
const temml = () => /** @type {any} */ (globalThis).temml;

/** Whether formulas can be shown as such. */
export function hasMaths() {
  return temml() !== undefined;
}

/** Loads Temml once. @returns {Promise<boolean>} whether it is there */
export function loadMaths() {
  loading ??= new Promise((resolve) => {
    const template = /** @type {HTMLTemplateElement | null} */ (document.querySelector("template#formulas"));
    const parts = template && document.importNode(template.content, true);
    const script = parts?.querySelector("script");
    if (!parts || !script) return resolve(false);
    script.addEventListener("load", () => resolve(hasMaths()));
    script.addEventListener("error", () => resolve(false));
    document.head.append(parts);
  });
  return loading;
}

/** How deep groups, pairs of delimiters and environments lie in each other, at most. @param {string} source */
function nesting(source) {
  let depth = 0;
  let most = 0;
  for (const [mark] of source.matchAll(/\\left(?![A-Za-z])|\\right(?![A-Za-z])|\\begin(?![A-Za-z])|\\end(?![A-Za-z])|\\[^]|[{}]/g)) {
    if (mark === "{" || mark === "\\left" || mark === "\\begin") most = Math.max(most, ++depth);
    else if (mark === "}" || mark === "\\right" || mark === "\\end") depth--;
  }
  return most;
}

/** Counts the elements of a tree, and takes the names away that would reach out of it. @param {Tree} root */
function elements(root) {
  const all = [root];
  for (const { attributes = {}, children = [] } of all) {
    for (const name of Object.keys(attributes)) if (NAMES.has(name)) delete attributes[name];
    for (const child of children) all.push(child);
    if (all.length > ELEMENTS_MAX) return Infinity;
  }
  return all.length;
}

/** @param {string} source without its delimiters @param {boolean} display a line of its own @returns {Element | null} */
export function maths(source, display) {
  if (source.length > SOURCE_MAX || nesting(source) > NESTING_MAX || REFUSED.test(source)) return null;
  const whole = source.replace(NUMBERED, (_, edge, name = "align") => `\\${edge}{${name}*}`); // no equation gets a number
  const displayMode = display || /\\begin\{(?:CD|\w+\*)\}/.test(whole);
  for (const each of [whole, `\\begin{aligned}${whole}\\end{aligned}`]) {
    try {
      const options = { displayMode, throwOnError: true, trust: false, maxExpand: EXPANSIONS_MAX, maxSize: SIZE_MAX, macros: { ...MACROS } };
      const tree = temml()?.__renderToMathMLTree(each, options);
      return tree === undefined || elements(tree) > ELEMENTS_MAX ? null : tree.toNode();
    } catch (error) {
      if (!/got '&'/.test(String(error))) return null; // faulty, or deeper than the stack; but lines may be aligned without an environment
    }
  }
  return null;
}
