/**
 * What the SDK takes for granted and older Hermes engines lack. Imported first, because classes that are iterables take
 * the symbol when they are made. What is there already stays.
 */
const symbols = Symbol as unknown as { asyncIterator?: symbol };
if (symbols.asyncIterator === undefined) {
  Object.defineProperty(Symbol, "asyncIterator", { value: Symbol.for("Symbol.asyncIterator") });
}
if ((Object as Partial<ObjectConstructor>).hasOwn === undefined) {
  const hasOwn = (object: object, key: PropertyKey): boolean => Object.prototype.hasOwnProperty.call(object, key);
  Object.defineProperty(Object, "hasOwn", { value: hasOwn, configurable: true, writable: true });
}

export {};
