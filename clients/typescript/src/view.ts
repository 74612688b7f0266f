/**
 * A conversation as a reader sees it: what the events of a log, or a snapshot and its tail, add up to.
 *
 * `apply` folds one event, `load` starts from a state, `state` gives it back (so a view can be stored with its position and
 * go on from there). Items form a tree, because an edit and a regenerated answer are siblings; `thread` lays one branch
 * out for showing. An answer that has no item yet stands in the tree under its response id, so that it has a place
 * before its first word.
 *
 * Invariants: applying the events 1…n, and loading a snapshot at k and applying k+1…n, show the same. Items are replaced,
 * never changed in place, so `===` tells whether one must be drawn again. Order and exactly-once are the caller's (core.ts).
 */
import type { CompactionState, ContentPart, FeedbackState, Item, LogEvent, Metadata, Rating } from "./protocol.js";
import type { ReviewState, SessionState, Usage, WireError } from "./protocol.js";

export type ResponseStatus = "queued" | "in_progress" | "completed" | "incomplete" | "failed";

export interface ResponseRecord {
  readonly id: string;
  readonly status: ResponseStatus;
  readonly parentId: string | null;
  /** Ids of its items, in order. */
  readonly output: readonly string[];
  readonly usage?: Usage;
  readonly model?: string;
  /** When it was begun and when it ended, in ms. */
  readonly createdAt?: number;
  readonly completedAt?: number;
  /** Why it is `incomplete`: cancelled, max_output_tokens, content_filter, … */
  readonly reason?: string;
  readonly error?: WireError;
  /** How many of the oldest items the model no longer saw. */
  readonly dropped?: number;
  /** How many of the oldest items the model reads a summary of since it ended (`View.compactions`). */
  readonly summarised?: number;
  /** While queued: the message that waits with it. */
  readonly waiting?: Item;
}

/** A case in which a person looks at what was withheld, as far as its user is told. */
export interface ReviewRecord {
  readonly id: string;
  readonly category: string;
  /** null: it is about a message that was refused. */
  readonly responseId: string | null;
  readonly appealed: boolean;
  /** Once it is decided. */
  readonly outcome: "upheld" | "overturned" | null;
}

/** What somebody thinks of an answer. */
export interface FeedbackRecord {
  readonly responseId: string;
  readonly by: string;
  readonly rating: Rating;
  readonly reason: string;
}

/** A summary that the model reads in the place of the first `items` items of the branches that go on from `readItemId`. */
export interface CompactionRecord {
  readonly id: string;
  readonly text: string;
  readonly model: string;
  readonly items: number;
  readonly readItemId: string;
}

/** One step of a branch. `id` is an item's, or a response's that has no item yet. */
export interface Entry {
  readonly id: string;
  readonly parentId: string | null;
  readonly item?: Item;
  readonly response?: ResponseRecord;
  /** All children of the parent, this one at `index`: items in log order, then answers that have no item yet. */
  readonly siblings: readonly string[];
  readonly index: number;
}

const OPEN: ReadonlySet<string> = new Set(["queued", "in_progress"]);

export function isOpen(response: ResponseRecord): boolean {
  return OPEN.has(response.status);
}

/** A response's model, times and usage, as far as they are known. */
function taken(said: { [key: string]: unknown }): Partial<ResponseRecord> {
  const { model, created_at: createdAt, completed_at: completedAt, usage } = said;
  return {
    ...(typeof model === "string" ? { model } : {}),
    ...(typeof createdAt === "number" ? { createdAt } : {}),
    ...(typeof completedAt === "number" ? { completedAt } : {}),
    ...(usage ? { usage: usage as Usage } : {}),
  };
}

export class View {
  /** In log order. */
  readonly items = new Map<string, Item>();
  readonly responses = new Map<string, ResponseRecord>();
  /** By case. */
  readonly reviews = new Map<string, ReviewRecord>();
  /** By response and who rated it. */
  readonly feedback = new Map<string, FeedbackRecord>();
  /** Those in force, the oldest first. */
  readonly compactions = new Map<string, CompactionRecord>();
  /** Ids of items that the model reads word by word, whatever is summarised. */
  readonly pinned = new Set<string>();
  title: string | null = null;
  metadata: Metadata = {};
  model: string | null = null;
  instructions: string | null = null;
  temperature: number | null = null;
  maxOutputTokens: number | null = null;
  deleted = false;
  /** Goes up with every change. */
  version = 0;

