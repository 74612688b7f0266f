/**
 * A real Chromium and a real server for the tests beside this file.
 *
 * The server is started, killed and started again on its port, over one data folder. Nothing here sleeps: what is
 * waited for is a line of output, the end of a process, or a condition in the page.
 */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, existsSync, mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const require = createRequire(new URL("../../clients/typescript/package.json", import.meta.url));
const { chromium } = require("playwright-core");
export const axePath = require.resolve("axe-core/axe.min.js");

const PYTHON = process.env.SESSILE_TEST_PYTHON ?? join(ROOT, ".venv/bin/python");
const CHROMIUM = process.env.SESSILE_TEST_CHROMIUM ?? ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);

export function temporaryFolder() {
  return mkdtempSync(join(tmpdir(), "sessile-browser-"));
}

async function freePort() {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  return port;
}

/** Starts Python with `args` for a server or a cluster, and waits for the line that says that it is ready. */
async function run(place, args, ready) {
  place.process = spawn(PYTHON, args.map(String), { cwd: ROOT, stdio: ["ignore", "pipe", "pipe"] });
  place.ended = once(place.process, "exit");
  createInterface({ input: place.process.stderr }).on("line", (line) => place.output.push(line));
  const lines = createInterface({ input: place.process.stdout });
  await new Promise((resolve, reject) => {
    lines.on("line", (line) => {
      place.output.push(line);
      if (line.includes(ready)) resolve();
    });
    place.ended.then(([code]) => reject(new Error(`${args[0]} ended with ${code}:\n${place.output.slice(-30).join("\n")}`)));
  });
}

/** `python app.py serve`, with the simulated engine or another one. */
export class Server {
  constructor(args = [], engine = "sim") {
    this.args = args;
    this.engine = engine;
    this.data = temporaryFolder();
    this.process = null;
    this.output = [];
  }

  async start() {
    this.port ??= await freePort();
    this.url = `http://127.0.0.1:${this.port}/`;
    const args = ["app.py", "serve", "--port", this.port, "--data", join(this.data, "data"), "--engine", this.engine, "--log-level", "warning", ...this.args];
    await run(this, args, "Sessile is ready");
    return this;
  }

  /** @param {NodeJS.Signals} signal SIGKILL: as in a crash */
  async stop(signal = "SIGTERM") {
    if (this.process === null) return;
    this.process.kill(signal);
    await this.ended;
    this.process = null;
  }

  async dispose() {
    await this.stop("SIGKILL");
    rmSync(this.data, { recursive: true, force: true });
  }
}

/** A cluster on this machine as `make cluster` starts it: Valkey, PostgreSQL, two replicas with the simulated engine, one gateway. */
export class Cluster {
  constructor(args = []) {
    this.args = args;
    this.data = temporaryFolder();
    this.process = null;
    this.output = [];
  }

  async start() {
    this.port = await freePort();
    this.url = `http://127.0.0.1:${this.port}/`;
    chmodSync(this.data, 0o755); // PostgreSQL enters it under an account of its own where the tests run as root
    const args = ["deploy/cluster.py", "--port", this.port, "--replicas", 2, "--gateways", 1, "--data", this.data, "--", "--engine", "sim", "--log-level", "warning", ...this.args];
    await run(this, args, "The cluster is ready");
    return this;
  }

  /** Drains it, and waits until its servers have ended, too. */
  async dispose() {
    if (this.process !== null) {
      this.process.kill("SIGTERM");
      await this.ended;
    }
    rmSync(this.data, { recursive: true, force: true });
  }
}

/** One browser for a file of tests; `page()` gives a fresh context with what went wrong in it collected. */
export class Browser {
  async start() {
    if (CHROMIUM === undefined) throw new Error("no Chromium here: apt-get install chromium, or name it in SESSILE_TEST_CHROMIUM");
    this.browser = await chromium.launch({
      executablePath: CHROMIUM,
      args: [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--no-first-run", "--force-color-profile=srgb",
      ],
    });
    return this;
  }

  async context(options = {}) {
    // A page that a service worker keeps is what one test is about; the others look at the network.
    return this.browser.newContext({ viewport: { width: 1280, height: 800 }, serviceWorkers: "block", ...options });
  }

  async page(options = {}) {
    const context = await this.context(options);
    return watch(await context.newPage());
  }

  async dispose() {
    await this.browser?.close();
  }
}

/** Collects what a person would see in the console. */
export function watch(page) {
  page.setDefaultTimeout(60_000);
  page.troubles = [];
  page.on("pageerror", (error) => page.troubles.push(`uncaught: ${error.message}`));
  page.on("console", (message) => {
    // A server that is away is what some tests are about; 426 is what one says that is asked whether it is there.
    const away = /WebSocket connection to|ERR_(CONNECTION_REFUSED|CONNECTION_RESET|EMPTY_RESPONSE)|status of 426 /;
    if (message.type() === "error" && !away.test(message.text())) page.troubles.push(message.text());
  });
  return page;
}

/** Sends a message by the keyboard, as people do. */
export async function say(page, text) {
  await page.fill("#message", text);
  await page.press("#message", "Enter");
}
/** Waits until an answer stands there and none is being written. */
export const written = (page) => page.waitForFunction(() => document.querySelector(".answer") && !document.querySelector(".writing"));
export const texts = (page, selector) => page.$$eval(selector, (elements) => elements.map((element) => element.textContent));
