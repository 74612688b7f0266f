/** The page in a real Chromium, against the real server with the simulated engine. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { axePath, Browser, say, Server, temporaryFolder, texts, watch, written } from "./harness.mjs";

const browser = new Browser();
/** Answers take about a second. */
const quick = new Server(["--sim-tokens-per-s", "150", "--sim-answer-tokens", "60"]);
/** Answers last long enough to do something meanwhile. */
const slow = new Server(["--sim-tokens-per-s", "30", "--sim-answer-tokens", "150"]);
const open = new Set();

before(async () => {
  await browser.start();
  await quick.start();
  await slow.start();
});
after(async () => {
  await browser.dispose();
  await quick.dispose();
  await slow.dispose();
});
afterEach(async () => {
  for (const page of open) await page.context().close();
  open.clear();
});

async function visit(server, options) {
  const page = await browser.page(options);
  open.add(page);
  await page.goto(server.url);
  await page.waitForSelector('#link[data-phase="ready"]');
  return page;
}
const writing = (page, letters = 40) =>
  page.waitForFunction((wanted) => (document.querySelector(".answer.writing .prose")?.textContent ?? "").length > wanted, letters);
/** What the server's log says, asked for by a client of its own. */
async function truth(page) {
  return page.evaluate(async () => {
    const { SessileClient, itemText } = await import("/sessile.js");
    const client = new SessileClient({ url: location.origin });
    const session = client.session(new URLSearchParams(location.search).get("session")).open();
    await session.live();
    const entries = session.view.thread().map(({ item }) => (item === undefined ? "" : itemText(item)));
    client.close();
    return entries;
  });
}
/** The words as the page shows them, line breaks and markup aside. */
const plain = (text) => text.replace(/\s+/g, "");
async function agrees(page) {
  const log = await truth(page);
  const shown = await texts(page, ".message .said, .message .prose");
  assert.deepEqual(shown.map(plain), log.map(plain));
  return log;
}

test("a first message makes a conversation: it is answered, titled, listed, and has its own address", async () => {
  const page = await visit(quick);
  await page.waitForSelector("#welcome:not([hidden])");
  assert.equal(await page.isDisabled("#send"), true);
  await say(page, "How do barnacles choose their rock?");
  await page.waitForSelector(".user .said");
  await written(page);
  assert.match(page.url(), /\?session=ses_/);
  assert.equal(await page.textContent("#title"), "How do barnacles choose their rock?");
  assert.equal(await page.title(), "How do barnacles choose their rock? · Sessile");
  await page.waitForSelector('.row[aria-current="page"] >> text=How do barnacles');
  const [question, answer] = await agrees(page);
  assert.equal(question, "How do barnacles choose their rock?");
  assert.ok(answer.length > 20);
  assert.equal(await page.inputValue("#message"), "");
  assert.deepEqual(page.troubles, []);
});

test("stop ends the answer where it is, and says so", async () => {
  const page = await visit(slow);
  await say(page, "Tell me everything.");
  await writing(page);
  await page.click("#stop");
  await written(page);
  await page.waitForSelector(".note >> text=Stopped.");
  assert.equal(await page.isHidden("#stop"), true);
  assert.equal(await page.evaluate(() => document.activeElement?.id), "message");
  await agrees(page);
  await say(page, "And now?");
  await writing(page);
  await page.press("#message", "Escape");
  await written(page);
  await agrees(page);
});

