/**
 * The review queue on the operator's page: the list, and one case in a dialog with the conversation around it.
 *
 * The words of a conversation come from its log (`/v1/sessions/…/export`), and only where the server says that this key
 * may read it; a case itself holds places and rules. Claims and decisions go out under a name of their own, so that one
 * that is sent twice is made once.
 */

import { arrange, el, find } from "./dom.js";

const PAGE = "50";
const BEFORE = 8; // items of the conversation that are shown before what the case is about
const AFTER = 2;
const DONE = { block: "blocked", redact: "redacted", flag: "flagged", retract: "taken back" };

/** @param {number} ms */
function since(ms) {
  const minutes = Math.max(0, Math.round((Date.now() - ms) / 60_000));
  if (minutes < 60) return `${minutes} min`;
  return minutes < 48 * 60 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
}

/** @param {number} ms */
const clock = (ms) => new Date(ms).toISOString().slice(0, 16).replace("T", " ") + " UTC";

/** @param {any} case_ */
function of(case_) {
  return case_.direction === "output" ? "an answer" : case_.item_id === null ? "a refused message" : "a message";
}

/** Code points [start, end) of a text, marked. @param {string} text @param {number} start @param {number} end */
function marked(text, start, end) {
  const points = [...text];
  const [before, inside, after] = [points.slice(0, start), points.slice(start, end), points.slice(end)].map((part) => part.join(""));
  return inside === "" ? [text] : [before ?? "", el("mark", {}, inside ?? ""), after ?? ""];
}

/** The items to show: those that lead to what the case is about, and what follows it. @param {any} state @param {any} case_ */
export function around(state, case_) {
  const known = new Map(state.items.map((/** @type {any} */ item) => [item.id, item]));
  const is = (/** @type {any} */ item) =>
    case_.response_id !== null ? state.made_by[item.id] === case_.response_id : item.id === case_.item_id;
  /** @type {any[]} */ const branch = [];
  const meant = state.items.filter(is);
  const below = state.items.filter((/** @type {any} */ item) => leads(known, item, meant[0]));
  for (let id = (below.at(-1) ?? meant.at(-1))?.id ?? state.head; known.has(id); id = known.get(id).parent_id) branch.unshift(known.get(id));
  const first = branch.findIndex(is);
  const last = branch.length - 1 - [...branch].reverse().findIndex(is);
  if (first < 0) return branch.slice(-BEFORE).map((item) => ({ item, meant: false }));
  return branch.slice(Math.max(0, first - BEFORE), last + 1 + AFTER).map((item) => ({ item, meant: is(item) }));
}

/** @param {Map<string, any>} known @param {any} item @param {any} above */
function leads(known, item, above) {
  if (above === undefined) return false;
  for (let id = item.id; known.has(id); id = known.get(id).parent_id) if (id === above.id) return true;
  return false;
}

/** @param {any} item */
function words(item) {
  if (item.type === "function_call") return `${item.name}(${item.arguments})`;
  if (item.type === "function_call_output") return item.output;
  return item.content.map((/** @type {any} */ part) => part.text ?? "").join("");
}

export class Reviews {
  /** @type {Map<string, HTMLTableRowElement>} */ rows = new Map();
  pages = 1;
  /** @type {any} */ case_ = null;

  /**
   * @param {(path: string, how?: any) => Promise<any>} call
   * @param {(error: unknown) => string} told what an error says
   * @param {() => void} changed something is otherwise than the list says
   */
  constructor(call, told, changed) {
    this.call = call;
    this.told = told;
    this.changed = changed;
    this.dialog = /** @type {HTMLDialogElement} */ (find("case"));
    this.note = /** @type {HTMLTextAreaElement} */ (find("case-note"));
    find("reviews-filters").addEventListener("submit", (event) => {
      event.preventDefault();
      this.again();
    });
    for (const id of ["review-state", "review-age", "review-appealed"]) find(id).addEventListener("change", () => this.again());
    find("reviews-more").addEventListener("click", () => {
      this.pages++;
      void this.refresh();
    });
    find("case-claim").addEventListener("click", () => void this.act("claim", {}));
    find("case-uphold").addEventListener("click", () => void this.act("decide", { outcome: "upheld", note: this.note.value }));
    find("case-overturn").addEventListener("click", () => void this.act("decide", { outcome: "overturned", note: this.note.value }));
    this.dialog.addEventListener("close", () => this.changed());
  }

