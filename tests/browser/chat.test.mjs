/** What people expect of a chat page, in a real Chromium: list, search, settings, feedback, sharing, languages, themes, offline. */
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";

import { axePath, Browser, Server, temporaryFolder, texts, watch } from "./harness.mjs";

const SHOTS = process.env.SESSILE_TEST_SHOTS;
const PRICES = 'currency = "USD"\n[[prices]]\nmodel = "*"\ninput = 0.15\noutput = 0.6\n';
const PHONE = { width: 390, height: 844 };
const browser = new Browser();
const server = new Server(["--sim-tokens-per-s", "300", "--sim-answer-tokens", "40"]);
const open = new Set();

before(async () => {
  const prices = join(server.data, "prices.toml");
  writeFileSync(prices, PRICES);
  server.args.push("--prices", prices);
  await Promise.all([browser.start(), server.start()]);
});
after(async () => {
  await browser.dispose();
  await server.dispose();
});
afterEach(async () => {
  for (const page of open) await page.context().close();
  open.clear();
});

async function visit({ at = server, path = "", before = async () => {}, ...options } = {}) {
  const page = await browser.page({ reducedMotion: "reduce", ...options });
  open.add(page);
  await before(page);
  await page.goto(at.url + path);
  return page;
}
async function ready(options) {
  const page = await visit(options);
  await page.waitForSelector('#link[data-phase="ready"]');
  return page;
}
async function say(page, text) {
  const before = await page.$$eval(".answer", (all) => all.length);
  await page.fill("#message", text);
  await page.press("#message", "Enter");
  await page.waitForFunction((count) => document.querySelectorAll(".answer").length > count && !document.querySelector(".writing, .pending"), before);
}
async function shot(page, name) {
  if (SHOTS) await page.screenshot({ path: join(SHOTS, `${name}.png`) });
}
/** Until a copy of the conversation with these words, answered, lies in the browser. */
const copied = (page, words) =>
  page.evaluate(async (wanted) => {
    for (const until = performance.now() + 15_000; performance.now() < until; await new Promise(requestAnimationFrame)) {
      for (const request of await (await caches.open("sessile-conversations")).keys()) {
        const text = (await (await caches.match(request))?.text()) ?? "";
        const items = text.includes(wanted) ? JSON.parse(text).state?.items : [];
        if (items?.some(({ role, status }) => role === "assistant" && status === "completed")) return;
      }
    }
    throw new Error(`no copy has the words ${wanted}, answered`);
  }, words);
const focused = (page) => page.evaluate(() => document.activeElement?.id || document.activeElement?.textContent);

/** By axe in the light, in the dark and on a phone, with nothing that stands out of the phone's screen. */
async function accessible(page, state) {
  await page.evaluate(readFileSync(axePath, "utf8"));
  for (const [look, scheme, size] of [["light", "light", null], ["dark", "dark", null], ["phone", "light", PHONE]]) {
    await page.emulateMedia({ colorScheme: scheme });
    if (size !== null) await page.setViewportSize(size);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
    assert.deepEqual(violations.map(({ id, nodes }) => `${state}, ${look}: ${id}: ${nodes.map(({ html, failureSummary }) => `${html} ${failureSummary}`).join("; ")}`), []);
    await shot(page, `${state}-${look}`);
  }
  const outside = await page.$$eval("dialog[open] *, .menu *, main *", (all) =>
    all.filter((each) => !each.closest("pre, .unseen, #link-text, .table, [inert]") && each.getBoundingClientRect().right > innerWidth + 1).map((each) => each.outerHTML.slice(0, 80)),
  );
  assert.deepEqual(outside, [], `${state}: outside the phone's screen`);
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.emulateMedia({ colorScheme: "light" });
}