test("regenerate and edit make branches; the arrows switch between them", async () => {
  const page = await visit(quick);
  await say(page, "one");
  await written(page);
  const shownAnswer = () => page.getAttribute(".answer", "data-id");
  const first = await shownAnswer();
  await page.click('.answer button[aria-label="Answer again"]');
  await page.waitForSelector('.answer .count >> text="2/2"');
  await written(page);
  assert.notEqual(await shownAnswer(), first);
  await page.click('.answer button[aria-label="Previous answer"]');
  await page.waitForSelector('.answer .count >> text="1/2"');
  assert.equal(await shownAnswer(), first);
  assert.equal(await page.isDisabled('.answer button[aria-label="Previous answer"]'), true);

  await page.hover(".user");
  await page.click('.user button[aria-label="Edit and ask again"]');
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("aria-label")), "Edit your message");
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("aria-label")), "Edit and ask again");
  await page.click('.user button[aria-label="Edit and ask again"]');
  await page.fill(".edit textarea", "uno");
  await page.keyboard.press("Enter");
  await page.waitForSelector('.user .count >> text="2/2"');
  await written(page);
  assert.deepEqual(await texts(page, ".said"), ["uno"]);
  await page.click('.user button[aria-label="Previous version"]');
  await page.waitForFunction(() => document.querySelector(".said")?.textContent === "one");
  await page.waitForSelector(".answer .count");

  // What is said now belongs to the branch that is shown.
  await say(page, "two");
  await page.waitForFunction(() => document.querySelectorAll(".answer").length === 2 && !document.querySelector(".writing"));
  assert.deepEqual(await texts(page, ".said"), ["one", "two"]);
  await agrees(page);
  assert.deepEqual(page.troubles, []);
});

test("what is written while an answer is on its way waits, can be taken back, or is answered next", async () => {
  const page = await visit(slow);
  await say(page, "first");
  await writing(page, 1);
  await say(page, "second");
  await page.waitForSelector(".queued >> text=Waits for the answer above.");
  await say(page, "third");
  await page.waitForFunction(() => document.querySelectorAll(".queued").length === 2);
  await page.click(".queued:last-child >> text=Take back");
  await page.waitForFunction(() => document.querySelectorAll(".queued").length === 1);
  await page.click("#stop");
  await page.waitForFunction(() => document.querySelectorAll(".answer").length === 2);
  assert.deepEqual(await texts(page, ".said"), ["first", "second"]);
  await page.click("#stop");
  await written(page);
  await agrees(page);
});

test("a reload in mid-answer shows at once what was there, and the answer goes on", async () => {
  const page = await visit(slow);
  await say(page, "A long one, please.");
  await writing(page);
  const before = plain(await page.textContent(".answer .prose"));
  await page.reload({ waitUntil: "commit" });
  await page.waitForSelector(".answer .prose");
  await page.waitForFunction((length) => (document.querySelector(".answer .prose")?.textContent ?? "").length > length + 20, before.length);
  assert.ok(plain(await page.textContent(".answer .prose")).startsWith(before));
  await written(page);
  await agrees(page);
  assert.equal(await page.$(".branches"), null, "no branch where there is none");
  assert.deepEqual(page.troubles, []);
});

test("a reload without the server still shows the conversation, and says that there is no connection", async () => {
  const server = await new Server(["--sim-tokens-per-s", "150", "--sim-answer-tokens", "30"]).start();
  try {
    const page = await visit(server);
    await say(page, "Keep this.");
    await written(page);
    const answer = plain(await page.textContent(".answer .prose"));
    await page.reload();
    await server.stop("SIGKILL");
    await page.waitForSelector("#notice:not([hidden]) >> text=No connection to the server.");
    assert.equal(plain(await page.textContent(".answer .prose")), answer);
    await say(page, "Said in the tunnel.");
    await page.waitForSelector(".pending >> text=Will be sent when the connection is back.");
    await server.start();
    await page.click("#notice-button");
    await page.waitForSelector('#link[data-phase="ready"]');
    await page.waitForFunction(() => document.querySelectorAll(".answer").length === 2 && !document.querySelector(".writing, .pending"));
    assert.deepEqual(await texts(page, ".said"), ["Keep this.", "Said in the tunnel."]);
    await agrees(page);
  } finally {
    await server.dispose();
  }
});

