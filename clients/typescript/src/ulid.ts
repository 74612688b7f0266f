/**
 * ULIDs: 48 bits of milliseconds and 80 of chance, 26 characters of Crockford's base 32, so that the order
 * of names is the order of making. Within one millisecond (or when the clock steps back) the last one is
 * counted up, so a client's own ids always ascend. Source: the ULID specification.
 */
const DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const CHANCE_DIGITS = 16;

/** When a ULID was made, in ms since 1970; null: it is none. */
export function ulidMs(id: string): number | null {
  if (!/^[0-7][0-9A-HJKMNP-TV-Z]{25}$/.test(id)) return null;
  return Array.from(id.slice(0, 10)).reduce((ms, digit) => ms * 32 + DIGITS.indexOf(digit), 0);
}

export function ulids(random: () => number): (nowMs: number) => string {
  let lastMs = -1;
  let chance: number[] = [];
  return (nowMs) => {
    const ms = Math.floor(nowMs);
    if (ms > lastMs) {
      lastMs = ms;
      chance = Array.from({ length: CHANCE_DIGITS }, () => Math.floor(random() * 32) & 31);
    } else {
      let i = CHANCE_DIGITS - 1;
      while (i >= 0 && chance[i] === 31) chance[i--] = 0;
      if (i >= 0) chance[i]!++;
      else lastMs++; // 2^80 ids in one millisecond: borrow from the next one
    }
    let time = "";
    for (let rest = lastMs, i = 0; i < 10; i++, rest = Math.floor(rest / 32)) time = DIGITS[rest % 32] + time;
    return time + chance.map((digit) => DIGITS[digit]).join("");
  };
}