test("the page speaks German, lists its keys, and keeps the theme and the language that were chosen", async () => {
  const page = await ready({ locale: "de-AT", bypassCSP: true });
  assert.equal(await page.getAttribute("html", "lang"), "de");
  await page.getByRole("button", { name: "Neue Unterhaltung" }).waitFor();
  assert.equal(await page.getAttribute("#message", "placeholder"), "Schreib eine Nachricht");
  assert.equal(await page.getAttribute("#operator:not([hidden])", "href"), "operator"); // whoever comes without a key where there are none
  await accessible(page, "welcome-german");
  await page.click("#preferences-open");
  await accessible(page, "preferences-german");
  await page.selectOption("#pref-theme", "dark");
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(15, 27, 29)");
  await page.selectOption("#pref-language", "en");
  await page.getByRole("button", { name: "New conversation" }).waitFor();
  await page.waitForSelector('#link[data-phase="ready"]');
  assert.deepEqual(await page.evaluate(() => [document.documentElement.lang, document.documentElement.dataset.theme]), ["en", "dark"]);
  await page.click("#preferences-open");
  await page.selectOption("#pref-theme", "system");
  await page.keyboard.press("Escape");
  await page.locator("#scroll").focus();
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard shortcuts" }).waitFor();
  await accessible(page, "help");
  await page.uncheck("#help-key");
  await page.keyboard.press("Escape");
  await page.waitForSelector("#help", { state: "detached" });
  await page.keyboard.press("?");
  assert.equal(await page.$("#help"), null);
  assert.deepEqual(page.troubles, []);
});

test("conversations are pinned, foldered, renamed, deleted and found from the list, by the keyboard alone", async () => {
  const page = await ready({ bypassCSP: true });
  await say(page, "Where do barnacles live?");
  await page.keyboard.press("Control+Shift+O");
  await say(page, "A lighthouse at night");
  await page.keyboard.press("Control+Shift+O");
  await say(page, "Something to be thrown away");
  const menu = async (title, ...downs) => {
    await page.getByRole("button", { name: `Actions for “${title}”` }).focus();
    await page.keyboard.press("Enter");
    for (const key of downs) await page.keyboard.press(key);
  };
  await page.click("#more");
  assert.equal(await focused(page), "Rename…");
  await accessible(page, "menu");
  await page.keyboard.press("Escape");
  assert.equal(await focused(page), "more");
  await menu("Where do barnacles live?", "ArrowDown", "Enter");
  await page.waitForSelector('section:first-child h2:text-is("Pinned") + ul >> text=barnacles');
  await menu("A lighthouse at night", "ArrowDown", "ArrowDown", "Enter");
  await accessible(page, "folder");
  await page.keyboard.type("Coast");
  await page.keyboard.press("Enter");
  await page.waitForSelector('h2:has-text("Coast") + ul >> text=lighthouse');
  await page.locator(".row", { hasText: "lighthouse" }).focus();
  await page.keyboard.press("F2");
  await accessible(page, "rename");
  await page.keyboard.type("Lights at sea");
  await page.keyboard.press("Enter");
  await page.waitForSelector('h2:has-text("Coast") + ul >> text="Lights at sea"');
  await shot(page, "list");
  await page.locator(".row", { hasText: "thrown away" }).focus();
  await page.keyboard.press("Delete");
  await page.waitForSelector("#confirm[open]");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => ![...document.querySelectorAll(".row")].some((row) => row.textContent.includes("thrown away")));

  await page.keyboard.press("Control+K");
  await page.keyboard.type("lights");
  await page.waitForFunction(() => document.querySelectorAll(".row").length === 1);
  await page.keyboard.press("Escape");
  await page.keyboard.type("lighthouse at night");
  await page.waitForSelector(".snippet mark");
  assert.match((await texts(page, ".row")).join(), /Lights at sea.*lighthouse at night/);
  await accessible(page, "search");
  await page.click("#search"); // a phone's screen has no list, and so no focus in it
  await page.keyboard.press("Escape");
  await page.waitForSelector(".fold");
  await page.reload();
  await page.waitForSelector('h2:has-text("Coast") + ul >> text="Lights at sea"');
  await page.click(".fold");
  assert.equal(await page.isVisible('text="Lights at sea"'), false);
  await page.setViewportSize(PHONE);
  await page.click("#side-open");
  await page.locator(".row-menu").first().click();
  const { x, width } = await page.locator(".menu").boundingBox();
  assert.ok(x >= 0 && x + width <= PHONE.width);
  await shot(page, "list-phone");
  await page.keyboard.press("Escape");
  assert.equal(await page.isVisible("#side-close"), true);
  await page.keyboard.press("Escape");
  assert.equal(await focused(page), "side-open");
  assert.deepEqual(page.troubles, []);
});