test("the server killed and started again in mid-answer: the answer goes on, nothing is repeated", async () => {
  const server = await new Server(["--sim-tokens-per-s", "40", "--sim-answer-tokens", "150"]).start();
  try {
    const page = await visit(server);
    await say(page, "Survive this.");
    for (let round = 0; round < 3; round++) {
      const letters = await page.evaluate(() => document.querySelector(".answer .prose")?.textContent.length ?? 0);
      await page.waitForFunction((least) => {
        const answer = document.querySelector(".answer");
        return answer && (!answer.classList.contains("writing") || answer.querySelector(".prose").textContent.length > least);
      }, letters + 40);
      if (round > 0 && !(await page.$(".writing"))) break; // the rest came sooner
      const before = plain(await page.textContent(".answer .prose"));
      await server.stop("SIGKILL");
      await page.waitForSelector('#link:not([data-phase="ready"])');
      assert.ok(plain(await page.textContent(".answer .prose")).startsWith(before));
      await server.start();
      await page.waitForSelector('#link[data-phase="ready"]');
      if (!(await page.$(".writing"))) break;
    }
    await written(page);
    const [, answer] = await agrees(page);
    assert.equal(await page.$$eval(".answer", (found) => found.length), 1);
    assert.ok(answer.length > 100);
    assert.deepEqual(page.troubles, []);
  } finally {
    await server.dispose();
  }
});

test("a planned restart is announced, and the page comes back by itself", async () => {
  const server = await new Server(["--sim-tokens-per-s", "40", "--sim-answer-tokens", "120", "--drain-s", "1"]).start();
  try {
    const page = await visit(server);
    await say(page, "Drain in the middle of this.");
    await writing(page);
    await server.stop("SIGTERM");
    await server.start();
    await page.waitForSelector('#link[data-phase="ready"]');
    await written(page);
    await agrees(page);
  } finally {
    await server.dispose();
  }
});

test("two tabs show the same, word by word, and both may speak", async () => {
  const one = await visit(slow);
  await say(one, "Hello from the first tab.");
  await writing(one, 1);
  const two = watch(await one.context().newPage());
  await two.goto(one.url());
  await writing(two);
  await one.click("#stop");
  await written(one);
  await written(two);
  assert.equal(plain(await one.textContent(".answer .prose")), plain(await two.textContent(".answer .prose")));
  await say(two, "Hello from the second.");
  await one.waitForFunction(() => document.querySelectorAll(".said").length === 2);
  await one.waitForSelector("#stop:not([hidden])");
  await one.click("#stop");
  await two.waitForFunction(() => document.querySelectorAll(".answer").length === 2 && !document.querySelector(".writing"));
  await agrees(two);
  await agrees(one);
  assert.deepEqual([...one.troubles, ...two.troubles], []);
});

test("a conversation that is opened again is brought up before anything is typed", async () => {
  const page = await visit(quick);
  await say(page, "Remember this.");
  await written(page);
  const again = await page.context().newPage();
  const warmed = new Promise((resolve) =>
    again.on("websocket", (socket) => socket.on("framesent", ({ payload }) => String(payload).includes("session.warm") && resolve())),
  );
  await again.goto(page.url());
  await warmed;
  assert.equal(await again.inputValue("#message"), "");
});

test("rename and delete, with the keyboard alone", async () => {
  const page = await visit(quick);
  await say(page, "To be renamed");
  await written(page);
  await page.focus("#rename-open");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "rename-input");
  await page.keyboard.type("A better name");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#title")?.textContent === "A better name");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "rename-open");
  await page.waitForSelector('.row[aria-current] >> text="A better name"');

  const address = page.url();
  await page.focus("#delete");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#confirm[open]");
  await page.keyboard.press("Escape");
  assert.equal(await page.evaluate(() => document.activeElement?.id), "delete");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#confirm[open]");
  await page.focus("#confirm-yes");
  await page.keyboard.press("Enter");
  await page.waitForSelector("#welcome:not([hidden])");
  await page.waitForFunction(() => ![...document.querySelectorAll(".row")].some((row) => row.textContent?.includes("A better name")));
  await page.goto(address);
  await page.waitForSelector("#lost:not([hidden])");
  await page.click("#lost-new");
  await page.waitForSelector("#welcome:not([hidden])");
});