  #head_: string | null = null;
  #newest: string | null = null;
  #children = new Map<string | null, string[]>();
  /** Which response an item belongs to. */
  #owner = new Map<string, string>();

  /** The newest item in log order. */
  get head(): string | null {
    return this.#head_;
  }

  /** Responses without an end, oldest first. */
  get open(): ResponseRecord[] {
    return [...this.responses.values()].filter(isOpen);
  }

  /** The newest case about what was withheld of a response. */
  reviewOf(responseId: string): ReviewRecord | undefined {
    return [...this.reviews.values()].filter((review) => review.responseId === responseId).pop();
  }

  /** The newest rating of a response. */
  feedbackOf(responseId: string): FeedbackRecord | undefined {
    return [...this.feedback.values()].filter((each) => each.responseId === responseId).pop();
  }

  /** An answer as shown. */
  text(responseId: string): string {
    const output = this.responses.get(responseId)?.output ?? [];
    return output.map((id) => itemText(this.items.get(id))).join("");
  }

  responseOf(itemId: string): ResponseRecord | undefined {
    const id = this.#owner.get(itemId);
    return id === undefined ? undefined : this.responses.get(id);
  }

  /** The items from the root to the head. */
  branch(): string[] {
    const path: string[] = [];
    for (let id = this.#head_; id !== null && !path.includes(id); id = this.items.get(id)?.parent_id ?? null) path.push(id);
    return path.reverse();
  }

  /**
   * The branch that `tip` is on, down to its newest end; without a tip, the branch of what came last.
   * A tip that is unknown here counts as none.
   */
  thread(tip?: string | null): Entry[] {
    let id = tip !== undefined && tip !== null && this.#parentOf(tip) !== undefined ? tip : this.#newest;
    const ids: string[] = [];
    const met = new Set<string>();
    for (let up: string | null | undefined = id; up !== null && up !== undefined && !met.has(up); up = this.#parentOf(up)) {
      met.add(up);
      ids.push(up);
    }
    ids.reverse();
    for (;;) {
      const below: string[] | undefined = this.#children.get(id);
      const last: string | undefined = below?.[below.length - 1];
      if (last === undefined || met.has(last)) break;
      met.add(last);
      ids.push(last);
      id = last;
    }
    return ids.map((entryId) => this.#entry(entryId));
  }

  // -- states ----------------------------------------------------------------------------------------------

  /** Begin anew from a snapshot. What is known of responses that ended meanwhile is kept as far as their items are there. */
  load(state: SessionState): void {
    const earlier = new Map(this.responses);
    this.items.clear();
    this.responses.clear();
    this.reviews.clear();
    this.feedback.clear();
    this.compactions.clear();
    this.pinned.clear();
    this.#children.clear();
    this.#owner.clear();
    this.#head_ = this.#newest = null;
    this.#info(state);
    for (const told of state.feedback ?? []) this.#rated(told);
    for (const told of state.reviews ?? []) this.#review(told, told.appealed === true, told.outcome ?? null);
    const drafts = state.open.flatMap((open) => (open.output ?? []).map((item) => ({ item, by: open.response_id })));
    for (const open of state.open) {
      const first = open.output?.[0];
      this.#respond(open.response_id, {
        parentId: open.parent_id === undefined ? (first?.parent_id ?? state.head ?? null) : open.parent_id,
        output: (open.output ?? []).map((item) => item.id),
      });
    }
    // The state has what is still being written apart; the time of making puts it back into the order of the log.
    const known = new Set(drafts.map(({ item }) => item.id));
    const finished = state.items.filter((item) => !known.has(item.id)).map((item) => ({ item, by: undefined }));
    const all = [...finished, ...drafts].sort((a, b) => (a.item.created_at ?? 0) - (b.item.created_at ?? 0));
    for (const { item, by } of all) this.#put(item, by);
    for (const stored of (state["responses"] as ResponseRecord[] | undefined) ?? []) earlier.set(stored.id, stored);
    for (const { response_id, item } of state.queued ?? []) this.#enqueue(response_id, item);
    if (state.head !== undefined && state.head !== null && this.items.has(state.head)) this.#head_ = state.head;
    this.#loadEnded(earlier, state);
    for (const told of state.compactions ?? []) this.#compact(told);
    for (const id of state.pinned ?? []) this.pinned.add(id);
    // An answer without words has just begun, so it is younger than any item.
    const begun = this.open.filter((response) => response.status !== "queued" && response.output.length === 0);
    const newest = state["newest"] as string | null | undefined;
    const isKnown = typeof newest === "string" && this.#parentOf(newest) !== undefined;
    this.#newest = isKnown ? newest : (begun[begun.length - 1]?.id ?? this.#head_);
    this.version++;
  }

