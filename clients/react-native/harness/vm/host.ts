/**
 * React Native's native half as another process plays it: what JavaScript asks for is a line of JSON on the output, and what
 * happens comes as calls of `__heard` on the input. For `bench.clients.phone_cycles`, whose sockets are real.
 */
declare function print(text: string): void;

type Told = { [name: string]: unknown };
let emit: (name: string, event: object) => void = () => undefined;
const waiting = new Map<number, (value: unknown) => void>();
const timers = new Map<number, () => void>();
let made = 0;

export const tell = (what: Told): void => print(`\u0001${JSON.stringify(what)}`);
export function emitsBy(how: typeof emit): void {
  emit = how;
}

function asked<T>(what: Told): Promise<T> {
  const n = ++made;
  return new Promise((resolve) => {
    waiting.set(n, resolve as (value: unknown) => void);
    tell({ ...what, n });
  });
}

/** The platform's disk. */
export const AsyncStorage = {
  getItem: (key: string) => asked<string | null>({ is: "get", key }),
  setItem: (key: string, value: string) => asked<void>({ is: "set", key, value }),
  removeItem: (key: string) => asked<void>({ is: "set", key, value: null }),
};

export const Timing = {
  set(run: () => void, ms: number): number {
    timers.set(++made, run);
    tell({ is: "timer", id: made, ms });
    return made;
  },
  clear(id: unknown): void {
    timers.delete(id as number);
  },
};

export const RCTWebSocket = {
  connect: (url: string, protocols: string[] | null, _options: object, id: number) => tell({ is: "connect", id, url, protocols: protocols ?? [] }),
  send: (data: string, id: number) => tell({ is: "send", id, text: data }),
  sendBinary: (base64: string, id: number) => tell({ is: "send", id, base64 }),
  ping: (id: number) => tell({ is: "ping", id }),
  close: (code: number, reason: string, id: number) => tell({ is: "close", id, code, reason }),
  addListener(): void {},
  removeListeners(): void {},
};

/** What the other process says. `program` is told what is not the platform's. */
export function hear(program: (told: Told) => void): void {
  (globalThis as Told)["__heard"] = (told: Told): void => {
    const { is, n, value, id, ...event } = told;
    if (is === "answer") {
      waiting.get(n as number)?.(value);
      waiting.delete(n as number);
    } else if (is === "timer") {
      const run = timers.get(id as number);
      timers.delete(id as number);
      run?.();
    } else if (is === "socket") emit(String(event["event"]), { id, ...event });
    else program(told);
  };
}