test("the browser's back and forward change the conversation; drafts stay with theirs", async () => {
  const page = await visit(quick);
  await say(page, "The first");
  await written(page);
  await page.click("#new");
  await page.waitForSelector("#welcome:not([hidden])");
  await say(page, "The second");
  await page.waitForFunction(() => document.querySelector("#title")?.textContent === "The second");
  await written(page);
  await page.fill("#message", "half a thou");
  await page.click('.row >> text="The first"');
  await page.waitForFunction(() => document.querySelector(".said")?.textContent === "The first");
  assert.equal(await page.inputValue("#message"), "");
  await page.goBack();
  await page.waitForFunction(() => document.querySelector(".said")?.textContent === "The second");
  assert.equal(await page.inputValue("#message"), "half a thou");
});

test("a screen reader hears the whole answer once, not its words", async () => {
  const page = await visit(quick);
  await page.evaluate(() => {
    window.heard = [];
    new MutationObserver(() => window.heard.push(document.querySelector("#polite")?.textContent)).observe(document.querySelector("#polite"), { childList: true });
  });
  await say(page, "Speak.");
  await page.waitForSelector('.body[aria-busy="true"]');
  await written(page);
  await page.waitForFunction(() => window.heard.length > 0);
  const heard = await page.evaluate(() => window.heard);
  assert.equal(heard.length, 1);
  assert.ok(heard[0].startsWith("Answer: "));
  assert.equal(await page.$$eval('[aria-live="polite"], [role="log"]', (live) => live.filter((element) => element.contains(document.querySelector("#thread"))).length), 0);
});

