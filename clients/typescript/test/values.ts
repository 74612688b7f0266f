/** The little language of the conformance cases' values (docs/protocol/README.md, "Values"). */
import assert from "node:assert/strict";

export type Names = Map<string, unknown>;
type Given = Record<string, unknown>;
const NAME = /^\$([A-Z0-9_]+)$/;
const ULID = /^[0-7][0-9A-HJKMNP-TV-Z]{25}$/;

let made = 0;
function fresh(kind: string): string {
  made++;
  return kind === "ulid" ? `01K7${String(made).padStart(22, "0")}` : `ses_${String(made).padStart(8, "0")}`;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** The value that a step sends. `undefined` means: leave the field out. */
export function played(value: unknown, names: Names, given: Given): unknown {
  if (typeof value === "string") {
    if (value.startsWith("$$")) return value.slice(1);
    const name = NAME.exec(value)?.[1];
    if (name === undefined) return value;
    if (!names.has(name)) {
      assert.ok(name in given, `$${name} is played before it has a value`);
      const first = given[name];
      names.set(name, isRecord(first) && "$new" in first ? fresh(String(first["$new"])) : first);
    }
    return names.get(name);
  }
  if (Array.isArray(value)) return value.map((entry) => played(entry, names, given));
  if (!isRecord(value)) return value;
  if ("$any" in value) {
    const eg = played(value["eg"], names, given);
    if (typeof value["as"] === "string") names.set(value["as"], eg);
    return eg;
  }
  if ("$opt" in value) return played(value["$opt"], names, given);
  if ("$absent" in value) return undefined;
  if ("$add" in value) return sum(value["$add"], names, given);
  if ("$range" in value) return (value["$range"] as number[])[0];
  if ("$one_of" in value) return played((value["$one_of"] as unknown[])[0], names, given);
  if ("$repeat" in value) return String(value["$repeat"]).repeat(Number(value["times"]));
  if ("$nest" in value) {
    let nested: unknown = [];
    for (let i = 1; i < Number(value["$nest"]); i++) nested = [nested];
    return nested;
  }
  const object: Record<string, unknown> = {};
  for (const [key, entry] of Object.entries(value)) {
    const out = played(entry, names, given);
    if (out !== undefined) object[key] = out;
  }
  return object;
}

function sum(terms: unknown, names: Names, given: Given): number {
  return (terms as unknown[]).reduce<number>((total, term) => total + Number(played(term, names, given)), 0);
}

const TYPES: Record<string, (value: unknown) => boolean> = {
  int: (value) => Number.isSafeInteger(value),
  number: (value) => typeof value === "number",
  string: (value) => typeof value === "string",
  ulid: (value) => typeof value === "string" && ULID.test(value),
  bool: (value) => typeof value === "boolean",
  object: isRecord,
  array: Array.isArray,
  any: (value) => value !== undefined,
};

/** Fails unless `actual` is what `pattern` describes; names met first here take the value that arrived. */
export function matches(pattern: unknown, actual: unknown, names: Names, given: Given, path = "$"): void {
  if (typeof pattern === "string") {
    const name = pattern.startsWith("$$") ? undefined : NAME.exec(pattern)?.[1];
    if (name !== undefined && !names.has(name)) {
      assert.notEqual(actual, undefined, `${path}: missing`);
      names.set(name, actual);
      return;
    }
    assert.deepEqual(actual, played(pattern, names, given), path);
  } else if (Array.isArray(pattern)) {
    assert.ok(Array.isArray(actual), `${path}: not an array: ${JSON.stringify(actual)}`);
    assert.equal(actual.length, pattern.length, `${path}: length of ${JSON.stringify(actual)}`);
    pattern.forEach((entry, index) => matches(entry, actual[index], names, given, `${path}[${index}]`));
  } else if (!isRecord(pattern)) {
    assert.deepEqual(actual, pattern, path);
  } else if ("$any" in pattern) {
    assert.ok(TYPES[String(pattern["$any"])]?.(actual), `${path}: ${JSON.stringify(actual)} is no ${String(pattern["$any"])}`);
    if (typeof pattern["as"] === "string") names.set(pattern["as"], actual);
  } else if ("$opt" in pattern) {
    if (actual !== undefined) matches(pattern["$opt"], actual, names, given, path);
  } else if ("$absent" in pattern) {
    assert.equal(actual, undefined, `${path}: must be missing`);
  } else if ("$add" in pattern) {
    assert.equal(actual, sum(pattern["$add"], names, given), path);
  } else if ("$range" in pattern) {
    const [low, high] = pattern["$range"] as [number, number];
    assert.ok(Number.isSafeInteger(actual) && low <= Number(actual) && Number(actual) <= high, `${path}: ${String(actual)} not in [${low}, ${high}]`);
  } else if ("$one_of" in pattern) {
    const fits = (pattern["$one_of"] as unknown[]).some((choice) => {
      try {
        matches(choice, actual, new Map(names), given, path);
        return true;
      } catch {
        return false;
      }
    });
    assert.ok(fits, `${path}: ${JSON.stringify(actual)} is none of ${JSON.stringify(pattern["$one_of"])}`);
  } else if ("$repeat" in pattern || "$nest" in pattern) {
    assert.deepEqual(actual, played(pattern, names, given), path);
  } else {
    assert.ok(isRecord(actual), `${path}: not an object: ${JSON.stringify(actual)}`);
    for (const [key, entry] of Object.entries(pattern)) matches(entry, actual[key], names, given, `${path}.${key}`);
  }
}
