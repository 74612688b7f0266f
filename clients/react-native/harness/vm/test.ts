/** `node:test` in an engine: tests one after the other, a line of JSON for each, and one at the end that says how many. */
declare function print(text: string): void;

type Test = { name: string; run: () => unknown };
const tests: Test[] = [];

export function test(name: string, run: () => unknown): void {
  if (tests.push({ name, run }) === 1) setImmediate(() => void all());
}

async function all(): Promise<void> {
  for (const { name, run } of tests) {
    try {
      await run();
      print(JSON.stringify({ name, ok: true }));
    } catch (error) {
      print(JSON.stringify({ name, ok: false, error: String((error as Error)?.stack ?? error).slice(0, 2_000) }));
    }
  }
  print(JSON.stringify({ done: tests.length }));
}
