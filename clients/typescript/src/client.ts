/**
 * The shell around the core: one WebSocket at a time, one timer, promises for commands, sessions by name.
 *
 * It carries out what core.ts decides, in order, and stores what must survive the program: each open session's
 * position with its view, and the commands that were not answered yet (so that a message written in a tunnel is sent
 * though the app was killed; its id makes a repeat harmless, for 24 h). It does NOT decide about protocol or time.
 */
import { pack, unpack } from "./codec.js";
import { Core, type Effect, type Status } from "./core.js";
import { Emitter } from "./emitter.js";
import {
  ClosedError,
  CommandError,
  DecodeError,
  ExpiredError,
  fromWire,
  OverflowError,
  SessileError,
  StoppedError,
  StorageError,
  TimeoutError,
} from "./errors.js";
import { platform, type Platform, type StorageLike, type WebSocketLike } from "./platform.js";
import { SUBPROTOCOLS } from "./protocol.js";
import type { ClientFrame, CommandFrame, Encoding, Knowledge, OkFrame, Page, SessionInfo, SessionMatch } from "./protocol.js";
import { Session } from "./session.js";
import { ulids } from "./ulid.js";
import type { Ways, WaysEnds } from "./ways.js";

export interface ClientOptions extends Partial<Platform> {
  /** Where the server is: `https://host`, `host:port` (an open line), or the full `wss://host/v1/ws`. */
  url: string;
  /** The key, or what fetches a fresh one for every connection. */
  auth?: string | (() => string | undefined | Promise<string | undefined>);
  /** `"json"`, or for smaller frames MessagePack: `import * as msgpack from "@msgpack/msgpack"`, then `encoding: msgpack`. */
  encoding?: Encoding;
  /** Names this device to the server. */
  device?: string;
  /** Bytes are dear here: text comes up to 200 ms later, in fewer frames, compressed where the WebSocket can. */
  slowLink?: boolean;
  /** Keeps positions, views and unanswered commands. Give each tab its own (sessionStorage). Without one, memory must do. */
  storage?: StorageLike;
  /** What storage keys begin with. */
  storagePrefix?: string;
  /** How many commands may wait for an answer at once. */
  unansweredMax?: number;
}

export interface CommandOptions {
  /** Give up waiting after this long (TimeoutError; the outcome is unknown then). Default: wait, over reconnects too. */
  timeoutMs?: number;
}

export interface ClientEvents {
  status: Status;
  goaway: { reason: string; afterMs: number };
  /** The commands without an answer changed. */
  unanswered: CommandFrame[];
  /** What has no caller to throw at: errors about the connection, the storage, or a command of an earlier run. */
  error: SessileError;
}

interface Waiting {
  resolve(answer: OkFrame): void;
  reject(error: SessileError): void;
  timer: unknown;
}

/** Asking again costs nothing, so these are not kept over a restart of the program. */
const FLEETING = new Set(["session.get", "session.list", "session.search", "session.warm"]);

export class SessileClient extends Emitter<ClientEvents> {
  readonly #platform: Platform;
  readonly #core: Core;
  readonly #sessions = new Map<string, Session>();
  readonly #waiting = new Map<string, Waiting>();
  readonly #encoding: Encoding;
  readonly #prefix: string;

  /** The connection, whichever way it goes. */
  #line: { send(frames: ClientFrame[]): void; close(code: number, reason: string): void } | null = null;
  /** What to do where WebSockets do not get through. It is loaded when a connection is first wanted. */
  #ways: Ways | null = null;
  #isLoading = false;
  #dialled = 0;
  #timer: unknown = null;
  #timerAt: number | null = null;
  #pumping = false;
  #touched = new Set<Session>();
  /** What an earlier run left unanswered: nothing is sent, and nothing stored over it, before it was read. */
  #outbox: "unread" | "reading" | "read" = "unread";
  #isWanted = false;
  #unansweredIds = "";
  #status_: Status;