/** What people expect of a list and a message field: by what they do, and what they see then. */
const HABITS = [
  ["arrow up in an empty message field edits the last message", async (page) => {
    await page.press("#message", "ArrowUp");
    assert.equal(await page.inputValue(".edit textarea"), "Second question");
    await page.keyboard.press("Escape");
    await page.fill("#message", "words");
    await page.press("#message", "ArrowUp");
    assert.equal(await page.$(".edit textarea"), null, "a field with words in it is left alone");
    await page.fill("#message", "");
  }],
  ["what a search finds is announced", async (page) => {
    await page.fill("#search", "question");
    await page.waitForFunction(() => document.querySelector("#polite").textContent === "2 conversations found.");
    await page.fill("#search", "nowhere at all");
    await page.waitForFunction(() => document.querySelector("#polite").textContent === "Nothing found.");
    await page.fill("#search", "");
  }],
  ["conversations of programs, which have no title, are not in the list", async (page) => {
    const status = await page.evaluate(async () => (await fetch("/v1/responses", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ model: "simulated", input: "From a program" }) })).status);
    assert.equal(status, 200);
    await page.reload();
    await page.waitForSelector(".row");
    assert.deepEqual((await texts(page, ".row")).sort(), ["First question", "Second question"]);
  }],
  ["several are moved to a new folder, and one to a folder that is there", async (page) => {
    await choose(page, "First question", "Select several…");
    await accessible(page, "selection");
    await page.getByRole("checkbox", { name: "Select “Second question”" }).check();
    await page.getByRole("group", { name: "Selected conversations" }).getByRole("button", { name: "Move to a folder…" }).click();
    await page.keyboard.type("Coast");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll("h2 .fold").length === 1 && document.querySelectorAll("section:has(.fold) .row").length === 2);
    await choose(page, "First question", "Move to a folder…");
    assert.deepEqual(await texts(page, "#among option"), ["No folder", "Coast", "New folder…"]);
    await page.selectOption("#among", { label: "No folder" });
    await page.getByRole("button", { name: "Save" }).click();
    await page.waitForFunction(() => document.querySelectorAll("section:has(.fold) .row").length === 1);
    await choose(page, "First question", "Move to a folder…");
    await page.selectOption("#among", { label: "Coast" });
    await page.getByRole("button", { name: "Save" }).click();
    await page.waitForFunction(() => document.querySelectorAll("section:has(.fold) .row").length === 2);
  }],
  ["several are deleted, which can be taken back, and is done when the page closes first", async (page) => {
    await choose(page, "First question", "Select several…");
    await page.getByRole("checkbox", { name: "Select “Second question”" }).check();
    await page.getByRole("group", { name: "Selected conversations" }).getByRole("button", { name: "Delete" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".row").length === 0);
    await page.getByText("2 conversations were deleted.").waitFor();
    await page.getByRole("button", { name: "Undo" }).click();
    await page.waitForFunction(() => document.querySelectorAll(".row").length === 2);
    await choose(page, "First question", "Select several…");
    await page.getByRole("group", { name: "Selected conversations" }).getByRole("button", { name: "Delete" }).click();
    await page.getByText("1 conversation was deleted.").waitFor();
    await page.reload();
    await page.waitForFunction(async () => (await (await fetch("/v1/sessions")).json()).data.every(({ title }) => title !== "First question"));
    await page.waitForFunction(() => document.querySelectorAll(".row").length === 1);
  }],
];
/** Chooses from a conversation's menu. */
async function choose(page, title, item) {
  await page.getByRole("button", { name: `Actions for “${title}”` }).click();
  await page.getByRole("menuitem", { name: item }).click();
}

