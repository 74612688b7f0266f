/**
 * The client of a phone: the SDK's, told when the app goes and comes, and when the network does.
 *
 *  - In the background there is no socket and no timer. If commands are under way and the platform gives a moment, they are
 *    waited for; then the socket is closed, and what is to be kept is on the disk before the moment is given back.
 *  - In the foreground it connects at once and resumes by cursor. `inactive` is the foreground.
 *  - Without a network nothing is dialled. With a new address the old socket is dead, though it does not know it yet: it is
 *    replaced at once instead of after 35 s of silence.
 *  - A position is stored after what was shown, never before (storage.ts).
 */
import { platform, SessileClient, type ClientOptions, type StorageLike } from "sessile";
import { networkName, type AppStatePort, type BackgroundPort, type NetworkPort, type NetworkState, type StoragePort } from "./ports.js";
import { phoneWebSocket } from "./socket.js";
import { OrderedStorage, ShownFirst } from "./storage.js";

export interface PhoneOptions extends ClientOptions {
  /** AsyncStorage, or what else outlives the app. */
  storage: StoragePort;
  /** React Native's `AppState`. */
  appState: AppStatePort;
  /** NetInfo's default export. Without it a lost network is found by silence. */
  network?: NetworkPort;
  /** Time after the app went away, for commands under way. Without it the socket is closed at once. */
  background?: BackgroundPort;
  /** For so long at most commands under way are waited for in the background. */
  graceMs?: number;
}

const GRACE_MS = 5_000;

export class PhoneClient extends SessileClient {
  readonly #ordered: OrderedStorage;
  readonly #gate: ShownFirst;
  readonly #stops: (() => void)[] = [];
  #isInFront = false;
  #hasNetwork = true;
  #network: string | null = null;
  #isUp = false;
  /** Ends the moment that commands under way have in the background. */
  #leave: (() => void) | null = null;

  constructor(private readonly phone: PhoneOptions) {
    const prefix = `${phone.storagePrefix ?? "sessile"}:session:`;
    const ordered = new OrderedStorage(phone.storage);
    const gate = new ShownFirst((id, text) => ordered.setItem(prefix + id, text));
    const idOf = (key: string): string | null => (key.startsWith(prefix) ? key.slice(prefix.length) : null);
    const storage: StorageLike = {
      getItem: (key) => ordered.getItem(key),
      setItem: (key, text) => {
        const id = idOf(key);
        return id === null ? ordered.setItem(key, text) : gate.store(id, this.session(id).view.version, text);
      },
      removeItem: (key) => {
        gate.drop(idOf(key) ?? "");
        return ordered.removeItem(key);
      },
    };
    const { WebSocket } = platform(phone);
    super({ ...phone, storage, WebSocket: phoneWebSocket(WebSocket) });
    this.#ordered = ordered;
    this.#gate = gate;
  }

  /** Begin: follow the app and the network, and connect if the app is in front. `close` ends it. */
  start(): this {
    if (this.#stops.length > 0) return this;
    const { appState, network } = this.phone;
    this.#isInFront = isFront(appState.currentState);
    if (!this.#isInFront) this.suspend();
    this.restore();
    const subscription = appState.addEventListener("change", (state) => this.#appChanged(isFront(state)));
    this.#stops.push(() => subscription.remove());
    if (network !== undefined) this.#stops.push(network.addEventListener((state) => this.#networkChanged(state)));
    this.#settle();
    return this;
  }

  /** For good: no listener stays. */
  override close(): void {
    this.#leave?.();
    for (const stop of this.#stops.splice(0)) stop();
    super.close();
  }

  /** Somebody draws this session: its position is stored only after `shown`. Returns what ends it. The hooks do both. */
  draws(session: string): () => void {
    return this.#gate.watch(session);
  }

  /** This version of the session's view is on the screen. */
  shown(session: string, version: number): void {
    this.#gate.shown(session, version);
  }

  /** Resolves when all that was to be kept is in the storage. */
  stored(): Promise<void> {
    return this.#ordered.settled();
  }

  // -- the rules ---------------------------------------------------------------------------------------------

  #appChanged(isInFront: boolean): void {
    if (isInFront === this.#isInFront) return;
    this.#isInFront = isInFront;
    if (isInFront) this.#leave?.();
    else this.#goAway();
    this.#settle();
  }

  #networkChanged(state: NetworkState): void {
    this.#hasNetwork = state.isConnected !== false;
    if (this.#hasNetwork) {
      const before = this.#network;
      this.#network = networkName(state);
      if (before !== null && before !== this.#network) this.reconnect(); // what comes to the old address comes to nobody
    }
    this.#settle();
  }

  /** Up or down, as app and network have it. */
  #settle(): void {
    const isUp = this.#isInFront && this.#hasNetwork;
    if (isUp && !this.#isUp) {
      this.#isUp = true;
      if (this.status.phase !== "stopped") this.resume();
    } else if (!isUp && this.#leave === null) this.#down();
  }

  #down(): void {
    this.#isUp = false;
    this.suspend();
  }

  /** Commands under way may have their moment; then the socket is closed, and the disk has the rest of the moment. */
  #goAway(): void {
    const { background, graceMs = GRACE_MS } = this.phone;
    if (background === undefined) return;
    this.save();
    const { timers } = platform(this.phone);
    let task: { is: unknown } | null = null;
    let timer: unknown = null;
    let isLeft = false;
    const off = this.on("unanswered", (frames) => frames.length === 0 && leave());
    const giveBack = (): void => {
      if (task !== null) background.end(task.is);
      task = null;
    };
    const leave = (): void => {
      if (isLeft) return;
      isLeft = true;
      this.#leave = null;
      off();
      if (timer !== null) timers.clear(timer);
      if (!this.#isInFront) this.#down();
      void this.stored().then(giveBack);
    };
    task = {
      is: background.begin(() => {
        leave();
        giveBack(); // or the platform ends the app
      }),
    };
    if (isLeft) return giveBack();
    this.#leave = leave;
    if (this.status.phase !== "ready" || this.unanswered.length === 0) return leave();
    timer = timers.set(leave, graceMs);
  }
}

/** `inactive` (the app switcher, a call that rings) is the front: what is seen goes on. */
function isFront(state: string | null): boolean {
  return state !== "background";
}
