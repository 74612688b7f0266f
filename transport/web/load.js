/**
 * The load over time on the operator's page: time to the first token, tokens, the queue, KV and failovers.
 *
 * What is drawn comes from `/v1/operator/series`: on a gateway, of all replicas together or of one.
 */

import { arrange, el, find } from "./dom.js";
import { Chart } from "./chart.js";
import { bytes, count, time } from "./numbers.js";

const EVERY_MS = 10_000;
const KV = { device: "device", host: "host memory", disk: "disk", redis: "Redis" };

const WHOLE = Array.from({ length: 7 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat();
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);

/** @typedef {import("./chart.js").Column} Column */

export class Load {
  ttft = new Chart({ title: "Time to first token", shape: "lines", format: time });
  tokens = new Chart({ title: "Tokens a second", shape: "lines", format: (value) => count(value < 10 ? Math.round(value * 10) / 10 : Math.round(value)) });
  queue = new Chart({ title: "Answers and queue", shape: "lines", format: count, steps: WHOLE });
  kv = new Chart({ title: "KV by tier", shape: "stack", format: bytes, steps: POWERS, empty: "No engine here counts its KV in bytes." });
  events = new Chart({ title: "Failovers, hand-offs, failures", shape: "bars", format: count, steps: WHOLE });
  readAt = -Infinity;
  reading = false;

  /** @param {(path: string, how?: any) => Promise<any>} call @param {(error: unknown) => string} message what an error says */
  constructor(call, message) {
    this.call = call;
    this.message = message;
    this.range = /** @type {HTMLSelectElement} */ (find("load-range"));
    this.replica = /** @type {HTMLSelectElement} */ (find("load-replica"));
    find("charts").append(...[this.ttft, this.tokens, this.queue, this.kv, this.events].map((chart) => chart.root));
    find("load-filters").addEventListener("submit", (event) => event.preventDefault());
    for (const select of [this.range, this.replica]) select.addEventListener("change", () => void this.read());
  }

  /** @param {string[]} names of the replicas there are */
  offer(names) {
    const there = [...this.replica.options].slice(1).map((option) => option.value);
    if (there.join("\n") === names.join("\n")) return;
    const before = this.replica.value;
    arrange(this.replica, [el("option", { value: "" }, "all replicas"), ...names.map((name) => el("option", { value: name }, name))]);
    this.replica.value = names.includes(before) ? before : "";
  }

  /** Reads again what is older than a step. */
  async refresh() {
    if (!this.reading && performance.now() - this.readAt >= EVERY_MS - 500) await this.read();
  }

  async read() {
    const [range, replica] = [this.range.value, this.replica.value];
    this.reading = true;
    this.readAt = performance.now();
    try {
      const series = await this.call("/v1/operator/series", { query: { range_s: range, replica } });
      if (range !== this.range.value || replica !== this.replica.value) return; // a later choice is on its way
      this.show(series);
      const silent = Object.entries(series.silent).map(([name, why]) => `${name} does not answer: ${why}`);
      find("load-note").textContent = silent.join(" ");
    } catch (error) {
      find("load-note").textContent = this.message(error);
    } finally {
      this.reading = false;
    }
  }

  /** @param {any} series */
  show(series) {
    const { at, ttft_s, tokens_per_s, requests, kv_bytes, events } = series;
    this.ttft.show(at, [["half within", ttft_s.p50], ["95% within", ttft_s.p95]]);
    this.tokens.show(at, [["written", tokens_per_s.decoded], ["read", tokens_per_s.prefilled]]);
    this.queue.show(at, [["being written", requests.running], ["waiting", requests.waiting], ["slots", requests.slots]]);
    this.kv.show(at, Object.entries(KV).filter(([tier]) => tier in kv_bytes).map(([tier, name]) => [name, kv_bytes[tier]]));
    this.events.show(at, [["failovers", events.failovers], ["hand-offs", events.handoffs], ["failed answers", events.failed]]);
  }
}
