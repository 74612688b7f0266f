/** What React Native's start-up gives a program and the bare engine does not. */
import "../../src/globals.js";
import { text, utf8 } from "./bytes.js";

declare function print(text: string): void;

const all = globalThis as unknown as Record<string, unknown>;
const give = (name: string, value: unknown): void => void (all[name] ??= value);

give("global", globalThis);
give("window", globalThis);
give("queueMicrotask", (run: () => void) => void Promise.resolve().then(run));
give("console", { log: print, warn: print, error: print });
give("structuredClone", (value: unknown) => JSON.parse(JSON.stringify(value)) as unknown);
give("performance", { now: () => Date.now() });
give(
  "AbortController",
  class {
    private readonly told: (() => void)[] = [];
    readonly signal = { aborted: false, addEventListener: (_name: string, run: () => void) => void this.told.push(run) };
    abort(): void {
      if (this.signal.aborted) return;
      this.signal.aborted = true;
      for (const run of this.told) run();
    }
  },
);
// What an app has to bring for MessagePack, where its React Native does not.
give(
  "TextEncoder",
  class {
    encodeInto(word: string, into: Uint8Array): void {
      into.set(utf8(word));
    }
  },
);
give(
  "TextDecoder",
  class {
    decode(bytes: Uint8Array): string {
      return text(bytes);
    }
  },
);
give("process", { env: {} });
give(
  "URL",
  class {
    constructor(
      private readonly path: string,
      private readonly base = "",
    ) {}
    toString(): string {
      return `${String(this.base)}/${this.path}`;
    }
  },
);
give("Buffer", { from: (hex: string) => Uint8Array.from(hex.match(/../g) ?? [], (byte) => parseInt(byte, 16)) });
