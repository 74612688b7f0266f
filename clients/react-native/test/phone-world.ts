/** A phone in virtual time: ports that a test plays the platform of, and sockets that it plays the server of. */
import { settled, TestSocket, VirtualClock } from "../../typescript/test/virtual.js";
import { PhoneClient, type NetworkState, type PhoneOptions, type StoragePort } from "../src/index.js";

export class FakeAppState {
  currentState: string = "active";
  readonly listeners = new Set<(state: string) => void>();
  addEventListener(_type: "change", listener: (state: string) => void): { remove(): void } {
    this.listeners.add(listener);
    return { remove: () => void this.listeners.delete(listener) };
  }
  go(state: string): void {
    this.currentState = state;
    for (const listener of [...this.listeners]) listener(state);
  }
}

export class FakeNetInfo {
  state: NetworkState = { type: "wifi", isConnected: true, details: { ipAddress: "10.0.0.2" } };
  readonly listeners = new Set<(state: NetworkState) => void>();
  /** NetInfo tells a new listener how things stand. */
  addEventListener(listener: (state: NetworkState) => void): () => void {
    this.listeners.add(listener);
    listener(this.state);
    return () => void this.listeners.delete(listener);
  }
  tell(state: Partial<NetworkState>): void {
    this.state = { ...this.state, ...state };
    for (const listener of [...this.listeners]) listener(this.state);
  }
}

export class FakeBackground {
  readonly open = new Set<number>();
  expire: () => void = () => undefined;
  private made = 0;
  begin(expired: () => void): number {
    this.expire = expired;
    this.open.add(++this.made);
    return this.made;
  }
  end(task: unknown): void {
    if (!this.open.delete(task as number)) throw new Error("ended twice");
  }
}

/** A disk that is slow: what was asked for is done when the test says so, or at once. */
export class SlowStorage implements StoragePort {
  readonly disk: Map<string, string>;
  readonly waiting: (() => void)[] = [];
  isSlow = false;
  writes = 0;
  constructor(disk = new Map<string, string>()) {
    this.disk = disk;
  }
  getItem(key: string): Promise<string | null> {
    return this.later(() => this.disk.get(key) ?? null);
  }
  setItem(key: string, value: string): Promise<void> {
    this.writes++;
    return this.later(() => void this.disk.set(key, value));
  }
  removeItem(key: string): Promise<void> {
    return this.later(() => void this.disk.delete(key));
  }
  /** Does what waits, the newest first if that is asked for. */
  async work(newestFirst = false): Promise<void> {
    await settled();
    while (this.waiting.length > 0) {
      (newestFirst ? this.waiting.pop() : this.waiting.shift())!();
      await settled();
    }
  }
  private later<T>(run: () => T): Promise<T> {
    if (!this.isSlow) return Promise.resolve().then(run);
    return new Promise((resolve) => this.waiting.push(() => resolve(run())));
  }
}

export interface Phone {
  clock: VirtualClock;
  client: PhoneClient;
  sockets: TestSocket[];
  socket: TestSocket;
  appState: FakeAppState;
  network: FakeNetInfo;
  background: FakeBackground;
  storage: SlowStorage;
}

export function phone(options: Partial<PhoneOptions> = {}, storage = new SlowStorage()): Phone {
  const clock = new VirtualClock();
  const sockets: TestSocket[] = [];
  class Socket extends TestSocket {
    constructor(url: string, protocols: string[]) {
      super(url, protocols);
      sockets.push(this);
    }
  }
  const [appState, network, background] = [new FakeAppState(), new FakeNetInfo(), new FakeBackground()];
  const client = new PhoneClient({
    fetch: null,
    url: "http://server",
    WebSocket: Socket,
    timers: clock,
    now: () => clock.now,
    random: () => 0.5,
    storage,
    appState,
    network,
    ...options,
  });
  return {
    clock,
    client,
    sockets,
    appState,
    network,
    background,
    storage,
    get socket() {
      return sockets[sockets.length - 1]!;
    },
  };
}