test("what people began is listed in their other browsers, by its first words until it has a title; what programs began is not", async () => {
  const own = await new Server(["--sim-tokens-per-s", "300", "--sim-answer-tokens", "10", "--titles", "off"]).start();
  try {
    const page = await ready({ at: own });
    await say(page, "Begun on the page");
    await page.evaluate(async () => {
      const post = async (path, body) => (await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })).json();
      await post("/v1/responses", { model: "simulated", input: "From a program" });
      await post("/v1/conversations", { items: [{ type: "message", role: "user", content: "Kept by a program" }] });
      const { session } = await post("/v1/commands", { type: "session.create", id: "01J0000000000000000000000A" });
      await post("/v1/commands", { type: "message.create", id: "01J0000000000000000000000B", session, content: "Asked with an SDK\nand more" });
    });
    const other = await ready({ at: own });
    await other.waitForFunction(() => document.querySelectorAll(".row").length === 2);
    assert.deepEqual((await texts(other, ".row-title")).sort(), ["Asked with an SDK", "Begun on the page"]);
    const read = [];
    other.on("request", (request) => request.url().includes("/events?") && read.push(request.url()));
    await say(other, "Begun elsewhere"); // the list is read anew, and what was looked at is not
    await other.waitForFunction(() => document.querySelectorAll(".row").length === 3);
    assert.deepEqual(read, []);
    await other.click("text=Asked with an SDK");
    await other.waitForSelector(".said >> text=and more");
    assert.deepEqual([...page.troubles, ...other.troubles], []);
  } finally {
    await own.dispose();
  }
});

/** Where the last paragraph of a question begins and ends, and where the question's words may. */
const lastParagraph = (page) =>
  page.$eval(".said", (said) => {
    const [text, from] = [said.firstChild, said.textContent.lastIndexOf("\n") + 1];
    const place = (at) => {
      const range = document.createRange();
      range.setStart(text, at);
      range.setEnd(text, at + 1);
      return range.getBoundingClientRect();
    };
    const { left, right } = said.getBoundingClientRect();
    const { paddingLeft, paddingRight } = getComputedStyle(said);
    return { first: place(from), last: place(text.length - 1), left: left + parseFloat(paddingLeft), right: right - parseFloat(paddingRight) };
  });

test("each paragraph of a question reads in its own direction, on the page and where it is shared", async () => {
  const page = await ready();
  const arabic = "\u0645\u0631\u062d\u0628\u0627 ".repeat(12).trim();
  await say(page, `${arabic}.\n\nEnglish here.`);
  const english = await lastParagraph(page);
  assert.ok(Math.abs(english.first.left - english.left) < 2, "it begins at the left");
  assert.ok(english.last.left > english.first.right, "its full stop stands behind it");
  await page.keyboard.press("Control+Shift+O");
  await page.waitForFunction(() => document.querySelector(".said") === null);
  await say(page, `An English paragraph that is long enough for a line of its own.\n\n${arabic.slice(0, 11)}.`);
  const other = await lastParagraph(page);
  assert.ok(Math.abs(other.first.right - other.right) < 2, "it begins at the right");
  assert.ok(other.last.right < other.first.left, "its full stop stands behind it");
  await page.click("#more");
  await page.getByRole("menuitem", { name: "Share…" }).click();
  await page.getByRole("button", { name: "Make a link" }).click();
  await page.waitForSelector("#share-link:not([hidden])");
  const guest = await browser.page();
  open.add(guest);
  await guest.goto(await page.inputValue("#share-link"));
  await guest.waitForSelector(".said");
  const shared = await lastParagraph(guest);
  assert.ok(Math.abs(shared.first.right - shared.right) < 2, "shared, too");
});