  /** A case is being looked at: the list stays as it is. */
  get open() {
    return this.dialog.open;
  }

  again() {
    this.pages = 1;
    void this.refresh();
  }

  async refresh() {
    try {
      await this.show();
    } catch (error) {
      find("reviews-note").textContent = this.told(error);
    }
  }

  async show() {
    const field = (/** @type {string} */ id) => /** @type {HTMLInputElement} */ (find(id));
    const query = {
      state: field("review-state").value,
      older_than_s: field("review-age").value,
      category: field("review-category").value.trim(),
      tenant: field("review-tenant").value.trim(),
      appealed: field("review-appealed").checked ? "true" : "",
      limit: PAGE,
    };
    /** @type {any[]} */ const cases = [];
    let found;
    for (let page = 0, after = ""; page < this.pages; page++, after = found.last_id ?? "") {
      found = await this.call("/v1/reviews", { query: { ...query, after } });
      cases.push(...found.data);
      if (!found.has_more) break;
    }
    const lines = cases.map((each) => this.row(each));
    const names = new Set(cases.map((each) => each.id));
    for (const name of this.rows.keys()) if (!names.has(name)) this.rows.delete(name);
    const nothing = el("tr", {}, el("td", { colspan: 6, class: "none", "data-title": "" }, "No case fits. What policies flag or mark for review comes here, and what users appeal against."));
    arrange(find("reviews"), lines.length === 0 ? [nothing] : lines);
    find("reviews-count").textContent = `${cases.length}${found.has_more ? " and more" : ""}`;
    find("reviews-more").hidden = !found.has_more;
    find("reviews-note").textContent = "";
  }

  /** @param {any} each */
  row(each) {
    let line = this.rows.get(each.id);
    if (line === undefined) {
      const cell = (/** @type {string} */ title) => el("td", { "data-title": title });
      const look = el("button", { class: "plain", type: "button", "aria-label": `Look at ${each.category} in ${each.tenant}/${each.session}`, click: () => void this.look(each.id) }, "Look");
      line = el("tr", {}, el("th", { scope: "row", "data-title": "Case" }, each.category, el("br"), el("span", { class: "id" }, `${each.tenant}/${each.session}`)),
        cell("What was done"), cell("Of"), cell("State"), cell("Since"), el("td", { "data-title": "" }, look));
      this.rows.set(each.id, line);
    }
    const [, done, what, state, age] = /** @type {HTMLElement[]} */ ([...line.children]);
    if (!done || !what || !state || !age) return line;
    done.textContent = DONE[/** @type {keyof typeof DONE} */ (each.action)];
    what.textContent = of(each);
    const tags = [el("span", { class: `tag ${each.state}` }, each.mine ? "yours" : each.outcome !== null && each.state === "decided" ? each.outcome : each.state)];
    if (each.appealed_at !== null) tags.push(el("span", { class: "tag appeal" }, "appeal"));
    state.replaceChildren(...tags.flatMap((tag, index) => (index === 0 ? [tag] : [" ", tag])));
    age.textContent = since(each.appealed_at ?? each.opened_at);
    return line;
  }

  // -- one case -------------------------------------------------------------------------------------------------------

  /** @param {string} id */
  async look(id) {
    find("case-news").textContent = "";
    this.note.value = "";
    try {
      this.fill(await this.call(`/v1/reviews/${encodeURIComponent(id)}`));
    } catch (error) {
      find("reviews-note").textContent = this.told(error);
      this.changed();
      return;
    }
    find("case-talk").replaceChildren();
    this.dialog.showModal();
    await this.read();
  }

