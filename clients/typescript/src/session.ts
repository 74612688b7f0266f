/**
 * One conversation: its view kept up to date, its commands, and its answers as async iterables.
 *
 * A session is read while it is open; `open` and `close` count, so that several parts of a program may share one handle.
 * Snapshot, replay and reset end in the same place, the view; `reset` is told besides, because what was
 * shown may have changed. The handle survives reconnects by itself.
 */
import { Channel } from "./channel.js";
import type { Effect } from "./core.js";
import { Emitter } from "./emitter.js";
import { fromWire, SessileError } from "./errors.js";
import type { Timers } from "./platform.js";
import type { ContentPart, EventFrame, Json, Knowledge, Metadata, OkFrame, Position, Rating, Sampling, SessionState } from "./protocol.js";
import { Answer } from "./answer.js";
import { View } from "./view.js";

/**
 * `detached`: nobody reads it. `attaching`: the server has not said yet where it begins. `replaying`: catching up.
 * `live`: everything that happens arrives. `gone`: unknown, forbidden or deleted while away. `deleted`: its last event came.
 */
export type SessionPhase = "detached" | "attaching" | "replaying" | "live" | "gone" | "deleted";

export interface SessionEvents {
  /** The view or the phase changed; told once for everything that came together. */
  change: Session;
  /** One applied event of the log. */
  event: EventFrame;
  /** The log was lost or rewritten and the view begun anew; `reason` is the server's. */
  reset: { reason: string | undefined };
  /** Reading ended for good. */
  gone: SessileError;
}

export interface TurnOptions extends Sampling {
  /** The model, or alias, that the session has from this turn on; absent: the one that it has. */
  model?: string | null;
}

export interface MessageOptions extends TurnOptions {
  /** Vector stores that are searched with the message's words, instead of the session's; null: none. */
  knowledge?: Knowledge | null;
}

export interface SendOptions extends MessageOptions {
  /** Which item it follows; null: the root; absent: the newest item. */
  parent_id?: string | null;
  /** false: only say it, ask for no answer. */
  respond?: boolean;
  /** Wait for the branch instead of being refused while it answers. */
  queue?: boolean;
}

export interface Sent {
  itemId: string;
  offset: number;
  answer?: Answer;
}

/** What a session needs from its client. */
export interface SessionLink {
  now(): number;
  timers: Timers;
  command(type: string, fields: { [key: string]: unknown }, options?: { timeoutMs?: number }): Promise<OkFrame>;
  follow(position: Position | null): void;
  unfollow(): void;
  load(use: (text: string | null) => void): void;
  store(text: string | null): void;
  keeps: boolean;
}

type SessionEffect = Extract<Effect, { session: string } | { type: "event" }>;

const SAVE_AFTER_MS = 1_000;
/** Larger views are not stored: a snapshot is cheaper than that much writing. In characters of JSON. */
const SAVED_MAX = 2_000_000;
/** Characters written a millisecond at most while a session changes: a long one is stored less often. */
const SAVED_PER_MS = 100;
const WARM_EVERY_MS = 20_000;
const UNREAD_EVENTS_MAX = 4096;

export class Session extends Emitter<SessionEvents> {
  readonly view = new View();
  #phase_: SessionPhase = "detached";
  #error_: SessileError | undefined;
  #position_: Position | null = null;
  #readers = 0;
  #openings = 0;
  #saveTimer: unknown = null;
  #savedLength = 0;
  #warmedAt = -Infinity;
  readonly #channels = new Set<Channel<EventFrame>>();

  constructor(
    readonly id: string,
    private readonly link: SessionLink,
  ) {
    super();
  }

  get phase(): SessionPhase {
    return this.#phase_;
  }

  /** Why it is `gone`. */
  get error(): SessileError | undefined {
    return this.#error_;
  }

  /** The last event that the view has. */
  get position(): Position | null {
    return this.#position_;
  }

  // -- reading -----------------------------------------------------------------------------------------------