test("a model's words stay words: no markup, no scripts, no dangerous links", async () => {
  const page = await visit(quick);
  const result = await page.evaluate(async () => {
    const { Markdown } = await import("/chat.js");
    const markdown = new Markdown();
    document.body.append(markdown.element);
    const nasty = [
      '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>',
      "[click](javascript:window.pwned=1) [data](data:text/html,x) [ok](https://example.com/a_(b)) <https://x.example>",
      "`<b>` **bold *and* more** __also__ ~~gone~~ a*b*c snake_case_name \\*plain\\*",
      "```html\n<script>window.pwned=1</script>\n```",
      "> quote\n> on",
      "- one\n- two\n  - deeper\n\n1. a\n2. b",
      "| a | b |\n|---|---|\n| 1 | **2** |",
      "# Title\ntext\n\n---\n",
    ].join("\n\n");
    const rendered = async (view) => {
      while (view.busy) await new Promise(requestAnimationFrame); // its steps end by the clock
      return view.element.innerHTML;
    };
    for (let end = 1; end <= nasty.length; end++) markdown.update(nasty.slice(0, end));
    const grown = await rendered(markdown);
    const fresh = new Markdown();
    fresh.update(nasty);
    const whole = await rendered(fresh);
    new Markdown().update(`${"*".repeat(15000)} ${"[".repeat(4000)} ${"`a".repeat(3000)}`);
    const links = [...markdown.element.querySelectorAll("a")].map((a) => [a.getAttribute("href"), a.rel]);
    const count = (selector) => markdown.element.querySelectorAll(selector).length;
    const counts = ["img", "script", "strong", "em", "s", "pre", "blockquote", "ul ul", "ol > li", "table td strong", "h3", "hr"].map((s) => [s, count(s)]);
    const text = markdown.element.textContent;
    markdown.element.remove();
    return { same: grown === whole, pwned: window.pwned, links, counts: Object.fromEntries(counts), text };
  });
  assert.equal(result.pwned, undefined);
  assert.equal(result.same, true, "text that grew looks like text that came whole");
  assert.deepEqual(result.links.map(([href]) => href), ["https://example.com/a_(b)", "https://x.example/"]);
  for (const [, rel] of result.links) assert.equal(rel, "noopener noreferrer nofollow");
  assert.deepEqual(result.counts, { img: 0, script: 0, strong: 3, em: 2, s: 1, pre: 1, blockquote: 1, "ul ul": 1, "ol > li": 2, "table td strong": 1, h3: 1, hr: 1 });
  for (const words of ["<img src=x onerror=", "[click](javascript:window.pwned=1)", "snake_case_name", "*plain*"]) assert.ok(result.text.includes(words), words);
  assert.deepEqual(page.troubles, []);
});

for (const [name, options] of Object.entries({
  "in the light": { colorScheme: "light" },
  "in the dark": { colorScheme: "dark" },
  "on a phone": { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
})) {
  test(`accessible ${name}, by axe: empty, with branches, waiting, editing, asking, and with the list open`, async () => {
    const page = await visit(slow, { ...options, bypassCSP: true, reducedMotion: "reduce" });
    const check = async (state) => {
      await page.addScriptTag({ path: axePath });
      const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
      assert.deepEqual(violations.map(({ id, nodes }) => `${state}: ${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join("; ")}`), []);
    };
    await page.waitForSelector("#welcome:not([hidden])");
    await check("empty");
    await say(page, `hello ${"and a title that is longer than a phone is wide ".repeat(2)} ${"x".repeat(80)}`);
    await writing(page, 5);
    await say(page, "waiting");
    await page.waitForSelector(".queued");
    await check("waiting");
    await page.click(".queued >> text=Take back");
    await page.click("#stop");
    await written(page);
    await page.click('.answer button[aria-label="Answer again"]');
    await page.waitForSelector('.count >> text="2/2"');
    await page.click("#stop");
    await written(page);
    await check("branches");
    await page.click('.user button[aria-label="Edit and ask again"]');
    await check("editing");
    await page.keyboard.press("Escape");
    await page.click("#delete");
    await check("asking");
    await page.keyboard.press("Escape");
    if (options.isMobile) {
      await page.click("#side-open");
      assert.equal(await page.evaluate(() => document.activeElement?.id), "side-close");
      await check("list");
      await page.keyboard.press("Escape");
      assert.equal(await page.evaluate(() => document.activeElement?.id), "side-open");
      const outside = await page.$$eval("main *", (all) =>
        all.filter((element) => !element.closest("pre, .unseen, #link-text") && element.getBoundingClientRect().right > innerWidth + 1).map((element) => element.outerHTML.slice(0, 80)),
      );
      assert.deepEqual(outside, []);
    }
  });
}

test("who may not chat is told so at once, in words for people, as is who has no key, with a WebSocket and without one", async () => {
  const folder = temporaryFolder();
  const keys = join(folder, "keys.toml");
  const digest = createHash("sha256").update("sk-operator").digest("hex");
  writeFileSync(keys, `[[keys]]\nsha256 = "${digest}"\ntenant = "t"\nid = "k1"\nrole = "operator"\nscopes = ["read", "admin"]\n`);
  const server = await new Server(["--keys", keys]).start();
  try {
    const page = await browser.page();
    open.add(page);
    await page.goto(server.url);
    await page.waitForSelector("#key[open]");
    await page.waitForSelector("#notice:not([hidden]) >> text=The server asks for a key.");
    assert.doesNotMatch(await page.innerText("body"), /Bearer|hello/);
    await page.keyboard.type("sk-operator");
    await page.keyboard.press("Enter");
    await page.waitForSelector('#link[data-phase="ready"]');
    await page.waitForSelector("#notice:not([hidden]) >> text=You cannot chat with this key or account.");
    assert.equal(await page.isVisible("#operator"), true);
    await page.fill("#message", "Hello");
    await page.press("#message", "Enter");
    await page.waitForSelector(".failed .note >> text=You may not do that here.");

    const behind = await browser.page();
    open.add(behind);
    await behind.routeWebSocket(/v1\/ws/, (socket) => socket.close({ code: 1011 }));
    await behind.goto(server.url);
    await behind.waitForSelector("#key[open]");
    assert.equal(await behind.textContent("#link-text"), "Key needed");
  } finally {
    await server.dispose();
    rmSync(folder, { recursive: true });
  }
});

test("a server with keys asks for one, says when it is wrong, and keeps it for the tab", async () => {
  const folder = temporaryFolder();
  const keys = join(folder, "keys.toml");
  writeFileSync(keys, `[[keys]]\nsha256 = "${createHash("sha256").update("sk-right").digest("hex")}"\ntenant = "t"\nid = "k1"\n`);
  const server = await new Server(["--keys", keys, "--sim-tokens-per-s", "200", "--sim-answer-tokens", "20"]).start();
  try {
    const page = await browser.page();
    open.add(page);
    await page.goto(server.url);
    await page.waitForSelector("#key[open]");
    await page.keyboard.type("sk-wrong");
    await page.keyboard.press("Enter");
    await page.waitForSelector("#key[open] >> text=does not know that key");
    await page.keyboard.type("sk-right");
    await page.keyboard.press("Enter");
    await page.waitForSelector('#link[data-phase="ready"]');
    await say(page, "I am known here.");
    await written(page);
    await page.reload();
    await page.waitForSelector('#link[data-phase="ready"]');
    assert.deepEqual(await texts(page, ".said"), ["I am known here."]);
    assert.equal(await page.isVisible("#key"), false);
    assert.deepEqual(page.troubles, []);
  } finally {
    await server.dispose();
    rmSync(folder, { recursive: true });
  }
});

test("what is refused stays in the reader's hands; what is withheld is said to be", async () => {
  const server = await new Server(["--input-keywords", "forbidden", "--output-keywords", "e", "--sim-tokens-per-s", "200"]).start();
  try {
    const page = await visit(server);
    await say(page, "This word is forbidden here.");
    await page.waitForSelector(".failed .note >> text=Not sent:");
    assert.deepEqual(await texts(page, ".failed .said"), ["This word is forbidden here."]);
    assert.match(await page.textContent("#urgent"), /^Not sent: /);
    await page.click(".failed >> text=Try again");
    await page.waitForFunction(() => document.querySelectorAll(".failed").length === 1 && !document.querySelector(".pending"));
    await page.click(".failed >> text=Discard");
    await page.waitForFunction(() => document.querySelectorAll(".failed").length === 0);
    await say(page, "This one is fine.");
    await page.waitForSelector(".note >> text=withheld");
    await page.reload();
    await page.waitForSelector(".note >> text=withheld");
    assert.deepEqual(page.troubles, []);
  } finally {
    await server.dispose();
  }
});

test("what was typed is not lost: a refused message, a draft, a paste that is too long", async () => {
  const server = await new Server(["--input-keywords", "forbidden", "--sim-tokens-per-s", "200"]).start();
  try {
    const page = await visit(server);
    await page.fill("#message", "a draft of nowhere");
    await page.reload();
    await page.waitForSelector('#link[data-phase="ready"]');
    assert.equal(await page.inputValue("#message"), "a draft of nowhere");
    await say(page, "This word is forbidden here.");
    await page.waitForSelector(".failed .note >> text=Not sent:");
    await page.reload();
    await page.waitForSelector(".failed .note >> text=Not sent:");
    assert.deepEqual(await texts(page, ".failed .said"), ["This word is forbidden here."]);
    await page.fill("#message", "And more.");
    await page.click('.failed button:text-is("Edit")');
    await page.waitForFunction(() => document.querySelectorAll(".failed").length === 0);
    assert.equal(await page.inputValue("#message"), "This word is forbidden here.\n\nAnd more.");
    assert.equal(await page.isDisabled("#send"), false);
    await page.reload();
    await page.waitForSelector('#link[data-phase="ready"]');
    assert.equal(await page.inputValue("#message"), "This word is forbidden here.\n\nAnd more.");
    assert.equal(await page.$$eval(".failed", (found) => found.length), 0);
    await say(page, "This one is fine.");
    await written(page);
    await page.click('.user button[aria-label="Edit and ask again"]');
    await page.fill(".edit textarea", "This edit is forbidden.");
    await page.click(".edit >> text=Ask again");
    await page.waitForSelector(".failed .said >> text=This edit is forbidden.");
    await page.fill("#message", "y".repeat(39));
    const refused = await page.$eval("#message", (area) => {
      const clipboardData = new DataTransfer();
      clipboardData.setData("text/plain", "x".repeat(200_000));
      return !area.dispatchEvent(new ClipboardEvent("paste", { clipboardData, cancelable: true, bubbles: true }));
    });
    assert.equal(refused, true);
    assert.match(await page.textContent("#notice-text"), /200,039 characters, and 200,000 are the most/);
    assert.deepEqual(page.troubles, []);
  } finally {
    await server.dispose();
  }
});

test("the page shows what the server says its model is worth, and nothing where it says nothing", async () => {
  const page = await browser.page();
  open.add(page);
  const notice = "A toy of 135 million parameters: often wrong.";
  await page.route("**/v1/models", (route) => route.fulfill({ json: { object: "list", data: [{ id: "m", notice }] } }));
  await page.goto(quick.url);
  await page.waitForSelector("#worth:not([hidden])");
  assert.equal(await page.textContent("#worth"), notice);
  await page.setViewportSize({ width: 375, height: 700 });
  assert.equal(await page.$eval("#worth-text", (each) => each.getClientRects().length), 1, "one line, and all of it");
  assert.equal(await page.$eval("#worth-text", (each) => each.scrollWidth <= each.clientWidth), true);
  await page.click("#worth-close");
  await page.reload();
  await page.waitForFunction(() => document.querySelector("#settings-model").textContent === "m");
  assert.equal(await page.isHidden("#worth"), true, "closed for good");
  const other = await visit(quick);
  await say(other, "Hello");
  await written(other);
  assert.equal(await other.isHidden("#worth"), true);
});

test("an input method's last Enter, which Safari sends behind the composition, sends nothing", async () => {
  const page = await visit(quick);
  await page.fill("#message", "にほん");
  const [composed, sent] = await page.evaluate(() => {
    const press = (keyCode) => {
      const event = new KeyboardEvent("keydown", { key: "Enter", keyCode, bubbles: true, cancelable: true });
      document.querySelector("#message").dispatchEvent(event);
      return event.defaultPrevented;
    };
    return [press(229), press(13)];
  });
  assert.deepEqual([composed, sent], [false, true]);
  assert.deepEqual(page.troubles, []);
});

test("questions and each block of an answer are read from the side of their own script", async () => {
  const page = await visit(quick);
  await say(page, "שלום, מה שלומך?");
  await written(page);
  const directions = await page.evaluate(async () => {
    const { Markdown } = await import(new URL("chat.js", location.href).href);
    const markdown = new Markdown();
    document.querySelector(".answer .body").append(markdown.element);
    markdown.update("مرحبا بالعالم.\n\nHello.\n\n- שלום\n- one");
    while (markdown.busy) await new Promise((resolve) => markdown.element.addEventListener("grown", resolve, { once: true }));
    const direction = (element) => getComputedStyle(element).direction;
    const blocks = [...markdown.element.querySelectorAll("p, li")].filter((each) => !each.querySelector("p"));
    return [direction(document.querySelector(".said")), ...blocks.map(direction), direction(document.querySelector("#message"))];
  });
  assert.deepEqual(directions, ["rtl", "rtl", "ltr", "rtl", "ltr", "ltr"]);
});
