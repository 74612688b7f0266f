/**
 * A long conversation in a real Chromium while a long answer streams into it and somebody types; `bench.clients.long_page` starts
 * the server and this.
 *
 *     node tests/browser/long_page.mjs --url http://127.0.0.1:8080/ --session ses_… --watch kilobytes
 *
 * Prints one line of JSON. Every task of the page's main thread is taken from the browser's trace, with the CPU time of its thread:
 * what a busy machine adds is in the wall times alone. Input latency is Chromium's own Event Timing of real key events, from
 * the key to the next frame; where it reports none it is below 16 ms.
 */
import { parseArgs } from "node:util";

import { Browser } from "./harness.mjs";

const KEYS_EVERY_MS = 250;
const WORDS = "what is written while an answer comes in has to appear at once ";

/** In the page: collects what the browser says about long tasks and about events. */
function observe() {
  globalThis.long = [];
  globalThis.keys = [];
  new PerformanceObserver((list) => globalThis.long.push(...list.getEntries().map(({ startTime, duration }) => ({ startTime, duration })))).observe({ type: "longtask", buffered: true });
  new PerformanceObserver((list) => {
    for (const { name, duration } of list.getEntries()) if (name === "keydown") globalThis.keys.push(duration);
  }).observe({ type: "event", durationThreshold: 16, buffered: true });
}

/** CPU and wall time of the main thread's tasks, in ms, from a trace, and what the long ones held. @param {any[]} events */
function tasksOf(events) {
  const renderers = new Set(events.filter((event) => event.name === "thread_name" && event.args.name === "CrRendererMain").map((event) => `${event.pid} ${event.tid}`));
  const tasks = events.filter((event) => event.ph === "X" && event.name.endsWith("RunTask") && renderers.has(`${event.pid} ${event.tid}`));
  const first = tasks.reduce((least, event) => Math.min(least, event.ts), Infinity);
  return tasks.map((event) => {
    const [cpu, wall] = [(event.tdur ?? event.dur) / 1000, event.dur / 1000];
    return cpu > 50 ? { cpu, wall, at_s: (event.ts - first) / 1e6, held: heldBy(event, events) } : { cpu, wall };
  });
}

/** The ten longest events within a task, and who posted it. @param {any} task @param {any[]} events */
function heldBy(task, events) {
  const within = events.filter((event) => event !== task && event.pid === task.pid && event.tid === task.tid && event.ts >= task.ts && event.ts + (event.dur ?? 0) <= task.ts + task.dur);
  const longest = within.sort((a, b) => (b.dur ?? 0) - (a.dur ?? 0)).slice(0, 10);
  return [task.args, ...longest.map((event) => `${event.name} ${((event.dur ?? 0) / 1000).toFixed(1)} ${JSON.stringify(event.args).slice(0, 200)}`)];
}

const KINDS = { style: ["UpdateLayoutTree"], layout: ["Layout"], paint: ["PrePaint", "Paint", "Layerize", "Commit"], script: ["FunctionCall", "EvaluateScript", "TimerFire", "FireAnimationFrame"], gc: ["MinorGC", "MajorGC"] };

/** Seconds of the main thread's CPU by what it did; layout that a script waits for counts in both. @param {any[]} events */
function kindsOf(events) {
  const sum = (names) => events.filter((event) => event.ph === "X" && names.includes(event.name)).reduce((all, event) => all + (event.tdur ?? event.dur ?? 0), 0) / 1e6;
  return Object.fromEntries(Object.entries(KINDS).map(([kind, names]) => [`${kind}_cpu_s`, Number(sum(names).toFixed(2))]));
}

async function heapOf(cdp) {
  for (let round = 0; round < 3; round++) await cdp.send("HeapProfiler.collectGarbage");
  const { metrics } = await cdp.send("Performance.getMetrics");
  const value = (name) => metrics.find((metric) => metric.name === name).value;
  return { mib: value("JSHeapUsedSize") / 2 ** 20, nodes: value("Nodes"), cpu_s: value("TaskDuration") };
}

/** @param {number[]} values */
const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

/** @param {number[]} values @param {number} share */
function percentile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? 0;
}

