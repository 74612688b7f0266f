/**
 * Open WebUI's own page in Chromium, before Open WebUI's server, which runs as long as this program: one question is typed and sent, in
 * the chat that was the last one with `--resume`, and the answer is printed when the page has it. Ctrl-C presses the page's stop button.
 */
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { createRequire } from "node:module";
import { once } from "node:events";
import { createInterface } from "node:readline";
import process from "node:process";

const require = createRequire(new URL("../../../clients/typescript/package.json", import.meta.url));
const { chromium } = require("playwright-core");
const TIMEOUT = 600_000;
const STOP = 'button[aria-label="Stop"], button[aria-label="Stop generating"]';

const host = `127.0.${process.pid % 250}.2`; // ports that other programs are given are those of 127.0.0.1
async function freePort() {
  const probe = createServer().listen(0, host);
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  return port;
}

/** Starts the server, which ends with this program and hears no Ctrl-C. */
async function start(port) {
  const command = ["--pdeathsig", "KILL", "open-webui", "serve", "--host", host, "--port", String(port)];
  const server = spawn("setpriv", command, { detached: true, stdio: ["ignore", "pipe", "pipe"] });
  const output = [];
  for (const stream of [server.stdout, server.stderr]) createInterface({ input: stream }).on("line", (line) => output.push(line));
  let code = null;
  server.once("exit", (status) => (code = status ?? -1));
  const isUp = () => fetch(`http://${host}:${port}/health`).then((answer) => answer.ok, () => false);
  while (!(await isUp())) {
    if (code !== null) throw new Error(`Open WebUI ended with ${code}: ${output.slice(-20).join("\n")}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
  return server;
}

const resumes = process.argv[2] === "--resume";
const prompt = process.argv.at(-1);
const port = await freePort();
const server = await start(port);
const executablePath = process.env.SESSILE_TEST_CHROMIUM ?? "/usr/bin/chromium";
const browser = await chromium.launch({ executablePath, handleSIGINT: false, args: ["--headless", "--no-sandbox", "--disable-gpu"] });
try {
  const page = await browser.newPage({ viewport: { width: 1200, height: 800 } });
  page.setDefaultTimeout(TIMEOUT);
  await page.addLocatorHandler(page.getByRole("button", { name: "Okay, Let's Go!" }), (button) => button.click());
  await page.goto(`http://${host}:${port}/`);
  await page.waitForSelector("#chat-input");
  if (resumes) {
    const chat = await page.evaluate(async () => {
      const answer = await fetch("/api/v1/chats/?page=1", { headers: { authorization: `Bearer ${localStorage.token}` } });
      return (await answer.json())[0].id;
    });
    await page.goto(`http://${host}:${port}/c/${chat}`);
    await page.waitForSelector(".user-message");
    await page.waitForSelector("#chat-input");
  }
  const before = await page.locator(".user-message").count();
  await page.click("#chat-input");
  await page.keyboard.type(prompt);
  await page.click("#send-message-button");
  let isStopped = false;
  process.on("SIGINT", () => {
    if (!isStopped) void page.click(STOP);
    isStopped = true;
  });
  const answer = await page.waitForFunction(
    ([count, stop]) => {
      const last = [...document.querySelectorAll('[id^="message-"]')].findLast((each) => each.id !== "message-input-container");
      const isWhole = document.querySelectorAll(".user-message").length > count && !document.querySelector(stop);
      const isAnswer = last && !last.classList.contains("user-message") && last.querySelector('button[aria-label="Copy"]');
      return isWhole && isAnswer ? last.innerText : null;
    },
    [before, STOP],
    { polling: 200, timeout: TIMEOUT },
  );
  console.log(await answer.jsonValue());
} finally {
  await browser.close();
  server.kill("SIGKILL");
}
process.exit(0);