  /** @param {any} case_ */
  fill(case_) {
    this.case_ = case_;
    find("case-title").textContent = `${case_.category}, ${DONE[/** @type {keyof typeof DONE} */ (case_.action)]} in ${of(case_)}`;
    /** @type {[string, string | null][]} */
    const facts = [
      ["Session", `${case_.tenant}/${case_.session}`],
      ["User", case_.user],
      ["Found by", `${case_.model}, score ${case_.score}`],
      ["Policy", case_.policy || null],
      ["Where", `code points ${case_.start} to ${case_.end}, log offset ${case_.offset}`],
      ["Opened", clock(case_.opened_at)],
      ["Appealed", case_.appealed_at === null ? null : clock(case_.appealed_at)],
      ["Claimed by", case_.claimed_by === null ? null : `${case_.mine ? "you" : case_.claimed_by}, until ${clock(case_.claimed_until)}`],
      ["Decided", case_.outcome === null ? null : `${case_.outcome} by ${case_.decided_by}`],
    ];
    arrange(find("case-facts"), facts.filter(([, value]) => value !== null).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const said = [
      ["What was found, as the policy keeps it for reviewers", case_.text],
      [case_.cause === "feedback" ? "Why the user did not like the answer" : "What the appeal says", case_.note],
      ["What was said when it was decided", case_.remark],
    ];
    arrange(find("case-said"), said.filter(([, text]) => text !== null).map(([name, text]) => el("figure", {}, el("figcaption", {}, name), el("blockquote", {}, text))));
    find("case-claim").hidden = case_.mine || case_.state === "decided";
    for (const id of ["case-uphold", "case-overturn", "case-note-label"]) find(id).hidden = !case_.mine;
  }

  async read() {
    const case_ = this.case_;
    const talk = find("case-talk");
    if (!case_.readable) {
      talk.replaceChildren(el("li", { class: "none" }, "Your key may not read this conversation: it is another tenant's."));
      return;
    }
    try {
      const { state } = await this.call(`/v1/sessions/${encodeURIComponent(case_.session)}/export`);
      if (this.case_ !== case_) return;
      const shown = around(state, case_).map(({ item, meant }) => {
        const text = words(item);
        const body = meant && case_.action === "flag" && item.type === "message" ? marked(text, case_.start, case_.end) : [text || "(nothing was released)"];
        return el("li", { class: meant ? "meant" : null, "aria-current": meant ? "true" : null }, el("b", {}, meant ? `${item.role ?? item.type}, what this is about` : item.role ?? item.type), el("p", {}, ...body));
      });
      if (case_.direction === "input" && case_.item_id === null) shown.push(el("li", { class: "meant none" }, "Here a message was refused. Nothing of it stands in the log."));
      arrange(talk, shown.length === 0 ? [el("li", { class: "none" }, "Nothing was said before.")] : shown);
    } catch (error) {
      talk.replaceChildren(el("li", { class: "none" }, this.told(error)));
    }
  }

  /** @param {"claim" | "decide"} what @param {any} body */
  async act(what, body) {
    const news = find("case-news");
    try {
      const case_ = await this.call(`/v1/reviews/${encodeURIComponent(this.case_.id)}/${what}`, { body, once: crypto.randomUUID() });
      this.fill(case_);
      news.textContent = what === "claim" ? "It is yours for half an hour." : `It is ${case_.outcome}.`;
      if (what === "claim") this.note.focus();
      else this.dialog.querySelector("button")?.focus();
    } catch (error) {
      news.textContent = this.told(error);
      try {
        this.fill(await this.call(`/v1/reviews/${encodeURIComponent(this.case_.id)}`));
      } catch {
        this.dialog.close(); // it is gone; the list will say so
      }
    }
  }
}