  constructor(private readonly options: ClientOptions) {
    super();
    this.#platform = platform(options);
    const { encoding = "json" } = options;
    if (encoding !== "json" && typeof encoding === "string")
      throw new SessileError("encoding", 'encoding: "json", or the package @msgpack/msgpack');
    this.#encoding = encoding;
    this.#prefix = `${options.storagePrefix ?? "sessile"}:`;
    this.#core = new Core(ulids(this.#platform.random), this.#platform.random, options.device, options.slowLink ? 200 : 0);
    this.#status_ = this.#core.status();
  }

  // -- the connection ----------------------------------------------------------------------------------------

  get status(): Status {
    return this.#status_;
  }

  /** Begin to connect, and keep at it. Commands and opening a session do so by themselves. */
  connect(): void {
    this.#isWanted = true;
    if (this.#outbox === "read") this.#drive((now) => this.#core.start(now));
    else this.restore();
  }

  /** Take up the commands of an earlier run without connecting: for a program that starts offline or in the background. */
  restore(): void {
    if (this.#outbox !== "unread") return;
    this.#outbox = "reading";
    this.#load("outbox", (text) => {
      this.#outbox = "read";
      this.#restoreOutbox(text);
      this.#drive((now) => this.#isWanted && this.#core.start(now));
    });
  }

  /** For phones and closing pages: hang up, stop every timer and store what must be kept. */
  suspend(): void {
    this.#isWanted = false;
    this.#drive(() => this.#core.suspend());
    this.save();
  }

  /** Back in the foreground, or a network came up. Harmless at any time. */
  resume(): void {
    if (this.#outbox !== "read") return this.connect();
    this.#drive((now) => this.#core.resume(now));
  }

  /**
   * The network is another one, or has given us another address: the socket is given up at once and resumed by cursor, instead of
   * after 35 s of silence. Also for a name that has moved.
   */
  reconnect(): void {
    this.#ways?.forget();
    this.#drive((now) => this.#core.redial(now));
  }

  /** For good. Unanswered commands are rejected with ClosedError. */
  close(): void {
    this.#isWanted = false;
    this.save();
    this.#drive(() => this.#core.stop());
    for (const session of this.#sessions.values()) session.ended(new ClosedError());
    this.#sessions.clear();
  }

  /** Store every open session now instead of in a moment. */
  save(): void {
    for (const session of this.#sessions.values()) session.save();
  }

  /** Commands that have no answer yet, oldest first; those of an earlier run that the storage kept are among them. */
  get unanswered(): CommandFrame[] {
    return this.#core.unanswered();
  }

  // -- commands ----------------------------------------------------------------------------------------------

  /** Send any command. Resolves with its `ok`; rejects with what the server said (CommandError) or why it could not. */
  command(type: string, fields: { [key: string]: unknown } = {}, options: CommandOptions = {}): Promise<OkFrame> {
    return new Promise((resolve, reject) => {
      if (this.#status_.phase === "stopped") return reject(this.#stopError());
      if (this.#waiting.size >= (this.options.unansweredMax ?? 256)) {
        return reject(new OverflowError("Too many commands wait for an answer."));
      }
      this.#wake();
      this.#drive((now) => {
        const id = this.#core.command(now, { ...fields, type });
        let timer: unknown = null;
        if (options.timeoutMs !== undefined) {
          timer = this.#platform.timers.set(() => {
            this.#waiting.delete(id);
            this.#drive(() => this.#core.forget(id));
            reject(new TimeoutError(`${type} was not answered in ${options.timeoutMs} ms.`));
          }, options.timeoutMs);
        }
        this.#waiting.set(id, { resolve, reject, timer });
      });
    });
  }

  /** A new session, open for reading from its first event on. */
  async create(
    fields: {
      session?: string;
      model?: string;
      instructions?: string;
      tools?: unknown[];
      metadata?: object;
      title?: string;
      knowledge?: Knowledge;
    } = {},
    options?: CommandOptions,
  ): Promise<Session> {
    const answer = await this.command("session.create", fields, options);
    const session = this.session(String(answer["session"]));
    session.open({ epoch: String(answer["epoch"] ?? ""), offset: 0 });
    return session;
  }