  /** Read on from where this handle or the storage stands; otherwise from `from`, or from a snapshot. */
  open(from: Position | null = null): this {
    if (this.#readers++ > 0) return this;
    this.#phase_ = "attaching";
    this.#error_ = undefined;
    const opening = ++this.#openings;
    if (this.#position_ !== null) {
      this.link.follow(this.#position_);
      return this;
    }
    this.link.load((text) => {
      if (this.#readers === 0 || opening !== this.#openings) return; // closed again while the storage was read
      const saved = text === null ? null : parseSaved(text);
      if (saved !== null) {
        this.view.load(saved.state);
        this.#position_ = { epoch: saved.epoch, offset: saved.offset };
      }
      this.link.follow(this.#position_ ?? from);
    });
    return this;
  }

  /** One reader less; after the last one the server is told to send no more. */
  close(): void {
    if (this.#readers === 0 || --this.#readers > 0) return;
    this.save();
    this.#phase_ = "detached";
    this.link.unfollow();
    for (const channel of [...this.#channels]) channel.end();
  }

  /** Resolves when everything that had happened is in the view; rejects when the session is gone. */
  async live(): Promise<this> {
    if (this.#phase_ === "detached") throw new SessileError("detached", "The session is not open.");
    await this.until(() => this.#phase_ === "live" || this.#phase_ === "deleted");
    return this;
  }

  /** Every event applied from now on, in order, each once. What a snapshot stands for is not among them. */
  events(): AsyncIterableIterator<EventFrame> {
    const channel: Channel<EventFrame> = new Channel(UNREAD_EVENTS_MAX, () => {
      this.#channels.delete(channel);
      this.close();
    });
    this.#channels.add(channel);
    this.open();
    return channel;
  }

  /** The stream of one answer, from its beginning, whenever it is asked for. */
  answer(responseId: string, offset = 0): Answer {
    return new Answer(this, responseId, offset);
  }

  // -- speaking ----------------------------------------------------------------------------------------------

  async send(content: string | ContentPart[], options: SendOptions = {}): Promise<Sent> {
    this.#warmedAt = -Infinity;
    return this.#sent(await this.link.command("message.create", { content, ...options }));
  }

  /** Say it differently: a sibling of `itemId`, on a new branch. */
  async edit(itemId: string, content: string | ContentPart[], options: MessageOptions & { respond?: boolean } = {}): Promise<Sent> {
    return this.#sent(await this.link.command("message.edit", { item_id: itemId, content, ...options }));
  }

  /** Another answer to `parent_id`: a sibling of those that are there. */
  async regenerate(options: TurnOptions & { parent_id?: string | null; queue?: boolean } = {}): Promise<Answer> {
    const ok = await this.link.command("response.create", options);
    return this.answer(String(ok["response_id"]), Number(ok["offset"] ?? 0));
  }

  /**
   * Stop an answer; its text so far stays. False when it had ended already, unless its turn waits for tool outputs: then the
   * turn ends, with an error for each that is missing, and it is true.
   */
  async cancel(responseId: string): Promise<boolean> {
    return (await this.link.command("response.cancel", { response_id: responseId }))["noop"] !== true;
  }

  /**
   * Say something while an answer is written: it ends with what it says so far, and the one that is returned goes on behind these
   * words. One that calls tools is let end: then the words are answered together with the tools' outputs.
   */
  async steer(responseId: string, content: string | ContentPart[]): Promise<Sent> {
    return this.#sent(await this.link.command("response.steer", { response_id: responseId, content }));
  }

  async toolOutput(callId: string, output: string, isError = false): Promise<Sent> {
    return this.#sent(await this.link.command("tool.output", { call_id: callId, output, ...(isError ? { is_error: true } : {}) }));
  }

  /**
   * Ask that a person looks again at what was withheld of an answer, or at a message that was refused: then `content` says it
   * again, for nothing of it is stored. The id of the case; `view.reviews` tells what came of it.
   */
  async appeal(about: { responseId: string } | { content: string }, note = ""): Promise<string> {
    const what = "content" in about ? { content: about.content } : { response_id: about.responseId };
    return String((await this.link.command("review.appeal", { ...what, ...(note === "" ? {} : { note }) }))["review_id"]);
  }

  /** What its user thinks of an answer that has ended, and why; null takes back what they thought before. */
  async feedback(responseId: string, rating: Rating | null, reason = ""): Promise<void> {
    await this.link.command("feedback.set", { response_id: responseId, rating, ...(reason === "" ? {} : { reason }) });
  }

  /**
   * Have the model summarise all but the newest turns now; the id of the summary, which comes as `context.compacted`, or
   * `context.compaction_failed` says why not.
   */
  async compact(options: { keep_turns?: number; item_id?: string } = {}): Promise<string> {
    return String((await this.link.command("session.compact", options))["compaction_id"]);
  }

  /** The model reads the messages again that a summary stands for; without an id: the one in force on the newest branch. */
  async undoCompaction(compactionId?: string): Promise<void> {
    await this.link.command("compaction.undo", compactionId === undefined ? {} : { compaction_id: compactionId });
  }

  /** Keep an item in what the model reads, word by word, or no longer. */
  async pin(itemId: string, pinned = true): Promise<void> {
    await this.link.command("item.pin", { item_id: itemId, pinned });
  }

  async update(fields: { title?: string | null; metadata?: Metadata | null; [key: string]: Json | undefined }): Promise<void> {
    await this.link.command("session.update", fields);
  }

  async delete(): Promise<void> {
    await this.link.command("session.delete", {});
  }

  async get(): Promise<OkFrame> {
    return this.link.command("session.get", {});
  }

  /** The user has begun to type. Call it on every key: it is sent at most every 20 s, and without a connection soon forgotten. */
  warm(): void {
    if (this.link.now() - this.#warmedAt < WARM_EVERY_MS) return;
    this.#warmedAt = this.link.now();
    this.link.command("session.warm", {}, { timeoutMs: WARM_EVERY_MS }).catch(() => undefined); // a hint: its failure changes nothing
  }

  #sent(ok: OkFrame): Sent {
    const offset = Number(ok["offset"] ?? 0);
    const responseId = ok["response_id"];
    return {
      itemId: String(ok["item_id"]),
      offset,
      ...(typeof responseId === "string" ? { answer: this.answer(responseId, offset) } : {}),
    };
  }

  // -- from the client ---------------------------------------------------------------------------------------

  /** @internal */
  take(effect: SessionEffect): void {
    switch (effect.type) {
      case "attaching":
        this.#phase_ = "attaching";
        return;
      case "replay":
        if (effect.from === 1) this.view.load({ items: [], open: [] });
        this.#position_ = { epoch: effect.epoch, offset: effect.from - 1 };
        this.#phase_ = "replaying";
        return;
      case "state":
        this.view.load(effect.state);
        this.#position_ = { epoch: effect.epoch, offset: effect.at };
        this.#phase_ = "replaying";
        this.#saveSoon();
        if (effect.mode === "reset") this.emit("reset", { reason: effect.reason });
        return;
      case "caught_up":
        this.#phase_ = "live";
        return;
      case "event":
        this.view.apply(effect.frame.event, effect.frame.at);
        this.#position_ = { epoch: effect.frame.epoch, offset: effect.frame.offset };
        if (this.view.deleted) {
          this.#phase_ = "deleted";
          this.#stopSaving();
          this.link.store(null);
        } else this.#saveSoon();
        for (const channel of this.#channels) channel.push(effect.frame);
        this.emit("event", effect.frame);
        return;
      case "gone":
        this.#phase_ = "gone";
        this.#position_ = null;
        this.link.store(null);
        return this.ended(fromWire(effect.error ?? { code: "session_not_found", message: "The session is gone." }, true));
    }
  }

  /** @internal Everything that came together is applied. */
  settle(): void {
    this.emit("change", this);
    if (this.#phase_ === "deleted") for (const channel of [...this.#channels]) channel.end();
  }

  /** @internal */
  ended(error: SessileError): void {
    this.#error_ = error;
    if (this.#phase_ !== "gone" && this.#phase_ !== "deleted") this.#phase_ = "detached";
    this.#readers = 0;
    this.#stopSaving();
    for (const channel of [...this.#channels]) channel.end(error);
    this.emit("gone", error);
    this.emit("change", this);
  }

  /** Resolves at the first change after which `is` holds; rejects when the session ends before. */
  until(is: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const look = (): boolean => {
        if (is()) resolve();
        else if (this.#error_ !== undefined) reject(this.#error_);
        else return false;
        return true;
      };
      if (look()) return;
      const off = this.on("change", () => look() && off());
    });
  }

  // -- storing -----------------------------------------------------------------------------------------------

  /** Write position and view together, if there is anything new. */
  save(): void {
    if (this.#saveTimer === null) return;
    this.#stopSaving();
    const position = this.#position_;
    if (position === null) return;
    const saved: Saved = { ...position, state: this.view.state() };
    const text = JSON.stringify(saved);
    this.#savedLength = text.length;
    this.link.store(text.length > SAVED_MAX ? null : text);
  }

  #saveSoon(): void {
    if (!this.link.keeps) return;
    this.#saveTimer ??= this.link.timers.set(() => this.save(), Math.max(SAVE_AFTER_MS, this.#savedLength / SAVED_PER_MS));
  }

  #stopSaving(): void {
    if (this.#saveTimer !== null) this.link.timers.clear(this.#saveTimer);
    this.#saveTimer = null;
  }
}

interface Saved extends Position {
  state: SessionState;
}

/** null for anything that is not what `save` writes: a snapshot serves as well. */
function parseSaved(text: string): Saved | null {
  try {
    const value = JSON.parse(text) as Partial<Saved> | null;
    const isPosition = typeof value?.epoch === "string" && Number.isSafeInteger(value.offset);
    const isWhole = isPosition && Array.isArray(value?.state?.items) && Array.isArray(value.state.open);
    return isWhole ? (value as Saved) : null;
  } catch {
    return null;
  }
}
