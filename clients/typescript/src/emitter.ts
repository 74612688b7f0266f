/** Listeners by name. A listener that throws is reported as uncaught and hinders nobody. */
import { report } from "./platform.js";

export class Emitter<Events extends object> {
  readonly #listeners = new Map<keyof Events, Set<(payload: never) => void>>();

  /** Returns what ends the listening. */
  on<Name extends keyof Events>(name: Name, listener: (payload: Events[Name]) => void): () => void {
    let set = this.#listeners.get(name);
    if (set === undefined) this.#listeners.set(name, (set = new Set()));
    const entry = (payload: Events[Name]): void => listener(payload); // the same function may listen twice
    set.add(entry);
    return () => void set.delete(entry);
  }

  protected emit<Name extends keyof Events>(name: Name, payload: Events[Name]): void {
    for (const listener of [...(this.#listeners.get(name) ?? [])] as ((payload: Events[Name]) => void)[]) {
      try {
        listener(payload);
      } catch (error) {
        report(error);
      }
    }
  }
}
