/**
 * Push for an app (`sessile-react-native/push`): the device's token is told to the server at every start and whenever the platform
 * changes it, and taken back when its person signs out. Apart from the core: who sends no pushes carries none of it.
 *
 * Where the token comes from is a port: Firebase's `messaging()`, Expo's notifications, or a few lines of native code. One request at a
 * time goes out, so the newest token is what the server has in the end.
 */
import type { StoragePort } from "./ports.js";

export interface DeviceToken {
  kind: "apns" | "fcm";
  token: string;
  /** APNs: the app came from Xcode and not from the store. */
  sandbox?: boolean;
}

export interface PushPort {
  /** Asks the person and the platform. null: no. */
  getToken(): Promise<DeviceToken | null>;
  /** The platform gave the device another token. Returns what ends the listening. */
  onTokenChange?(listener: (token: DeviceToken) => void): () => void;
}

/** Minutes of the day, over midnight where `start` is more. */
export interface QuietHours {
  start: number;
  end: number;
  timeZone: string;
}

export type FetchLike = (
  url: string,
  init: { method: string; headers: Record<string, string>; body?: string },
) => Promise<{ status: number; json(): Promise<unknown> }>;

export interface PushOptions {
  /** As the client's: `https://host`, or the full `wss://host/v1/ws`. */
  url: string;
  /** The key, or what fetches a fresh one for every request. */
  auth?: string | (() => string | undefined | Promise<string | undefined>);
  port: PushPort;
  /** Keeps the subscription's name, so that a later run can end it. */
  storage: StoragePort;
  storagePrefix?: string;
  /** What the person calls the device. */
  label?: string;
  quietHours?: QuietHours;
  /** What failed when nobody waited for it: after a change of the token. */
  onError?: (error: PushError) => void;
  fetch?: FetchLike;
}

export class PushError extends Error {
  override name = "PushError";
  constructor(
    /** Of the answer; 0: there was none. */
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** `unavailable`: the server sends none of this kind, or the key speaks for no end user. `denied`: the person said no. */
export type PushState = "on" | "denied" | "unavailable";

export class PushRegistration {
  private readonly base: string;
  private readonly key: string;
  private last: Promise<unknown> = Promise.resolve();
  private off: (() => void) | null = null;
  private isOn = false;

  constructor(private readonly options: PushOptions) {
    this.base = options.url.replace(/^ws/, "http").replace(/\/(v1\/ws)?\/*$/, "");
    this.key = `${options.storagePrefix ?? "sessile"}:push`;
  }

  /** At every start of the app with a person signed in; costs two requests. Rejects with PushError where the server did not take it. */
  start(): Promise<PushState> {
    this.isOn = true;
    this.off ??= this.options.port.onTokenChange?.((token) => this.changed(token)) ?? null;
    return this.inTurn(async () => {
      const { kinds } = (await this.request("GET", "")) as { kinds?: unknown };
      if (!Array.isArray(kinds) || kinds.length === 0) return "unavailable";
      const token = await this.options.port.getToken();
      if (token === null) {
        await this.forget();
        return "denied";
      }
      if (!kinds.includes(token.kind)) return "unavailable";
      await this.say(token);
      return "on";
    });
  }

  /** The person signs out, or wants no pushes: call it while the key is still good. */
  stop(): Promise<void> {
    this.isOn = false;
    this.off?.();
    this.off = null;
    return this.inTurn(() => this.forget());
  }

  private changed(token: DeviceToken): void {
    this.inTurn(async () => {
      if (this.isOn) await this.say(token);
    }).catch((error: unknown) => {
      this.options.onError?.(error instanceof PushError ? error : new PushError(0, "failed", String(error)));
    });
  }

  private async say({ kind, token, sandbox }: DeviceToken): Promise<void> {
    if (!this.isOn) return; // stopped meanwhile
    const { label, quietHours: quiet } = this.options;
    const said: Record<string, unknown> = { kind, token };
    if (kind === "apns" && sandbox === true) said["sandbox"] = true;
    if (label !== undefined) said["label"] = label;
    if (quiet !== undefined) said["quiet_hours"] = { start: quiet.start, end: quiet.end, time_zone: quiet.timeZone };
    const before = await this.options.storage.getItem(this.key);
    const { id } = (await this.request("POST", "/subscriptions", said)) as { id?: unknown };
    if (typeof id !== "string") throw new PushError(0, "failed", "The server named no subscription.");
    await this.options.storage.setItem(this.key, id);
    if (before && before !== id) await this.end(before);
  }

  private async forget(): Promise<void> {
    const id = await this.options.storage.getItem(this.key);
    if (!id) return;
    await this.end(id);
    await this.options.storage.removeItem(this.key);
  }

  private async end(id: string): Promise<void> {
    try {
      await this.request("DELETE", `/subscriptions/${encodeURIComponent(id)}`);
    } catch (error) {
      if (!(error instanceof PushError && error.status === 404)) throw error; // it has ended already
    }
  }

  private inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.last.then(work, work);
    this.last = turn.catch(() => undefined);
    return turn;
  }

  private async request(method: string, path: string, body?: unknown): Promise<unknown> {
    const { auth } = this.options;
    const send = this.options.fetch ?? (globalThis as unknown as { fetch: FetchLike }).fetch;
    const key = typeof auth === "function" ? await auth() : auth;
    const headers: Record<string, string> = key === undefined ? {} : { authorization: `Bearer ${key}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    let answer: Awaited<ReturnType<FetchLike>>;
    try {
      const init = body === undefined ? { method, headers } : { method, headers, body: JSON.stringify(body) };
      answer = await send(`${this.base}/v1/push${path}`, init);
    } catch (error) {
      throw new PushError(0, "unreachable", `The server cannot be reached: ${String(error)}`);
    }
    const said = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
    if (answer.status >= 200 && answer.status < 300) return said ?? {};
    const { error = {} } = (said ?? {}) as { error?: { code?: unknown; message?: unknown } };
    const { code = "failed", message = `The server answers ${answer.status}.` } = error;
    throw new PushError(answer.status, String(code), String(message));
  }
}

/** What a message of ours says. */
export interface PushNotice {
  /** Names the notice, however often it comes. */
  id: string;
  cause: "answer" | "tool_call" | "approval";
  session: string;
  response: string;
  offset: number;
}

/**
 * Reads FCM's `data` or the whole payload of APNs; null: it is not ours. It came from outside: a session's name goes into no URL
 * unescaped.
 */
export function pushNotice(data: unknown): PushNotice | null {
  const { sessile = data } = (data ?? {}) as { sessile?: unknown };
  const { id, cause, session, response, offset } = (sessile ?? {}) as Record<string, unknown>;
  if (typeof id !== "string" || typeof session !== "string" || typeof response !== "string") return null;
  const at = Number(offset);
  if (!Number.isSafeInteger(at) || at < 0) return null;
  return { id, cause: cause === "tool_call" || cause === "approval" ? cause : "answer", session, response, offset: at };
}
