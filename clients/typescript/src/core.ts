/**
 * The client's side of the protocol, without I/O: which frames to send, which events to apply, when to come back.
 *
 * The shell (client.ts) calls a method for what happened, then carries out `drain()` in order and calls `tick`
 * when `deadline()` has come. Time, ids and chance are arguments; nothing here awaits, dials or stores.
 *
 * Invariants
 *  - An event is handed on only if it begins right after the last one handed on of its session (I4): what is older is
 *    dropped, a gap or a foreign epoch asks again from where we stand.
 *  - A command keeps its id until it is answered; after a reconnect every unanswered one is repeated, in order (I5), unless
 *    it is so old that the server may not know it again.
 *  - At most one socket is meant to be open; whoever asks for `connect` or `close` has already forgotten the old one.
 *
 * It does NOT know what events mean (view.ts) nor what commands are for.
 */
import { isBusy, isFinalClose, isFinalStatus } from "./errors.js";
import type {
  ClientFrame,
  CommandFrame,
  EventFrame,
  OkFrame,
  Position,
  ResumedFrame,
  ServerFrame,
  SessionState,
  WireError,
} from "./protocol.js";
import { ulidMs } from "./ulid.js";

export const BACKOFF_BASE_MS = 250;
export const BACKOFF_MAX_MS = 20_000;
const DIAL_LIMIT_MS = 10_000;
const READY_LIMIT_MS = 10_000;
/** Silence ends a connection after this many heartbeats. */
const SILENCE_HEARTBEATS = 1.4;
/** What a connection gets to prove that it lives, after we ourselves slept. */
const PROBE_MS = 5_000;
/** A timer that comes this late says that the device slept, not that the peer was silent. */
const TIMER_LATE_MS = 5_000;
const ACK_EVERY_MS = 1_000;
const COMMAND_TRIES_MAX = 5;
/** For so long a server knows a repeat as one (protocol, 5.1). */
const COMMAND_KEPT_MS = 24 * 3600 * 1000;
/** Sent and unanswered at a time. A server refuses more than 32, what we subscribe to among them. */
const IN_FLIGHT_MAX = 24;
/** How long a server may stay after the time that its `goaway` named. */
const GOAWAY_GRACE_MS = 5_000;
const ASK_AGAIN_MS = 1_000;
/** After this many gaps in a row a snapshot is asked for; after one more the connection is given up. */
const GAPS_MAX = 3;

export type ClientPhase = "offline" | "connecting" | "ready" | "suspended" | "stopped";

export interface Status {
  phase: ClientPhase;
  /** Attempts since a connection was last ready. */
  attempt: number;
  /** When the next attempt is due (while `offline`), in the clock's ms. */
  retryAt: number | null;
  /** The server announced that it will close this connection. */
  draining: boolean;
  /** Why it stopped, or what the server said before the last close. */
  closeCode?: number;
  /** With which the handshake was refused, where the WebSocket tells it. */
  httpStatus?: number;
  error?: WireError;
  /** How the server is spoken to. HTTP where something on the way lets no WebSocket through. */
  via?: "websocket" | "http";
  /** Somebody else answers in the server's place, a captive portal as a rule: its user has to sign in there. */
  captivePortal?: boolean;
}

export type Effect =
  | { type: "connect" }
  | { type: "send"; frames: ClientFrame[] }
  | { type: "close"; code: number; reason: string }
  | { type: "status"; status: Status }
  | { type: "ok"; answer: OkFrame }
  | { type: "refused"; id: string; error: WireError }
  | { type: "dropped"; id: string }
  | { type: "expired"; frame: CommandFrame }
  | { type: "attaching"; session: string }
  | { type: "replay"; session: string; epoch: string; from: number; top: number }
  | { type: "state"; session: string; mode: "snapshot" | "reset"; epoch: string; at: number; state: SessionState; reason?: string }
  | { type: "event"; frame: EventFrame }
  | { type: "caught_up"; session: string; offset: number }
  | { type: "gone"; session: string; error: WireError | undefined }
  | { type: "goaway"; reason: string; afterMs: number }
  | { type: "complaint"; error: WireError };

interface Subscription {
  /** null: nothing is known yet, a snapshot is wanted. An empty epoch with offset 0: from the start. */
  position: Position | null;
  /** Events count only after the server has said where it begins. */
  answered: boolean;
  askId: string | null;
  askAgainAt: number | null;
  /** In a row, since an event was applied. */
  gaps: number;
}