  /** All sessions, newest first, page by page. */
  async *list(limit = 100): AsyncGenerator<SessionInfo, void, undefined> {
    let after: string | undefined;
    for (;;) {
      const page: Page<SessionInfo> = await this.page({ limit, ...(after === undefined ? {} : { after }) });
      yield* page.data;
      if (!page.has_more || !page.last_id) return;
      after = page.last_id;
    }
  }

  /** One page of the list. */
  async page(fields: { limit?: number; after?: string } = {}, options?: CommandOptions): Promise<Page<SessionInfo>> {
    const { data, has_more, last_id } = await this.command("session.list", fields, options);
    return { data: data as SessionInfo[], has_more: Boolean(has_more), last_id: last_id as string | null };
  }

  /** Sessions in which every word of `q` stands. A page may have more behind it and yet nothing in it: each looks at so many. */
  async search(q: string, fields: { limit?: number; after?: string } = {}, options?: CommandOptions): Promise<Page<SessionMatch>> {
    const { data, has_more, last_id } = await this.command("session.search", { q, ...fields }, options);
    return { data: data as SessionMatch[], has_more: Boolean(has_more), last_id: last_id as string | null };
  }

  /** The handle of a session; the same one each time. Reading begins with its `open()`. */
  session(id: string): Session {
    let session = this.#sessions.get(id);
    if (session === undefined) this.#sessions.set(id, (session = new Session(id, this.#sessionLink(id))));
    return session;
  }

  // -- inside ------------------------------------------------------------------------------------------------

