/**
 * What the SDK needs from the place it runs in, and the defaults it finds there.
 *
 * No DOM and no Node types: a WebSocket is whatever has these members, a storage whatever has `getItem`,
 * `setItem` and `removeItem`, synchronous or not (localStorage, sessionStorage and React Native's AsyncStorage do).
 */
import { SessileError } from "./errors.js";

export interface WebSocketLike {
  binaryType: string;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  /** Set by implementations that know why a handshake was refused; browsers do not tell. */
  refusal?: { httpStatus: number; retryAfterMs: number };
  send(data: string | Uint8Array<ArrayBuffer>): void;
  close(code?: number, reason?: string): void;
}
export type WebSocketClass = new (url: string, protocols: string[]) => WebSocketLike;

type Awaitable<T> = T | Promise<T>;
export interface StorageLike {
  getItem(key: string): Awaitable<string | null>;
  setItem(key: string, value: string): Awaitable<unknown>;
  removeItem(key: string): Awaitable<unknown>;
}

export interface Timers {
  set(run: () => void, ms: number): unknown;
  clear(handle: unknown): void;
}

/** Ends a request. */
export interface Abort {
  readonly signal: { readonly aborted: boolean };
  abort(): void;
}

/** As much of `fetch` as is used. */
export type Fetch = (
  url: string,
  options: {
    method?: string;
    headers: Record<string, string>;
    body?: string;
    redirect: "manual";
    cache: "no-store";
    signal: any;
  },
) => Promise<{ status: number; headers: { get(name: string): string | null }; text(): Promise<string> }>;

export interface Platform {
  WebSocket: WebSocketClass;
  /** For where no WebSocket gets through. null: there is only WebSocket. */
  fetch: Fetch | null;
  timers: Timers;
  /** Unix time in ms. Differences of it are durations, so it should not jump. */
  now: () => number;
  /** Chance in [0, 1). */
  random: () => number;
}

interface Surroundings {
  WebSocket?: WebSocketClass;
  fetch?: Fetch;
  AbortController: new () => Abort;
  crypto?: { getRandomValues(into: Uint32Array<ArrayBuffer>): unknown };
  setTimeout(run: () => void, ms: number): unknown;
  clearTimeout(handle: unknown): void;
  queueMicrotask(run: () => void): void;
}
const here = globalThis as unknown as Surroundings;

export function platform(given: Partial<Platform>): Platform {
  const WebSocket = given.WebSocket ?? here.WebSocket;
  if (WebSocket === undefined) {
    throw new SessileError("no_websocket", "There is no WebSocket here: pass one, e.g. that of the package `ws`.");
  }
  return {
    WebSocket,
    fetch: given.fetch === undefined && here.fetch ? (url, options) => here.fetch!(url, options) : (given.fetch ?? null),
    timers: given.timers ?? { set: (run, ms) => here.setTimeout(run, ms), clear: (handle) => here.clearTimeout(handle) },
    now: given.now ?? Date.now,
    random: given.random ?? defaultRandom(),
  };
}

function defaultRandom(): () => number {
  const { crypto } = here;
  if (crypto === undefined) return Math.random; // some phone runtimes
  const one = new Uint32Array(1);
  return () => {
    crypto.getRandomValues(one);
    return one[0]! / 2 ** 32;
  };
}

export function aborter(): Abort {
  return new here.AbortController();
}

/** Report what a listener threw as uncaught, without letting it into our own work. */
export function report(error: unknown): void {
  here.queueMicrotask(() => {
    throw error;
  });
}

export function memoryStorage(): StorageLike {
  const map = new Map<string, string>();
  return {
    getItem: (key) => map.get(key) ?? null,
    setItem: (key, value) => map.set(key, value),
    removeItem: (key) => map.delete(key),
  };
}
