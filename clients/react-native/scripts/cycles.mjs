/** The app of `bench.clients.phone_cycles` as one line for the engine's prompt, on the standard output. */
import { bundle, engine } from "./hermes.mjs";

const code = await bundle("harness/vm/cycles.ts", { instead: { "native.js": "host.ts", TurboModuleRegistry: "turbo.ts" } });
process.stdout.write(JSON.stringify({ engine, line: `void (0, eval)(${JSON.stringify(code)});` }));