test("what an edit of an older message was left with is there after a reload, until it ends", async () => {
  const page = await ready();
  await say(page, "An older question");
  await say(page, "A newer question");
  await page.locator(".user").first().hover();
  await page.getByRole("button", { name: "Edit and ask again" }).first().click();
  await page.fill(".edit textarea", "An older question, put better");
  await page.reload();
  await page.waitForSelector(".edit");
  assert.equal(await page.inputValue(".edit textarea"), "An older question, put better");
  assert.equal(await focused(page), "message");
  await page.focus(".edit textarea");
  await page.keyboard.press("Escape");
  assert.deepEqual(await texts(page, ".said"), ["An older question", "A newer question"]);
  await page.reload();
  await page.waitForSelector(".said >> text=A newer question");
  assert.equal(await page.$(".edit"), null);
  await page.getByRole("button", { name: "Edit and ask again" }).first().click();
  await page.fill(".edit textarea", "Asked anew");
  await page.reload();
  await page.waitForSelector(".edit");
  await page.press(".edit textarea", "Enter");
  await page.waitForSelector(".said >> text=Asked anew");
  assert.equal(await page.$(".edit"), null);
  assert.deepEqual(page.troubles, []);
});

test("the list and the message field do what people expect", async () => {
  const own = new Server(["--sim-tokens-per-s", "300", "--sim-answer-tokens", "40"]);
  await own.start();
  try {
    const page = await ready({ at: own, bypassCSP: true });
    await say(page, "First question");
    await page.keyboard.press("Control+Shift+O");
    await say(page, "Second question");
    for (const [name, act] of HABITS) await act(page).catch((error) => assert.fail(`${name}: ${error.stack}`));
    assert.deepEqual(page.troubles, []);
  } finally {
    await own.dispose();
  }
});

/** Has the next message of a conversation answered by this model. */
async function chooseModel(page, model) {
  await page.click("#settings-open");
  await page.waitForSelector("#settings[open]");
  assert.match(await page.textContent("#set-model-next"), /answers from your next message on/);
  await page.selectOption("#set-model", model);
  await page.click('#settings >> text="Save"');
  await page.waitForFunction((name) => document.querySelector("#settings-model").textContent === name, model);
}

test("another model waits for the answer's end: what was typed stays, with what to do, and is sent from there", async () => {
  const folder = temporaryFolder();
  const file = join(folder, "models.toml");
  writeFileSync(file, '[models.simulated]\nquality = 1\n[aliases]\nbest = "simulated"\n');
  const own = await new Server(["--models", file, "--sim-tokens-per-s", "10", "--sim-answer-tokens", "4000"]).start();
  try {
    const page = await browser.page();
    const frames = [];
    page.on("websocket", (socket) => socket.on("framesent", ({ payload }) => frames.push(String(payload))));
    await page.goto(own.url);
    await page.waitForSelector('#link[data-phase="ready"]');
    await page.fill("#message", "Tell me everything.");
    await page.press("#message", "Enter");
    await page.waitForSelector(".writing");
    await chooseModel(page, "best");
    await page.fill("#message", "And you?");
    await page.press("#message", "Enter");
    await page.waitForSelector(".failed .note >> text=Not sent: Another model cannot begin while an answer is being written here.");
    await page.click("#stop");
    await page.waitForSelector(".note >> text=Stopped.");
    await page.click(".failed button >> text=Try again");
    await page.waitForSelector(".writing");
    assert.equal(await page.locator(".failed").count(), 0);
    assert.equal(frames.filter((each) => each.includes("message.create") && each.includes("And you?") && each.includes("best")).length, 2);
    assert.deepEqual(page.troubles, []);
  } finally {
    await own.dispose();
    rmSync(folder, { recursive: true });
  }
});

