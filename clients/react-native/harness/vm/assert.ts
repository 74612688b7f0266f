/** `node:assert/strict`, as far as the tests use it. */
function same(one: unknown, other: unknown): boolean {
  if (Object.is(one, other)) return true;
  if (typeof one !== "object" || typeof other !== "object" || one === null || other === null) return false;
  if (Object.getPrototypeOf(one) !== Object.getPrototypeOf(other)) return false;
  if (one instanceof Map) return same([...one], [...(other as Map<unknown, unknown>)]);
  if (one instanceof Set) return same([...one], [...(other as Set<unknown>)]);
  const [keys, others] = [Object.keys(one), Object.keys(other)];
  const at = (from: object, key: string): unknown => (from as Record<string, unknown>)[key];
  return keys.length === others.length && keys.every((key) => Object.hasOwn(other, key) && same(at(one, key), at(other, key)));
}
const told = (value: unknown): string => (value instanceof Error ? String(value) : (JSON.stringify(value) ?? String(value))).slice(0, 600);

function fail(message: string): never {
  throw new Error(message);
}
function check(holds: boolean, why: unknown, otherwise: () => string): void {
  if (!holds) fail(why === undefined ? otherwise() : `${String(why)}: ${otherwise()}`);
}

const assert = {
  ok: (value: unknown, why?: unknown) => check(Boolean(value), why, () => `${told(value)} does not hold`),
  equal: (actual: unknown, wanted: unknown, why?: unknown) => check(Object.is(actual, wanted), why, () => `${told(actual)} is not ${told(wanted)}`),
  notEqual: (actual: unknown, other: unknown, why?: unknown) => check(!Object.is(actual, other), why, () => `is ${told(other)}`),
  deepEqual: (actual: unknown, wanted: unknown, why?: unknown) => check(same(actual, wanted), why, () => `${told(actual)} is not ${told(wanted)}`),
  match: (text: string, pattern: RegExp, why?: unknown) => check(pattern.test(text), why, () => `${told(text)} does not match ${String(pattern)}`),
  rejects: async (promise: Promise<unknown>, is: RegExp | ((error: unknown) => unknown)) => {
    const error = await promise.then(
      () => fail("it resolved"),
      (error: unknown) => error,
    );
    check(typeof is === "function" ? Boolean(is(error)) : is.test(String(error)), undefined, () => `${told(error)} is another error`);
  },
  fail,
};
export default assert;