  /** Responses that have ended: what their items tell, and what was known of them before (usage, reason, error). */
  #loadEnded(earlier: Map<string, ResponseRecord>, state: SessionState): void {
    const { made_by: madeBy = {}, incomplete = {}, answers = {} } = state;
    const outputs = new Map<string, string[]>();
    for (const id of this.items.keys()) {
      const made = madeBy[id];
      if (made !== undefined && !this.responses.has(made)) outputs.set(made, [...(outputs.get(made) ?? []), id]);
    }
    for (const record of earlier.values()) {
      if (this.responses.has(record.id) || outputs.has(record.id)) continue;
      const output = record.output.filter((id) => this.items.has(id));
      const isNowhere = record.parentId !== null && !this.items.has(record.parentId);
      if (isNowhere || (output.length === 0 && (isOpen(record) || record.output.length > 0))) continue;
      outputs.set(record.id, output);
    }
    for (const [id, output] of outputs) {
      const known = earlier.get(id);
      const [first, last] = [this.items.get(output[0] ?? ""), this.items.get(output[output.length - 1] ?? "")];
      const told = incomplete[id] === undefined ? {} : { reason: incomplete[id], status: "incomplete" as const };
      const answer = answers[id];
      const guess = answer?.status ?? (last?.status === "completed" ? "completed" : "incomplete");
      const status = known !== undefined && !isOpen(known) ? known.status : (guess as ResponseStatus);
      const parentId = first?.parent_id ?? known?.parentId ?? null;
      this.#respond(id, { ...known, ...(answer ? taken({ ...answer }) : {}), status, ...told, output, parentId });
      for (const itemId of output) this.#owner.set(itemId, id);
    }
  }

  /** What `load` takes: a server's snapshot, and besides what it leaves out (how responses ended, what came last). */
  state(): SessionState {
    const queued = this.open.filter((response) => response.status === "queued");
    return {
      items: [...this.items.values()],
      open: this.open
        .filter((response) => response.status !== "queued")
        .map(({ id, parentId, output }) => ({
          response_id: id,
          parent_id: parentId,
          output: output.map((itemId) => this.items.get(itemId)!),
        })),
      queued: queued.map(({ id, waiting }) => ({ response_id: id, ...(waiting === undefined ? {} : { item: waiting }) })),
      made_by: Object.fromEntries(this.#owner),
      head: this.#head_,
      title: this.title,
      metadata: this.metadata,
      model: this.model,
      instructions: this.instructions,
      temperature: this.temperature,
      max_output_tokens: this.maxOutputTokens,
      feedback: [...this.feedback.values()].map(({ responseId, by, rating, reason }) => ({ response_id: responseId, by, rating, reason })),
      responses: [...this.responses.values()].filter((response) => !isOpen(response)),
      newest: this.#newest,
      compactions: [...this.compactions.values()].map(({ id, text, model, items, readItemId }) => ({
        summary: { id, type: "message", role: "user", parent_id: null, content: [{ type: "input_text", text }] },
        model,
        items,
        read_item_id: readItemId,
      })),
      pinned: [...this.pinned],
      reviews: [...this.reviews.values()].map(({ id, category, responseId, appealed, outcome }) => ({
        review_id: id,
        category,
        response_id: responseId,
        appealed,
        outcome,
      })),
    };
  }

  // -- events ----------------------------------------------------------------------------------------------

  /** `at`: when it happened, in ms, as the frame says. */
  apply(event: LogEvent, at?: number): void {
    this.version++;
    const responseId = event.response_id;
    switch (event.type) {
      case "session.created":
      case "session.updated":
        return this.#info((event["info"] ?? event["session"] ?? event) as Record<string, unknown>);
      case "session.deleted":
        this.deleted = true;
        return;
      case "item.created":
        return this.#put(event["item"] as Item);
      case "context.compacted":
        return this.#compact(event as unknown as CompactionState);
      case "context.compaction_undone":
        return this.#uncompact(String(event["compaction_id"]));
      case "item.pinned":
        if (event["pinned"] === true) this.pinned.add(event.item_id ?? "");
        else this.pinned.delete(event.item_id ?? "");
        return;
      case "content.retracted":
        if (event["category"] === "compaction_voided") return this.#uncompact(event.item_id ?? "");
        return event["category"] === "item_deleted" ? this.#remove(event.item_id ?? "") : this.#retract(event);
      case "review.appealed":
        return this.#review(event as unknown as ReviewState, true, null);
      case "review.decided":
        return this.#review(event as unknown as ReviewState, undefined, event["outcome"] as ReviewRecord["outcome"]);
      case "feedback.updated":
        return this.#rated(event as unknown as FeedbackState);
    }
    if (responseId === undefined) return;
    const body = (event["response"] ?? {}) as Record<string, unknown>;
    switch (event.type) {
      case "response.queued":
        return this.#enqueue(responseId, event["item"] as Item | null | undefined);
      case "response.created": {
        const parentId = body["parent_id"] === undefined ? this.#head_ : (body["parent_id"] as string | null);
        return this.#respond(responseId, { status: "in_progress", parentId, ...taken(body) });
      }
      case "response.output_item.added":
      case "response.output_item.done":
        return this.#put(event["item"] as Item, responseId);
      case "response.content_part.added":
      case "response.content_part.done":
        return this.#part(event, () => event["part"] as ContentPart);
      case "response.output_text.delta":
        return this.#part(event, (part) => ({ ...part, type: "output_text", text: (part.text ?? "") + String(event["delta"]) }));
      case "response.output_text.done":
        return this.#part(event, (part) => ({ ...part, type: "output_text", text: String(event["text"]) }));
      case "response.reasoning_text.delta":
        return this.#part(event, (part) => ({ type: "reasoning", reasoning: (part.reasoning ?? "") + String(event["delta"]) }));
      case "response.reasoning_text.done":
        return this.#part(event, () => ({ type: "reasoning", reasoning: String(event["text"]) }));
      case "response.refusal.delta":
        return this.#part(event, (part) => ({ ...part, type: "refusal", refusal: (part.refusal ?? "") + String(event["delta"]) }));
      case "response.refusal.done":
        return this.#part(event, (part) => ({ ...part, type: "refusal", refusal: String(event["refusal"]) }));
      case "response.function_call_arguments.delta":
        return this.#change(event.item_id, (item) => ({ ...item, arguments: (item.arguments ?? "") + String(event["delta"]) }));
      case "response.function_call_arguments.done":
        return this.#change(event.item_id, (item) => ({ ...item, arguments: String(event["arguments"]) }));
      case "response.completed":
      case "response.incomplete":
      case "response.failed":
        return this.#end(responseId, event.type.slice("response.".length) as ResponseStatus, body, at);
      case "context.fitted":
        return this.#respond(responseId, { dropped: Number(event["dropped"]) });
    }
  }

  #info(fields: Record<string, unknown>): void {
    if (fields["title"] !== undefined) this.title = fields["title"] as string | null;
    if (fields["metadata"] !== undefined) this.metadata = (fields["metadata"] as Metadata | null) ?? {};
    if (fields["model"] !== undefined) this.model = fields["model"] as string | null;
    if (fields["instructions"] !== undefined) this.instructions = fields["instructions"] as string | null;
    this.temperature = (fields["temperature"] as number | null | undefined) ?? null;
    this.maxOutputTokens = (fields["max_output_tokens"] as number | null | undefined) ?? null;
  }

  #rated({ response_id: responseId, by, rating, reason }: FeedbackState): void {
    const key = `${responseId} ${by}`;
    this.feedback.delete(key); // the newest stands last
    if (rating) this.feedback.set(key, { responseId, by, rating, reason: reason ?? "" });
  }

  #compact({ summary, model, items, read_item_id: readItemId }: CompactionState): void {
    this.compactions.set(summary.id, { id: summary.id, text: itemText(summary), model, items, readItemId });
    const owner = this.#owner.get(readItemId);
    if (owner !== undefined) this.#respond(owner, { summarised: items });
  }

  #uncompact(id: string): void {
    const owner = this.#owner.get(this.compactions.get(id)?.readItemId ?? "");
    this.compactions.delete(id);
    if (owner !== undefined) this.#respond(owner, { summarised: 0 });
  }

  #enqueue(responseId: string, item: Item | null | undefined): void {
    this.#respond(responseId, { status: "queued", ...(item ? { waiting: normalise(item) } : {}) });
  }

  #end(responseId: string, status: ResponseStatus, body: Record<string, unknown>, at: number | undefined): void {
    for (const item of (body["output"] as Item[] | undefined) ?? []) this.#put(item, responseId);
    const details = body["incomplete_details"] as { reason?: string } | null | undefined;
    const known = this.responses.get(responseId);
    this.#respond(responseId, {
      ...(known === undefined ? { parentId: (body["parent_id"] as string | null | undefined) ?? this.#head_ } : {}),
      status,
      ...taken({ ...body, completed_at: at }),
      ...(details?.reason === undefined ? {} : { reason: details.reason }),
      ...(body["error"] ? { error: body["error"] as WireError } : {}),
    });
    for (const id of this.responses.get(responseId)!.output) {
      this.#change(id, (item) =>
        item.status === "in_progress" ? { ...item, status: status === "completed" ? "completed" : "incomplete" } : item,
      );
    }
    // Cancelled while it waited: it never had a place in the tree.
    if (known?.status === "queued") this.#unplace(responseId);
  }

  #retract(event: LogEvent): void {
    const left = (text: string | undefined): string => {
      const points = Array.from(text ?? "");
      points.splice(Number(event["start"]), Number(event["end"]) - Number(event["start"]), String(event["replacement"] ?? ""));
      return points.join("");
    };
    if (this.items.get(event.item_id ?? "")?.type === "function_call") {
      return this.#change(event.item_id, (item) => ({ ...item, arguments: left(item.arguments) }));
    }
    this.#part(event, (part) => {
      if (part.type === "input_image") return left(IMAGE_TEXT) === IMAGE_TEXT ? part : { type: part.type };
      const key = part.type === "refusal" || part.type === "reasoning" ? part.type : "text";
      return { ...part, [key]: left(part[key]) };
    });
  }

  /** `appealed` undefined: as it was. */
  #review(told: ReviewState, appealed: boolean | undefined, outcome: ReviewRecord["outcome"]): void {
    const known = this.reviews.get(told.review_id);
    this.reviews.set(told.review_id, {
      id: told.review_id,
      category: told.category ?? "",
      responseId: told.response_id ?? null,
      appealed: appealed ?? known?.appealed ?? false,
      outcome,
    });
  }

  // -- the tree --------------------------------------------------------------------------------------------

  #put(raw: Item, responseId?: string): void {
    const before = this.items.get(raw.id);
    const response = responseId === undefined ? undefined : this.responses.get(responseId);
    const item = normalise(raw);
    if (raw.parent_id === undefined) {
      item.parent_id = before?.parent_id ?? response?.output[response.output.length - 1] ?? response?.parentId ?? this.#head_;
    }
    this.items.set(item.id, item);
    if (before === undefined) {
      this.#head_ = this.#newest = item.id;
      if (responseId !== undefined) this.#unplace(responseId);
      const below = this.#below(item.parent_id);
      const young = below.findIndex((id) => !this.items.has(id) && isOpen(this.responses.get(id)!));
      below.splice(young < 0 ? below.length : young, 0, item.id);
    }
    const owner = responseId ?? item.response_id;
    if (owner !== undefined) this.#owner.set(item.id, owner);
    if (responseId !== undefined && !response?.output.includes(item.id)) {
      this.#respond(responseId, { output: [...(response?.output ?? []), item.id] });
    }
  }

  /** Takes an item out; what stood below it stands below its parent. */
  #remove(id: string): void {
    const item = this.items.get(id);
    if (item === undefined) return;
    const parentId = item.parent_id;
    const below = this.#children.get(id) ?? [];
    const beside = this.#below(parentId);
    beside.splice(beside.indexOf(id), 1, ...below);
    this.#children.delete(id);
    this.items.delete(id);
    for (const each of below) {
      const child = this.items.get(each);
      if (child !== undefined) this.items.set(each, { ...child, parent_id: parentId });
    }
    for (const response of [...this.responses.values()]) {
      if (response.parentId === id) this.#respond(response.id, { parentId });
      if (response.output.includes(id)) this.#respond(response.id, { output: response.output.filter((each) => each !== id) });
    }
    this.#owner.delete(id);
    this.pinned.delete(id);
    if (this.#head_ === id) this.#head_ = parentId;
    if (this.#newest === id) this.#newest = parentId;
  }

  #respond(id: string, fields: Partial<ResponseRecord>): void {
    const before = this.responses.get(id);
    const after: ResponseRecord = { status: "in_progress", parentId: null, output: [], ...before, ...fields, id };
    if (after.status !== "queued") delete (after as { waiting?: Item }).waiting;
    this.responses.set(id, after);
    const started = after.status !== "queued" && (before === undefined || before.status === "queued");
    if (started && after.output.length === 0) {
      this.#below(after.parentId).push(id);
      this.#newest = id;
    }
  }

  /** Takes the stand-in of a response without items out of the tree. */
  #unplace(responseId: string): void {
    const below = this.#below(this.responses.get(responseId)?.parentId ?? null);
    const at = below.indexOf(responseId);
    if (at >= 0) below.splice(at, 1);
    if (this.#newest === responseId) this.#newest = this.#head_;
  }

  #below(parentId: string | null): string[] {
    let list = this.#children.get(parentId);
    if (list === undefined) this.#children.set(parentId, (list = []));
    return list;
  }

  /** undefined: no such node. */
  #parentOf(id: string): string | null | undefined {
    const item = this.items.get(id);
    if (item !== undefined) return item.parent_id;
    const response = this.responses.get(id);
    return response === undefined || response.status === "queued" ? undefined : response.parentId;
  }

  #entry(id: string): Entry {
    const item = this.items.get(id);
    const response = item === undefined ? this.responses.get(id) : this.responseOf(id);
    const parentId = this.#parentOf(id) ?? null;
    const siblings = this.#children.get(parentId) ?? [id];
    return {
      id,
      parentId,
      ...(item === undefined ? {} : { item }),
      ...(response === undefined ? {} : { response }),
      siblings,
      index: siblings.indexOf(id),
    };
  }

  #change(itemId: string | undefined, how: (item: Item) => Item): void {
    const item = itemId === undefined ? undefined : this.items.get(itemId);
    if (item !== undefined) this.items.set(item.id, how(item));
  }

  #part(event: LogEvent, how: (part: ContentPart) => ContentPart): void {
    this.#change(event.item_id, (item) => {
      const content = item.content.slice();
      const index = event.content_index ?? 0;
      while (content.length < index) content.push({ type: "output_text", text: "" });
      content[index] = how(content[index] ?? { type: "output_text" });
      return { ...item, content };
    });
  }
}

/** An image is one character in the texts that retractions count in. */
const IMAGE_TEXT = "\ufffc";

/** Parts whose text is a document's. */
const NO_WORDS: ReadonlySet<string> = new Set(["input_file", "input_passage"]);

/** The words of an item, refusals included. */
export function itemText(item: Item | undefined): string {
  return (item?.content ?? []).map((part) => (NO_WORDS.has(part.type) ? "" : part.text ?? part.refusal ?? "")).join("");
}

function normalise(raw: Item): Item {
  const content = raw.content as ContentPart[] | string | undefined | null;
  if (typeof content !== "string") return { ...raw, content: content ?? [] };
  return { ...raw, content: [{ type: raw.role === "assistant" ? "output_text" : "input_text", text: content }] };
}