interface Pending {
  frame: CommandFrame;
  tries: number;
  retryAt: number | null;
  /** Sent on the present connection. */
  inFlight: boolean;
}

/** The client's rule for one event (protocol, 3.2). */
export function place(position: Position, frame: Pick<EventFrame, "epoch" | "offset" | "first_offset">): "apply" | "old" | "gap" {
  if (frame.epoch !== position.epoch) return "gap";
  if (frame.offset <= position.offset) return "old";
  return (frame.first_offset ?? frame.offset) === position.offset + 1 ? "apply" : "gap";
}

/** Full jitter: anywhere between nothing and 0.25 s · 2ⁿ, at most 20 s. */
export function backoffMs(attempt: number, random: number): number {
  return random * Math.min(BACKOFF_MAX_MS, BACKOFF_BASE_MS * 2 ** Math.min(attempt, 16));
}

export class Core {
  #phase: ClientPhase = "offline";
  #attempt = 0;
  #retryAt: number | null = null;
  #connectBy: number | null = null;
  #drainBy: number | null = null;
  #probeBy: number | null = null;
  #notBefore = 0;
  #lastCloseCode: number | undefined;
  #lastStatus: number | undefined;
  #lastError: WireError | undefined;

  #heardAt = 0;
  #pinged = false;
  #heartbeatMs = 25_000;
  #windowEvents = 1024;
  #windowBytes = 262_144;

  #unackedEvents = 0;
  #unackedBytes = 0;
  #ackAt: number | null = null;
  readonly #seen = new Map<string, number>();

  readonly #subscriptions = new Map<string, Subscription>();
  readonly #asks = new Map<string, string>();
  /** Sessions that this connection's `hello` named. */
  readonly #greeted = new Set<string>();
  readonly #pending = new Map<string, Pending>();
  #effects: Effect[] = [];

  constructor(
    private readonly newId: (now: number) => string,
    private readonly random: () => number,
    private readonly device?: string,
    private readonly rollupMs = 0,
  ) {}

  // -- what the shell reads --------------------------------------------------------------------------------

  drain(): Effect[] {
    const effects = this.#effects;
    this.#effects = [];
    return effects;
  }