  #sessionLink(id: string): ConstructorParameters<typeof Session>[1] {
    const key = `session:${id}`;
    return {
      now: this.#platform.now,
      timers: this.#platform.timers,
      command: (type, fields, options) => this.command(type, { ...fields, session: id }, options),
      follow: (position) => {
        this.#wake();
        this.#drive((now) => this.#core.follow(now, id, position));
      },
      unfollow: () => this.#drive((now) => this.#core.unfollow(now, id)),
      load: (use) => this.#load(key, use),
      store: (text) => this.#store(key, text),
      keeps: this.options.storage !== undefined,
    };
  }

  #wake(): void {
    const { phase, retryAt } = this.#status_;
    if (phase === "stopped") throw this.#stopError();
    if (phase === "offline" && retryAt === null) this.connect();
    else this.restore();
  }

  #drive(step: (now: number) => unknown): void {
    step(this.#platform.now());
    this.#pump();
  }

  #pump(): void {
    if (this.#pumping) return; // a listener called us: the loop below goes on with it
    this.#pumping = true;
    for (let effects = this.#core.drain(); effects.length > 0 || this.#touched.size > 0; effects = this.#core.drain()) {
      for (const effect of effects) this.#carryOut(effect);
      const touched = [...this.#touched];
      this.#touched.clear();
      for (const session of touched) session.settle();
    }
    this.#pumping = false;
    this.#schedule();
    this.#storeOutbox();
  }

  #carryOut(effect: Effect): void {
    switch (effect.type) {
      case "connect":
        return this.#dial();
      case "send":
        return this.#line?.send(effect.frames);
      case "close":
        return this.#hangUp(effect.code, effect.reason);
      case "status":
        if (effect.status.phase === "ready" && this.#status_.phase !== "ready") this.#ways?.ready();
        return this.#tell(effect.status);
      case "goaway":
        return this.emit("goaway", effect);
      case "complaint":
        return this.emit("error", new CommandError(effect.error));
      case "ok":
        return this.#answer(effect.answer.id)?.resolve(effect.answer);
      case "refused":
        return this.#fail(effect.id, fromWire(effect.error));
      case "expired":
        return this.#fail(effect.frame.id, new ExpiredError(effect.frame));
      case "dropped":
        return this.#answer(effect.id)?.reject(this.#stopError());
      default: {
        const name = effect.type === "event" ? effect.frame.session : effect.session;
        const session = this.#sessions.get(name);
        if (session === undefined) return;
        session.take(effect);
        this.#touched.add(session);
      }
    }
  }

  #tell(status: Status): void {
    this.#status_ = { ...status, ...this.#ways?.found };
    this.emit("status", this.#status_);
  }

  #fail(id: string, error: SessileError): void {
    const waiting = this.#answer(id);
    if (waiting === undefined) this.emit("error", error);
    else waiting.reject(error);
  }

  #answer(id: string): Waiting | undefined {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (waiting?.timer !== null) this.#platform.timers.clear(waiting?.timer);
    return waiting;
  }

  #stopError(): SessileError {
    const { error, closeCode, httpStatus } = this.#status_;
    if (error === undefined) return new ClosedError();
    return new StoppedError({ message: error.message, ...(closeCode && { closeCode }), ...(httpStatus && { httpStatus }) });
  }

  #schedule(): void {
    const due = this.#core.deadline();
    if (due === this.#timerAt) return;
    if (this.#timerAt !== null) this.#platform.timers.clear(this.#timer);
    this.#timerAt = due;
    if (due === null) return;
    this.#timer = this.#platform.timers.set(
      () => {
        this.#timerAt = null;
        this.#drive((now) => this.#core.tick(now));
      },
      Math.max(0, Math.ceil(due - this.#platform.now())),
    );
  }

  // -- the socket --------------------------------------------------------------------------------------------

  #loadWays(): void {
    if (this.#isLoading || this.#platform.fetch === null) return;
    this.#isLoading = true;
    const ends: WaysEnds = {
      drive: (step) => this.#drive((now) => step(this.#core, now)),
      changed: () => this.#tell(this.#core.status()),
      ended: () => {
        this.#line = null;
        this.#dialled++;
      },
      open: () => this.#webSocket(),
      encoding: this.#encoding,
    };
    import("./ways.js").then(
      ({ Ways }) => {
        const ways = (this.#ways = new Ways(this.#platform, this.options.url, ends));
        if (this.#status_.phase === "ready") ways.ready();
        else if (this.#line !== null) ways.dialled(undefined);
      },
      (error: unknown) => this.emit("error", new SessileError("no_ways", `HTTP in place of WebSocket: ${String(error)}`)),
    );
  }

  #dial(): void {
    this.#loadWays();
    const number = ++this.#dialled;
    const { auth } = this.options;
    const open = (key: string | undefined): void => {
      if (number === this.#dialled) this.#connectBy(number, key);
    };
    if (typeof auth !== "function") return open(auth);
    new Promise<string | undefined>((resolve) => resolve(auth())).then(open, (error: unknown) => {
      if (number !== this.#dialled) return;
      this.emit("error", new SessileError("auth", `The key could not be had: ${String(error)}`, true));
      this.#drive((now) => this.#core.closed(now, 1006, "no key"));
    });
  }

  #connectBy(number: number, key: string | undefined): void {
    const isCurrent = (): boolean => number === this.#dialled;
    const line = this.#ways?.dialled(key);
    if (line) {
      this.#line = line;
      return this.#drive((now) => this.#core.opened(now, undefined));
    }
    const socket = this.#webSocket();
    this.#line = {
      send: (frames) => socket.send(pack(this.#encoding, frames) as string),
      close: (code, reason) => {
        try {
          socket.close(code, reason);
        } catch {
          socket.close(); // browsers let programs say only 1000 and 3000–4999
        }
      },
    };
    socket.onopen = () => isCurrent() && this.#drive((now) => this.#core.opened(now, key));
    socket.onmessage = (event: { data: unknown }) => isCurrent() && this.#received(event.data);
    socket.onerror = () => undefined; // the close that follows tells more
    socket.onclose = (event: { code: number; reason: unknown }) => {
      if (!isCurrent()) return;
      this.#line = null;
      this.#dialled++;
      this.#drive((now) => {
        const { refusal } = socket;
        const reason = String(event.reason ?? "");
        if (this.#ways?.lost(event.code, reason, refusal)) this.#core.closed(now, 1006, reason);
        else if (refusal !== undefined) this.#core.refused(now, refusal.httpStatus, refusal.retryAfterMs);
        else this.#core.closed(now, event.code, reason);
      });
    };
  }

  #webSocket(): WebSocketLike {
    const socket = new this.#platform.WebSocket(webSocketUrl(this.options), [SUBPROTOCOLS[this.#encoding === "json" ? "json" : "msgpack"]]);
    socket.binaryType = "arraybuffer";
    return socket;
  }

  #received(data: unknown): void {
    this.#drive((now) => {
      let decoded;
      try {
        decoded = unpack(this.#encoding, data);
      } catch (error) {
        if (!(error instanceof DecodeError)) throw error;
        return this.#core.garbled(error.message, error.closeCode);
      }
      this.#core.received(now, decoded.frames, decoded.bytes);
    });
  }

  #hangUp(code: number, reason: string): void {
    this.#dialled++; // whatever the old socket says from now on is not heard
    const line = this.#line;
    this.#line = null;
    if (line === null) return;
    this.#ways?.left();
    line.close(code, reason.slice(0, 100));
  }

  // -- storage -----------------------------------------------------------------------------------------------

  #load(key: string, use: (text: string | null) => void): void {
    const failed = (error: unknown): void => {
      this.emit("error", new StorageError(`Reading ${key} failed.`, error));
      use(null);
    };
    let value: string | null | Promise<string | null>;
    try {
      value = this.options.storage?.getItem(this.#prefix + key) ?? null;
    } catch (error) {
      return failed(error);
    }
    if (value instanceof Promise) value.then(use, failed);
    else use(value); // at once, so that a page shows what it had with its first paint
  }

  #store(key: string, text: string | null): void {
    const { storage } = this.options;
    if (storage === undefined) return;
    const failed = (error: unknown): void => this.emit("error", new StorageError(`Writing ${key} failed.`, error));
    try {
      const name = this.#prefix + key;
      const done = text === null ? storage.removeItem(name) : storage.setItem(name, text);
      if (done instanceof Promise) done.catch(failed);
    } catch (error) {
      failed(error);
    }
  }

  #storeOutbox(): void {
    if (this.#outbox !== "read") return;
    const unanswered = this.#core.unanswered();
    const ids = unanswered.map((frame) => frame.id).join();
    if (ids === this.#unansweredIds) return;
    this.#unansweredIds = ids;
    const kept = unanswered.filter((frame) => !FLEETING.has(frame.type));
    this.#store("outbox", kept.length === 0 ? null : JSON.stringify(kept));
    this.emit("unanswered", unanswered);
  }

  #restoreOutbox(text: string | null): void {
    if (text === null) return;
    try {
      this.#core.restore(JSON.parse(text) as CommandFrame[]);
    } catch (error) {
      this.emit("error", new StorageError("The stored outbox is damaged.", error));
    }
  }
}

function webSocketUrl({ url, slowLink }: ClientOptions): string {
  const isBare = /^(\[[\da-f:.]+\]|[^\s:/?#@]+):\d+\/?$/i.test(url);
  const [, scheme = "", rest = ""] = /^(https?|wss?):\/\/(.+)$/.exec(isBare ? `ws://${url}` : url) ?? [];
  if (scheme === "") throw new SessileError("bad_url", `Not a URL of a server: ${url}`);
  const secure = scheme === "https" || scheme === "wss";
  const isServer = scheme.startsWith("http") || /^[^/?#]+\/*$/.test(rest); // and not the socket's own address
  const path = isServer ? `${rest.replace(/\/+$/, "").replace(/\/v1\/ws$/, "")}/v1/ws` : rest;
  const query = slowLink ? `${path.includes("?") ? "&" : "?"}compress=deflate` : "";
  return `${secure ? "wss" : "ws"}://${path}${query}`;
}