test("another model may answer in a conversation; one that is not there is named, and what was typed stays", async () => {
  const folder = temporaryFolder();
  const file = join(folder, "models.toml");
  writeFileSync(file, '[models.simulated]\nquality = 1\n[aliases]\nbest = "simulated"\n');
  const own = await new Server(["--models", file]).start();
  try {
    const page = await browser.page();
    await page.route("**/v1/models", async (route) => {
      const answer = await route.fetch();
      const list = await answer.json();
      await route.fulfill({ json: { ...list, data: [...list.data, { id: "gone", notice: null }] } });
    });
    const frames = [];
    page.on("websocket", (socket) => socket.on("framesent", ({ payload }) => frames.push(String(payload))));
    await page.goto(own.url);
    await page.waitForSelector('#link[data-phase="ready"]');
    await say(page, "Hello");
    await page.waitForFunction(() => document.querySelectorAll(".meta").length === 1);
    await chooseModel(page, "best");
    assert.equal(await page.textContent("#polite"), "best answers your next message.");
    await say(page, "And you?");
    await page.waitForFunction(() => document.querySelectorAll(".meta").length === 2);
    assert.equal(frames.filter((each) => each.includes("message.create") && each.includes("best")).length, 1);
    await chooseModel(page, "gone");
    await page.fill("#message", "Still there?");
    await page.press("#message", "Enter");
    await page.waitForSelector(".note >> text=Not sent: No replica serves the model 'gone' at the moment.");
    await chooseModel(page, "simulated");
    await page.click("text=Try again");
    await page.waitForFunction(() => document.querySelectorAll(".meta").length === 3);
    assert.equal(await page.textContent("#settings-model"), "simulated");
    assert.deepEqual(page.troubles, []);
  } finally {
    await own.dispose();
    rmSync(folder, { recursive: true });
  }
});

test("a conversation has its settings, presets keep them, and each answer says when, how much, for how much and by whom", async () => {
  let release = () => {};
  const asked = new Promise((resolve) => (release = resolve));
  const before = (page) => page.route("**/v1/models", (route) => asked.then(() => route.continue()));
  const page = await ready({ bypassCSP: true, before });
  await page.keyboard.press("Control+Shift+Comma"); // as soon as the page is there: its models may not be
  release();
  await page.waitForSelector("#settings[open]");
  assert.equal(await page.inputValue("#set-model"), "simulated");
  assert.match(await page.textContent("#set-model-facts"), / tokens · \$0\.15 in, \$0\.60 out per million$/);
  await page.fill("#set-prompt", "Answer like a pirate.");
  await page.fill("#set-temperature", "0.3");
  await page.fill("#set-length", "7");
  await page.click("text=Save as preset");
  await page.keyboard.type("Pirate");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#set-preset")?.value === "Pirate");
  await accessible(page, "settings");
  await page.click("#settings >> text=Cancel");
  await page.click("#settings-open");
  await page.selectOption("#set-preset", "Pirate");
  assert.equal(await page.inputValue("#set-length"), "7");
  await page.click('#settings >> text="Save"');
  await say(page, "Ahoy");
  await page.waitForSelector(".note >> text=Cut off at the length limit.");
  assert.match(await page.textContent(".meta"), /^\d{1,2}:\d{2}.* · [1-7] tokens · \$0\.0000\d+ · simulated$/);
  await page.click("#settings-open");
  await page.waitForSelector("#settings[open]");
  assert.deepEqual(await page.$$eval("#set-prompt, #set-temperature, #set-length", (all) => all.map((each) => each.value)), ["Answer like a pirate.", "0.3", "7"]);
  assert.equal(await page.isVisible("#set-model-next"), false, "there is one model");
  await page.fill("#set-length", "");
  await page.click('#settings >> text="Save"');
  await say(page, "And longer");
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll(".meta").length === 2);
  assert.match((await texts(page, ".meta"))[1], / · \d\d tokens · /);

  assert.equal(await page.$eval('.user button[aria-label="Edit and ask again"]', (button) => getComputedStyle(button).opacity), "1");
  await page.locator('button[aria-label="Good answer"]').first().click();
  await page.waitForSelector('button[aria-label="Good answer"][aria-pressed="true"]');
  await page.locator('button[aria-label="Bad answer"]').last().focus();
  await page.keyboard.press("Enter");
  await page.waitForSelector("#feedback[open]");
  await page.keyboard.press("Space");
  await page.fill("#reason-words", "There is no such rock.");
  await accessible(page, "feedback");
  await page.click("#feedback >> text=Send");
  await page.waitForSelector('button[aria-label="Bad answer"][aria-pressed="true"]');
  const { data } = await (await fetch(`${server.url}v1/reviews`)).json();
  const opened = await (await fetch(`${server.url}v1/reviews/${data[0].id}`)).json();
  assert.equal(opened.note, "It is wrong: There is no such rock.");
  await accessible(page, "answers");
  assert.deepEqual(page.troubles, []);
});