  status(): Status {
    return {
      phase: this.#phase,
      attempt: this.#attempt,
      retryAt: this.#phase === "offline" ? this.#retryAt : null,
      draining: this.#drainBy !== null,
      ...(this.#lastCloseCode === undefined ? {} : { closeCode: this.#lastCloseCode }),
      ...(this.#lastStatus === undefined ? {} : { httpStatus: this.#lastStatus }),
      ...(this.#lastError === undefined ? {} : { error: this.#lastError }),
    };
  }

  /** Unanswered commands, oldest first: what must survive if the program may be killed. */
  unanswered(): CommandFrame[] {
    return [...this.#pending.values()].map((pending) => pending.frame);
  }

  /** When `tick` is due next, or null when nothing is waited for. */
  deadline(): number | null {
    let due = Infinity;
    const consider = (at: number | null): void => {
      if (at !== null && at < due) due = at;
    };
    if (this.#phase === "offline") consider(this.#retryAt);
    if (this.#phase === "connecting") consider(this.#connectBy);
    if (this.#phase === "ready") {
      consider(this.#heardAt + (this.#pinged ? this.#silenceMs() : this.#heartbeatMs));
      consider(this.#probeBy);
      consider(this.#ackAt);
      consider(this.#drainBy);
      for (const pending of this.#pending.values()) consider(pending.retryAt);
      for (const subscription of this.#subscriptions.values()) consider(subscription.askAgainAt);
    }
    return due === Infinity ? null : due;
  }

  // -- what the owner wants ---------------------------------------------------------------------------------

  /** Connect now; a second call while on the way changes nothing. Also ends a suspension or a stop. */
  start(now: number): void {
    if (this.#phase === "connecting" || this.#phase === "ready") return;
    this.#attempt = 0;
    this.#notBefore = 0;
    this.#forgetTrouble();
    this.#dial(now);
  }

  /** The app goes to the background: no socket, no timers. Commands are kept. */
  suspend(): void {
    if (this.#phase === "suspended" || this.#phase === "stopped") return;
    this.#hangUp(1000, "suspended");
    this.#enter("suspended");
  }

  /** Back in the foreground, or the network changed: connect at once, or ask a socket that looks alive for a sign. */
  resume(now: number): void {
    if (this.#phase === "ready") {
      this.#probe(now);
    } else if (this.#phase === "suspended" || this.#phase === "offline") {
      this.start(now);
    }
  }

  /** By another way or from another address: the connection is given up, whatever it looks like. */
  redial(now: number): void {
    if (this.#phase === "suspended" || this.#phase === "stopped") return;
    this.#hangUp(1000, "another network");
    this.#enter("offline");
    this.start(now);
  }

  /** For good. Unanswered commands are given up (`dropped`); they may have taken effect. */
  stop(): void {
    if (this.#phase === "stopped") return;
    this.#hangUp(1000, "closed by its owner");
    this.#enter("stopped");
    this.#dropAll();
  }

  command(now: number, frame: Omit<CommandFrame, "id"> & { type: string }, id = this.newId(now)): string {
    this.#pending.set(id, { frame: { ...frame, id }, tries: 0, retryAt: null, inFlight: false });
    this.#transmit(now);
    return id;
  }

  /** Commands of an earlier run: they go before those of this one. */
  restore(frames: CommandFrame[]): void {
    const made = [...this.#pending];
    const earlier = [...frames]; // what is no list throws before anything is touched
    this.#pending.clear();
    for (const frame of earlier) this.#pending.set(frame.id, { frame, tries: 0, retryAt: null, inFlight: false });
    for (const [id, pending] of made) this.#pending.set(id, pending);
  }

  /** The owner no longer waits for this one. It may have taken effect. */
  forget(id: string): void {
    this.#pending.delete(id);
  }

  /** Read a session from `position` on; null asks for a snapshot, `{epoch: "", offset: 0}` for everything. */
  follow(now: number, session: string, position: Position | null): void {
    this.#subscriptions.set(session, { position, answered: false, askId: null, askAgainAt: null, gaps: 0 });
    this.#effects.push({ type: "attaching", session });
    if (this.#phase === "ready") this.#ask(now, session);
  }

  unfollow(now: number, session: string): void {
    const subscription = this.#subscriptions.get(session);
    if (subscription === undefined) return;
    this.#subscriptions.delete(session);
    if (subscription.askId !== null) this.#asks.delete(subscription.askId);
    if (this.#phase === "ready") this.#send({ type: "unsubscribe", id: this.newId(now), session });
  }

  // -- what the socket did -----------------------------------------------------------------------------------

  opened(now: number, auth: string | undefined): void {
    if (this.#phase !== "connecting") return;
    this.#connectBy = now + READY_LIMIT_MS;
    const resume = [...this.#subscriptions].map(([session, subscription]) => ({ session, ...wanted(subscription) }));
    for (const { session } of resume) this.#greeted.add(session);
    this.#send({
      type: "hello",
      ...(auth === undefined ? {} : { auth }),
      ...(this.device === undefined ? {} : { device: this.device }),
      ...(this.rollupMs && { rollup_ms: this.rollupMs }),
      ...(resume.length === 0 ? {} : { resume }),
    });
  }

  closed(now: number, code: number, reason: string): void {
    if (this.#phase !== "connecting" && this.#phase !== "ready") return;
    this.#lastCloseCode = code;
    this.#forgetConnection();
    if (isFinalClose(code)) this.#halt(this.#lastError?.message ?? (reason || `The server closed with ${code}.`));
    else this.#backOff(now);
  }

  /** The handshake was answered, but not with a WebSocket. */
  refused(now: number, httpStatus: number, retryAfterMs: number): void {
    if (this.#phase !== "connecting" && this.#phase !== "offline") return;
    this.#lastStatus = httpStatus;
    this.#hangUp(1000, "refused");
    this.#notBefore = now + retryAfterMs;
    if (isFinalStatus(httpStatus)) this.#halt(`The server refused the connection with HTTP ${httpStatus}.`);
    else this.#backOff(now);
  }

  /** Somebody has said when the server may be asked again. */
  wait(now: number, ms: number): void {
    this.#notBefore = now + ms;
    if (this.#phase !== "offline" || this.#retryAt === null) return;
    this.#retryAt = Math.max(this.#retryAt, this.#notBefore);
    this.#announce();
  }

  /** Something came that is not this protocol. Nothing after it can be trusted, and another attempt would meet the same. */
  garbled(message: string, closeCode: number): void {
    this.#lastCloseCode = closeCode;
    this.#hangUp(closeCode, message);
    this.#halt(`The server does not speak this protocol: ${message}.`);
  }

  received(now: number, frames: ServerFrame[], bytes: number): void {
    this.#heardAt = now;
    this.#pinged = false;
    this.#probeBy = null;
    const share = Math.ceil(bytes / Math.max(1, frames.length));
    for (const frame of frames) this.#frame(now, frame, share);
    if (this.#unackedEvents * 2 >= this.#windowEvents || this.#unackedBytes * 2 >= this.#windowBytes) this.#acknowledge();
  }

  // -- time ----------------------------------------------------------------------------------------------------

  tick(now: number): void {
    const due = this.deadline();
    if (due === null || now < due) return;
    if (this.#phase === "offline") this.#dial(now);
    else if (this.#phase === "connecting") this.#fail(now, 4412, "no answer");
    else if (this.#phase === "ready") this.#tickReady(now, now - due > TIMER_LATE_MS);
  }

  #tickReady(now: number, slept: boolean): void {
    if (this.#probeBy !== null && now >= this.#probeBy) return this.#fail(now, 4412, "no sign of life");
    if (this.#drainBy !== null && now >= this.#drainBy) return this.#fail(now, 1001, "asked to go away");
    if (now >= this.#heardAt + this.#heartbeatMs) {
      if (slept) {
        this.#heardAt = now; // silence is counted from waking
        this.#probe(now);
      } else if (now >= this.#heardAt + this.#silenceMs()) return this.#fail(now, 4412, "silence");
      else if (!this.#pinged) {
        this.#pinged = true;
        this.#send({ type: "ping" });
      }
    }
    if (this.#ackAt !== null && now >= this.#ackAt) this.#acknowledge();
    this.#transmit(now);
    for (const [session, subscription] of this.#subscriptions) {
      if (subscription.askAgainAt !== null && now >= subscription.askAgainAt) this.#ask(now, session);
    }
  }

  // -- frames ----------------------------------------------------------------------------------------------------

  #frame(now: number, frame: ServerFrame, bytes: number): void {
    switch (frame.type) {
      case "ready":
        this.#heartbeatMs = frame.heartbeat_ms ?? 25_000;
        this.#windowEvents = frame.window_events ?? 1024;
        this.#windowBytes = frame.window_bytes ?? 262_144;
        this.#forgetTrouble();
        this.#connectBy = null;
        this.#enter("ready");
        // What began to be followed while the greeting was under way was not in `hello`.
        for (const [session, subscription] of this.#subscriptions) {
          if (subscription.askId === null && !this.#greeted.has(session)) this.#ask(now, session);
        }
        for (const session of this.#greeted) {
          if (!this.#subscriptions.has(session)) this.#send({ type: "unsubscribe", id: this.newId(now), session });
        }
        return this.#transmit(now);
      case "event":
        this.#count(now, frame.session, frame.offset, bytes);
        return this.#event(now, frame);
      case "resumed":
        if (frame.mode === "snapshot" || frame.mode === "reset") this.#count(now, frame.session, frame.at, bytes);
        return this.#resumed(now, frame);
      case "caught_up": {
        const subscription = this.#subscriptions.get(frame.session);
        if (subscription === undefined || !subscription.answered) return;
        if (frame.offset > (subscription.position?.offset ?? 0)) return this.#gap(now, frame.session, subscription);
        this.#attempt = 0;
        this.#effects.push({ type: "caught_up", session: frame.session, offset: frame.offset });
        return;
      }
      case "ok":
        this.#attempt = 0;
        if (this.#pending.delete(frame.id)) this.#effects.push({ type: "ok", answer: frame });
        else this.#asks.delete(frame.id);
        return this.#transmit(now);
      case "error":
        return this.#errored(now, frame.id, frame.error);
      case "ping":
        return this.#send({ type: "pong" });
      case "goaway": {
        const afterMs = frame.after_ms ?? 0;
        this.#drainBy = now + afterMs + GOAWAY_GRACE_MS;
        this.#effects.push({ type: "goaway", reason: frame.reason ?? "", afterMs });
        return this.#announce();
      }
      case "pong":
      default: // a newer server may say more: what is unknown is ignored
        return;
    }
  }

  #event(now: number, frame: EventFrame): void {
    const subscription = this.#subscriptions.get(frame.session);
    if (subscription === undefined || !subscription.answered || subscription.position === null) return;
    switch (place(subscription.position, frame)) {
      case "old":
        return;
      case "gap":
        return this.#gap(now, frame.session, subscription);
      case "apply":
        this.#attempt = subscription.gaps = 0;
        subscription.position = { epoch: frame.epoch, offset: frame.offset };
        this.#effects.push({ type: "event", frame });
        if (frame.event.type === "session.deleted") this.#subscriptions.delete(frame.session); // its last offset
    }
  }

  /** What comes does not continue what we have. Ask again from where we stand, and in the end begin anew. */
  #gap(now: number, session: string, subscription: Subscription): void {
    subscription.gaps++;
    if (subscription.gaps > GAPS_MAX) return this.#fail(now, 1001, "the log cannot be followed");
    this.#ask(now, session);
  }

  #resumed(now: number, frame: ResumedFrame): void {
    const { session } = frame;
    const subscription = this.#subscriptions.get(session);
    if (subscription === undefined) return;
    if (frame.mode === "gone") return this.#gone(now, session, subscription, frame.error);
    this.#attempt = 0;
    const { position } = subscription;
    if (frame.mode === "replay") {
      const offset = position?.offset ?? 0;
      const isOtherLog = position !== null && position.epoch !== "" && position.epoch !== frame.epoch;
      subscription.answered = true;
      if (frame.from > offset + 1 || isOtherLog) return this.#gap(now, session, subscription);
      subscription.position = { epoch: frame.epoch, offset };
      this.#effects.push({ type: "replay", session, epoch: frame.epoch, from: offset + 1, top: frame.top });
      return;
    }
    const { mode, epoch, at, state } = frame;
    subscription.answered = true;
    if (mode === "snapshot" && position !== null && position.epoch === epoch && at < position.offset) {
      // Older than what we have: the tail up to here is dropped as seen.
      this.#effects.push({ type: "replay", session, epoch, from: position.offset + 1, top: position.offset });
      return;
    }
    subscription.position = { epoch, offset: at };
    subscription.gaps = 0;
    const reason = frame.mode === "reset" && frame.reason !== undefined ? { reason: frame.reason } : {};
    this.#effects.push({ type: "state", session, mode, epoch, at, state, ...reason });
  }

  #gone(now: number, session: string, subscription: Subscription, error: WireError | undefined): void {
    if (error?.retryable) {
      subscription.askAgainAt = now + (error.retry_after_ms ?? ASK_AGAIN_MS);
      if (subscription.answered) this.#effects.push({ type: "attaching", session });
      subscription.answered = false;
      return;
    }
    this.#subscriptions.delete(session);
    this.#effects.push({ type: "gone", session, error });
  }

  #errored(now: number, id: string | undefined, error: WireError): void {
    const session = id === undefined ? undefined : this.#asks.get(id);
    const pending = id === undefined ? undefined : this.#pending.get(id);
    if (id !== undefined && session !== undefined) {
      this.#asks.delete(id);
      const subscription = this.#subscriptions.get(session);
      if (subscription !== undefined && subscription.askId === id) this.#gone(now, session, subscription, error);
      this.#transmit(now);
    } else if (id !== undefined && pending !== undefined) {
      const saysWhen = error.retryable === true && error.retry_after_ms !== undefined && !isBusy(error.code);
      if (saysWhen && pending.tries < COMMAND_TRIES_MAX) {
        pending.inFlight = false;
        pending.retryAt = now + error.retry_after_ms!;
      } else {
        this.#pending.delete(id);
        this.#effects.push({ type: "refused", id, error });
      }
      this.#transmit(now);
    } else if (id === undefined) {
      this.#lastError = error;
      if (error.retry_after_ms !== undefined) this.#notBefore = now + error.retry_after_ms;
      this.#effects.push({ type: "complaint", error });
    }
  }

  // -- sending ---------------------------------------------------------------------------------------------------

  #send(frame: ClientFrame): void {
    const last = this.#effects[this.#effects.length - 1];
    if (last?.type === "send") last.frames.push(frame);
    else this.#effects.push({ type: "send", frames: [frame] });
  }

  /** Sends what may be sent: in order, as many as the server lets stand unanswered, none before its time. */
  #transmit(now: number): void {
    if (this.#phase !== "ready") return;
    let room = IN_FLIGHT_MAX;
    const waited = new Set<unknown>();
    for (const pending of this.#pending.values()) if (pending.inFlight) room--;
    for (const pending of this.#pending.values()) {
      if (room <= 0) return;
      const { type, session, queue } = pending.frame;
      if (type === "message.create") {
        if (waited.has(session)) continue;
        // It may be refused for a moment (`queue_full`), and what is said after it must not stand before it.
        if (queue === true || pending.retryAt !== null) waited.add(session);
      }
      if (pending.inFlight || (pending.retryAt !== null && now < pending.retryAt)) continue;
      const madeAt = ulidMs(pending.frame.id);
      if (madeAt !== null && now - madeAt >= COMMAND_KEPT_MS) {
        this.#pending.delete(pending.frame.id);
        this.#effects.push({ type: "expired", frame: pending.frame });
        continue;
      }
      room--;
      pending.tries++;
      pending.inFlight = true;
      pending.retryAt = null;
      this.#send(pending.frame);
    }
  }

  #ask(now: number, session: string): void {
    const subscription = this.#subscriptions.get(session);
    if (subscription === undefined) return;
    if (subscription.askId !== null) this.#asks.delete(subscription.askId);
    const id = this.newId(now);
    subscription.askId = id;
    subscription.askAgainAt = null;
    if (subscription.answered) this.#effects.push({ type: "attaching", session });
    subscription.answered = false;
    this.#asks.set(id, session);
    this.#send({ type: "subscribe", id, session, ...wanted(subscription) });
  }

  /** Everything that came counts, applied or not: an ack frees the window and means nothing else. */
  #count(now: number, session: string, offset: number, bytes: number): void {
    this.#unackedEvents++;
    this.#unackedBytes += bytes;
    this.#seen.set(session, offset);
    this.#ackAt ??= now + ACK_EVERY_MS;
  }

  #acknowledge(): void {
    for (const [session, offset] of this.#seen) this.#send({ type: "ack", session, offset });
    this.#forgetUnacked();
  }

  #probe(now: number): void {
    if (this.#probeBy !== null) return;
    this.#probeBy = now + PROBE_MS;
    this.#send({ type: "ping" });
  }

  // -- coming and going ----------------------------------------------------------------------------------------

  #dial(now: number): void {
    this.#forgetConnection();
    this.#connectBy = now + DIAL_LIMIT_MS;
    this.#heardAt = now;
    this.#enter("connecting");
    this.#effects.push({ type: "connect" });
  }

  #fail(now: number, code: number, reason: string): void {
    this.#lastCloseCode = code;
    this.#hangUp(code, reason);
    this.#backOff(now);
  }

  #backOff(now: number): void {
    this.#retryAt = Math.max(now + backoffMs(this.#attempt, this.random()), this.#notBefore);
    this.#attempt++;
    this.#enter("offline");
  }

  #hangUp(code: number, reason: string): void {
    if (this.#phase === "connecting" || this.#phase === "ready") this.#effects.push({ type: "close", code, reason });
    this.#forgetConnection();
  }

  #forgetConnection(): void {
    this.#connectBy = this.#drainBy = this.#probeBy = this.#retryAt = null;
    this.#pinged = false;
    this.#greeted.clear();
    this.#asks.clear();
    this.#forgetUnacked();
    for (const [session, subscription] of this.#subscriptions) {
      if (subscription.answered) this.#effects.push({ type: "attaching", session });
      subscription.answered = false;
      subscription.askId = subscription.askAgainAt = null;
    }
    for (const pending of this.#pending.values()) pending.inFlight = false;
  }

  #forgetTrouble(): void {
    this.#lastCloseCode = this.#lastStatus = this.#lastError = undefined;
  }

  #halt(message: string): void {
    this.#lastError = { ...this.#lastError, code: "stopped", message };
    this.#enter("stopped");
    this.#dropAll();
  }

  #forgetUnacked(): void {
    this.#unackedEvents = this.#unackedBytes = 0;
    this.#ackAt = null;
    this.#seen.clear();
  }

  #dropAll(): void {
    for (const id of this.#pending.keys()) this.#effects.push({ type: "dropped", id });
    this.#pending.clear();
  }

  #enter(phase: ClientPhase): void {
    this.#phase = phase;
    this.#announce();
  }

  #announce(): void {
    this.#effects.push({ type: "status", status: this.status() });
  }

  #silenceMs(): number {
    return this.#heartbeatMs * SILENCE_HEARTBEATS;
  }
}

function wanted({ position, gaps }: Subscription): Partial<Position> {
  if (position === null || gaps >= GAPS_MAX) return {};
  const { epoch, offset } = position;
  return epoch === "" ? { offset } : { epoch, offset };
}