async function run({ url, session, characters }) {
  const browser = await new Browser().start();
  try {
    const page = await browser.page();
    await page.addInitScript(observe);
    const cdp = await page.context().newCDPSession(page);
    await cdp.send("Performance.enable");
    await page.goto(`${url}?session=${session}`);
    await page.waitForSelector('#link[data-phase="ready"]');
    await page.waitForFunction(() => document.querySelectorAll(".message").length >= 400 && !document.querySelector(".writing"));
    await page.waitForFunction(() => document.querySelector(".answer:last-child .prose")?.textContent !== "");
    const opening = await page.evaluate(() => globalThis.long.splice(0));
    await page.focus("#message");
    const before = await heapOf(cdp);

    const events = [];
    cdp.on("Tracing.dataCollected", ({ value }) => events.push(...value.filter((event) => event.ph === "X" || event.ph === "M")));
    await cdp.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { recordMode: "recordAsMuchAsPossible", includedCategories: ["toplevel", "devtools.timeline", "__metadata"] } });
    await page.keyboard.type("Say it all.");
    await page.keyboard.press("Enter");
    // Not `waitForSelector`: the driver's own selector engine takes over 50 ms for so many nodes, within the page's thread.
    await page.waitForFunction(() => document.querySelector(".writing .prose > *") !== null);
    let typed = 0;
    const started = performance.now();
    while (await page.evaluate(() => document.querySelector(".writing") !== null)) {
      const key = WORDS[typed % WORDS.length];
      await page.keyboard.press(key === " " ? "Space" : key, { delay: 20 });
      typed++;
      if (typed % 200 === 0) await page.evaluate(() => document.querySelector("#message").select());
      await page.evaluate((ms) => new Promise((resolve) => setTimeout(resolve, ms)), KEYS_EVERY_MS);
    }
    const seconds = (performance.now() - started) / 1000;
    const complete = new Promise((resolve) => cdp.once("Tracing.tracingComplete", resolve));
    await cdp.send("Tracing.end");
    await complete;
    const after = await heapOf(cdp);
    const shown = await page.evaluate(() => ({ long: globalThis.long, keys: globalThis.keys, letters: [...document.querySelectorAll(".answer .prose")].at(-1).textContent.length }));
    const latencies = [...shown.keys, ...Array(Math.max(0, typed - shown.keys.length)).fill(16)];
    const tasks = tasksOf(events);
    const faults = [];
    // Marks and formulas show fewer letters than they have characters.
    if (shown.letters < characters * 0.6) faults.push(`${shown.letters} letters shown of ${characters} characters`);
    const over = tasks.filter(({ cpu }) => cpu > 50);
    if (tasks.length < 1000) faults.push(`${tasks.length} tasks seen`);
    for (const task of over) console.error(JSON.stringify(task));
    if (over.length > 0) faults.push(`${over.length} tasks over 50 ms of CPU, the longest ${largest(over.map(({ cpu }) => cpu)).toFixed(0)} ms`);
    const p95 = percentile(latencies, 0.95);
    if (p95 > 50) faults.push(`input latency p95 ${p95} ms`);
    const bytes = after.mib - before.mib;
    if (bytes > 32) faults.push(`the heap grew by ${bytes.toFixed(1)} MiB`);
    if (page.troubles.length > 0) faults.push(...page.troubles);
    const round = (value) => Number(value.toFixed(2));
    return {
      seconds: round(seconds), letters: shown.letters, tasks: tasks.length, task_cpu_ms_p99: round(percentile(tasks.map(({ cpu }) => cpu), 0.99)), task_cpu_ms_max: round(largest(tasks.map(({ cpu }) => cpu))),
      task_wall_ms_max: round(largest(tasks.map(({ wall }) => wall))), long_tasks_wall: shown.long.length, page_cpu_share: round((after.cpu_s - before.cpu_s) / seconds),
      ...kindsOf(events), opening_long_tasks_ms: opening.map(({ duration }) => duration), keys: typed, input_ms_p50: percentile(latencies, 0.5), input_ms_p95: p95, input_ms_max: largest(latencies),
      heap_mib_before: round(before.mib), heap_mib_after: round(after.mib), nodes_before: before.nodes, nodes_after: after.nodes, faults,
    };
  } finally {
    await browser.dispose();
  }
}

const { values } = parseArgs({ options: { url: { type: "string" }, session: { type: "string" }, characters: { type: "string" } } });
console.log(JSON.stringify(await run({ url: values.url, session: values.session, characters: Number(values.characters) })));