test("a shared link is read without a key or a script of others, and no more once it is revoked; a conversation is exported", async () => {
  const page = await ready({ bypassCSP: true });
  await say(page, "Worth sharing");
  await page.click("#more");
  const file = page.waitForEvent("download");
  await page.getByRole("menuitem", { name: "Export as Markdown" }).click();
  assert.match((await file).suggestedFilename(), /^Worth sharing\.md$/);
  assert.match(readFileSync(await (await file).path(), "utf8"), /Worth sharing/);
  await page.click("#more");
  await page.getByRole("menuitem", { name: "Share…" }).click();
  await page.waitForSelector(".shares .none");
  await page.click("#share-make");
  const link = await page.inputValue("#share-link");
  await page.waitForFunction(() => document.querySelectorAll(".shares button").length === 1);
  await accessible(page, "share");

  const guest = await visit({ path: new URL(link).pathname.slice(1) + new URL(link).hash, bypassCSP: true });
  await guest.getByRole("heading", { name: "Worth sharing" }).waitFor();
  assert.deepEqual(await texts(guest, ".said"), ["Worth sharing"]);
  assert.ok((await guest.textContent(".prose")).length > 20);
  assert.equal(await guest.$("dialog, input, textarea"), null);
  await accessible(guest, "shared");
  const revoking = (route) => (route.request().method() === "DELETE" ? route.abort() : route.fallback());
  await page.route("**/shares/*", revoking);
  await page.click(".shares button");
  await page.getByText("There is no connection to the server.").waitFor();
  assert.equal(await page.getByText("The link leads nowhere now.").count(), 0);
  assert.deepEqual(page.troubles.splice(0), ["Failed to load resource: net::ERR_FAILED"]);
  await page.unroute("**/shares/*", revoking);
  await page.click(".shares button");
  await page.waitForSelector(".shares .none");
  await guest.reload();
  await guest.getByRole("heading", { name: "This link leads nowhere" }).waitFor();
  assert.deepEqual(page.troubles, []);
});

test("without the server the page opens at once and what was read is there; it says that it is offline, and goes on afterwards", async () => {
  const lone = await new Server(["--sim-tokens-per-s", "300", "--sim-answer-tokens", "30"]).start();
  try {
    const page = await ready({ at: lone, serviceWorkers: "allow" });
    await say(page, "Keep this for the tunnel");
    const address = page.url();
    const answer = await page.textContent(".answer .prose");
    await page.evaluate(async () => void (await navigator.serviceWorker.ready));
    const copies = () => page.evaluate(async () => (await (await caches.open("sessile-conversations")).keys()).map(({ url }) => url));
    await copied(page, "Keep this for the tunnel");
    await page.reload(); // now it is the worker's
    const forFormulas = (at) => at.evaluate(async () => (await import(new URL("chat.js", location.href).href)).loadMaths());
    const kept = () => page.evaluate(async () => (await (await caches.open("sessile-page")).keys()).filter(({ url }) => url.includes("/temml.")).length);
    const [before, isThere, after] = [await kept(), await forFormulas(page), await kept()];
    assert.deepEqual([before, isThere, after > 0], [0, true, true], "what sets formulas is kept once it was loaded");
    await lone.stop("SIGKILL");
    const next = watch(await page.context().newPage());
    await next.goto(address);
    assert.equal(await forFormulas(next), true);
    await next.waitForFunction((text) => document.querySelector(".answer .prose")?.textContent === text, answer);
    await next.reload();
    await next.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
    await next.waitForSelector(".row >> text=Keep this for the tunnel");
    await next.context().setOffline(true);
    await next.waitForSelector("#notice:not([hidden]) >> text=You are offline.");
    await next.fill("#message", "a draft");
    await next.reload();
    await next.waitForSelector(".said >> text=Keep this for the tunnel");
    assert.equal(await next.inputValue("#message"), "a draft");
    await shot(next, "offline");
    await next.context().setOffline(false);
    await lone.start();
    await next.waitForSelector('#link[data-phase="ready"]');
    await next.press("#message", "Enter");
    await next.waitForFunction(() => document.querySelectorAll(".answer").length === 2 && !document.querySelector(".writing"));
    assert.equal((await copies()).every((url) => !url.includes("v1")), true);
    const installs = await next.evaluate(async () => {
      const { icons, start_url } = await (await fetch(document.querySelector('link[rel="manifest"]').href)).json();
      const loaded = await Promise.all(icons.map(async ({ src }) => (await fetch(src)).ok));
      return { loaded, start_url, maskable: icons.some(({ purpose }) => purpose === "maskable") };
    });
    assert.deepEqual(installs, { loaded: [true, true, true], start_url: "./", maskable: true });
  } finally {
    await lone.dispose();
  }
});

test("whoever forgets a key leaves no conversation in the browser, and no key is ever written into its caches", async () => {
  const locked = new Server(["--sim-tokens-per-s", "300", "--sim-answer-tokens", "20"]);
  const keys = join(locked.data, "keys.toml");
  writeFileSync(keys, `[[keys]]\nsha256 = "${createHash("sha256").update("sk-right").digest("hex")}"\ntenant = "t"\nid = "k1"\n`);
  locked.args.push("--keys", keys);
  await locked.start();
  try {
    const page = await visit({ at: locked, serviceWorkers: "allow" });
    await page.waitForSelector("#key[open]");
    await page.keyboard.type("sk-right");
    await page.keyboard.press("Enter");
    await page.waitForSelector('#link[data-phase="ready"]');
    assert.equal(await page.isVisible("#operator"), false);
    await say(page, "A secret of mine");
    await copied(page, "A secret of mine");
    const kept = await page.evaluate(async () => {
      const found = [];
      for (const name of await caches.keys()) {
        for (const request of await (await caches.open(name)).keys()) found.push(request.url, await (await caches.match(request)).text());
      }
      return found.concat(Object.entries(localStorage).flat()).join("\n");
    });
    assert.match(kept, /A secret of mine/);
    assert.doesNotMatch(kept, /sk-right/);
    await page.click("#who-button");
    await page.waitForSelector("#key[open]");
    const left = await page.evaluate(async () => [await caches.has("sessile-conversations") && "copies", ...Object.values(sessionStorage), ...Object.values(localStorage)].join());
    assert.doesNotMatch(left, /copies|secret|sk-right/);
  } finally {
    await locked.dispose();
  }
});
