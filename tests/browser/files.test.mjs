/** Files on the page in a real Chromium, against the real server: added, uploaded, sent, removed, and kept where something fails. */
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { Browser, say, Server, texts, written } from "./harness.mjs";

const browser = new Browser();
const server = new Server(["--input-keywords", "forbidden", "--sim-tokens-per-s", "150", "--sim-answer-tokens", "60"]);
const open = new Set();

before(async () => {
  await browser.start();
  await server.start();
});
after(async () => {
  await browser.dispose();
  await server.dispose();
});
afterEach(async () => {
  for (const page of open) await page.context().close();
  open.clear();
});

async function visit() {
  const page = await browser.page();
  open.add(page);
  await page.goto(server.url);
  await page.waitForSelector('#link[data-phase="ready"]');
  return page;
}
async function editInto(page, question, text) {
  await page.hover(question);
  await page.click(`${question} button[aria-label="Edit and ask again"]`);
  await page.fill(".edit textarea", text);
  await page.press(".edit textarea", "Enter");
}
async function edit(page, question, text) {
  await editInto(page, question, text);
  await page.waitForFunction((text) => [...document.querySelectorAll(".message.user:not(.pending) .said")].some((said) => said.textContent === text), text);
}
/** The ids of the files that the server keeps for this page. */
const stored = (page) => page.evaluate(async () => (await (await fetch("/v1/files?limit=1000")).json()).data.map((file) => file.id));
const isUploaded = (page, n) => page.waitForFunction((n) => [...document.querySelectorAll("#attachments .sent")].filter((sent) => sent.textContent === "").length === n, n);
const aFile = (name, text = name) => ({ name, mimeType: "text/plain", buffer: Buffer.from(text) });
/** Texts of the newest question's parts, and ids of its files, as the log has them. */
const asked = (page) =>
  page.evaluate(async () => {
    const { SessileClient } = await import("/sessile.js");
    const client = new SessileClient({ url: location.origin });
    const session = client.session(new URLSearchParams(location.search).get("session")).open();
    await session.live();
    const item = session.view.thread().findLast((entry) => entry.item?.role === "user").item;
    client.close();
    return { texts: item.content.map((part) => part.text.replace(/\[.*\]/g, "").trim()), ids: item.content.flatMap((part) => part.file_id ?? []) };
  });

test("files are chosen, dropped or pasted, uploaded at once, and the model reads them", async () => {
  const page = await visit();
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.items.add(new File(["x"], "elsewhere.txt"));
    document.querySelector("#search").dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  assert.equal(await page.isVisible("#attachments"), false, "other fields' pastes are theirs");
  await page.setInputFiles("#files", { name: "rates.md", mimeType: "text/markdown", buffer: Buffer.from("Interest rates fell in March.") });
  await page.waitForFunction(() => document.querySelector("#attachments .sent")?.textContent === "");
  for (const type of ["drop", "paste"]) {
    await page.evaluate((type) => {
      const data = new DataTransfer();
      data.items.add(new File([`by ${type}`], `${type}.txt`, { type: "text/plain" }));
      const event = type === "drop" ? new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }) : new ClipboardEvent(type, { clipboardData: data, bubbles: true, cancelable: true });
      document.querySelector("#message").dispatchEvent(event);
    }, type);
  }
  await isUploaded(page, 3);
  const before = await stored(page);
  const deleted = page.waitForResponse((response) => response.request().method() === "DELETE");
  await page.click('#attachments [aria-label="Remove paste.txt"]');
  assert.equal((await deleted).status(), 200);
  assert.equal((await stored(page)).length, before.length - 1, "what was removed is deleted on the server");
  await page.reload();
  await isUploaded(page, 2);
  assert.deepEqual(await texts(page, "#attachments .name"), ["rates.md", "drop.txt"]);
  await say(page, "What of the rates?");
  await written(page);
  assert.deepEqual([await texts(page, ".user .said"), await texts(page, ".user .file")], [["What of the rates?"], ["rates.md", "drop.txt"]]);
  assert.equal(await page.isVisible("#attachments"), false);
  await page.click("#more");
  await page.getByRole("menuitem", { name: "Share…" }).click();
  await page.click("#share-make");
  const guest = await page.context().newPage();
  await guest.goto(await page.inputValue("#share-link"));
  await guest.waitForSelector(".user .said");
  assert.deepEqual([await texts(guest, ".user .said"), await texts(guest, ".user .file")], [["What of the rates?"], ["rates.md", "drop.txt"]]);
  await guest.close();
  await page.keyboard.press("Escape");
  const { texts: words, ids } = await asked(page);
  assert.deepEqual(words, ["Interest rates fell in March.", "by drop", "What of the rates?"]);
  const statuses = await page.evaluate((ids) => Promise.all(ids.map(async (id) => (await fetch(`/v1/files/${id}`, { method: "DELETE" })).status)), ids);
  assert.deepEqual(statuses, [200, 200]);
  await editInto(page, ".user", "A forbidden month?");
  await page.waitForSelector(".failed .said >> text=A forbidden month?");
  assert.deepEqual(await texts(page, ".failed .file"), ["rates.md", "drop.txt"], "a refused edit keeps them, too");
  assert.deepEqual(await texts(page, ".failed button"), ["Try again", "Edit", "Discard"], "a review would see the words alone");
  await page.click('.failed button:text-is("Edit")');
  assert.equal(await page.inputValue(".edit textarea"), "A forbidden month?");
  await page.fill(".edit textarea", "And in April?");
  await page.press(".edit textarea", "Enter");
  await page.waitForFunction(() => document.querySelector(".message.user:not(.pending) .said")?.textContent === "And in April?");
  assert.deepEqual((await asked(page)).texts, ["Interest rates fell in March.", "by drop", "And in April?"], "an edit keeps the files, which are deleted");
  await written(page);
  await page.evaluate(async () => {
    const { SessileClient } = await import("/sessile.js");
    const client = new SessileClient({ url: location.origin });
    const session = client.session(new URLSearchParams(location.search).get("session")).open();
    await session.send([{ type: "input_file", filename: "bytes.txt", file_data: btoa("by bytes") }, { type: "input_text", text: "And these?" }]);
    client.close();
  });
  await page.waitForFunction(() => document.querySelectorAll(".user").length === 2 && document.querySelectorAll(".answer").length === 2 && !document.querySelector(".writing"));
  await edit(page, ".user:nth-last-of-type(2)", "And those?");
  assert.deepEqual((await asked(page)).texts, ["by bytes", "And those?"], "an edit keeps files that came as bytes");
  assert.deepEqual(page.troubles, []);
});

test("a file that is added to a conversation that was begun here stays with it, as a refused message does", async () => {
  const page = await visit();
  await page.fill("#message", "Hello there.");
  await page.evaluate(() => {
    document.querySelector("#composer").requestSubmit();
    const dataTransfer = new DataTransfer(); // The conversation is being made meanwhile.
    dataTransfer.items.add(new File(["mine"], "mine.txt"));
    document.querySelector("#message").dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
  });
  await written(page);
  await isUploaded(page, 1);
  const address = page.url();
  await page.click("#new");
  assert.equal(await page.isVisible("#attachments"), false);
  await page.goBack();
  await page.waitForSelector("#attachments .name >> text=mine.txt");
  await page.reload();
  await page.waitForSelector("#attachments .name >> text=mine.txt");
  // The server refuses the message, whose file was deleted, while another conversation is shown.
  await page.evaluate(async () => {
    for (const { id, filename } of (await (await fetch("/v1/files?limit=1000")).json()).data) if (filename === "mine.txt") await fetch(`/v1/files/${id}`, { method: "DELETE" });
  });
  await page.waitForSelector('#link[data-phase="ready"]');
  await page.fill("#message", "Read it.");
  await page.evaluate(() => {
    document.querySelector("#composer").requestSubmit();
    document.querySelector("#new").click();
  });
  await page.waitForFunction(() => document.querySelector("#urgent").textContent.startsWith("Not sent:"));
  assert.equal(await page.$(".failed"), null);
  await page.goBack();
  await page.waitForSelector(".failed .said >> text=Read it.");
  assert.equal(page.url(), address);
  assert.deepEqual(await texts(page, ".failed .file"), ["mine.txt"]);
});

test("an upload of a file that fails keeps its place and reason, and can be tried again", async () => {
  const page = await visit();
  let [tries, running, most] = [0, 0, 0];
  await page.route("**/v1/files", async (route) => {
    const attempt = tries++;
    most = Math.max(most, ++running);
    const busy = { status: 429, headers: { "retry-after": "1" }, json: { error: { message: "Too many.", code: "rate_limited" } } };
    const refusal = { status: 413, json: { error: { message: "A file has at most 3 bytes.", code: "file_too_large" } } };
    const answer = attempt === 0 ? refusal : attempt === 1 ? busy : { response: await route.fetch() };
    running--;
    await route.fulfill(answer);
  });
  const names = ["large.txt", "small.txt", "c.txt", "d.txt", "e.txt"];
  await page.setInputFiles("#files", names.map((name) => aFile(name)));
  await page.waitForSelector("#attachments .bad .sent >> text=at most 3 bytes");
  await isUploaded(page, 4);
  assert.ok(most <= 3, "three at a time");
  assert.equal(tries, 6, "where the server is busy it is asked again");
  assert.deepEqual(await texts(page, "#attachments .name"), names);
  await say(page, "What is in it?");
  await page.waitForSelector("#notice:not([hidden]) >> text=A file was not uploaded");
  assert.equal(await page.inputValue("#message"), "What is in it?");
  await page.click('#attachments .bad [aria-label^="Upload"]');
  await isUploaded(page, 5);
  await page.press("#message", "Enter");
  await written(page);
  assert.deepEqual(await texts(page, ".user .file"), names);
});

test("a file that is refused is named with the reason, and nothing is sent of it", async () => {
  const page = await visit();
  await page.setInputFiles("#files", { name: "picture.png", mimeType: "image/png", buffer: Buffer.from("\x89PNG\r\n\x1a\n", "latin1") });
  await page.waitForFunction(() => document.querySelector("#notice-text")?.textContent !== "" || document.querySelector("#attachments .sent")?.textContent === "");
  await say(page, "What is on it?");
  await page.waitForFunction(() => document.querySelector(".failed, .answer"));
  const shown = await page.evaluate(() => [document.querySelector("#urgent").textContent, document.querySelector(".failed .said")?.textContent]);
  assert.match(shown[0], /image/);
  assert.deepEqual(await texts(page, ".failed .file"), ["picture.png"]);
  const before = await stored(page);
  const deleted = page.waitForResponse((response) => response.request().method() === "DELETE");
  await page.click(".failed >> text=Discard");
  assert.equal((await deleted).status(), 200);
  assert.equal((await stored(page)).length, before.length - 1, "a discarded message takes its files along");
});

test("a message of files alone shows them while it waits, and when it is refused", async () => {
  const page = await visit();
  const shown = await page.evaluate(async () => {
    const { Thread } = await import(new URL("chat.js", location.href).href);
    const thread = new Thread(document.createElement("ol"), {});
    const files = [{ type: "input_file", file_id: "file-1", filename: "a.txt" }];
    const queued = { id: "q", status: "queued", waiting: { role: "user", content: files } };
    thread.render([], [queued], [{ id: "p", text: "", files, state: "sending" }, { id: "f", text: "", files, state: "failed", error: "no", refused: true }]);
    return [...thread.root.children].map((message) => [...message.querySelectorAll(".file, .said")].map((element) => element.textContent));
  });
  assert.deepEqual(shown, [["a.txt"], ["a.txt"], ["a.txt"]]);
});

test("an image goes to a model that sees as an image, is shown in its message, and stays through an edit", async () => {
  const seeing = new Server(["--images", "yes", "--sim-tokens-per-s", "300", "--sim-answer-tokens", "20"]);
  await seeing.start();
  try {
    const page = await browser.page();
    open.add(page);
    await page.goto(seeing.url);
    await page.waitForSelector('#link[data-phase="ready"]');
    const data = await page.evaluate(() => {
      const canvas = document.createElement("canvas");
      canvas.width = 60;
      canvas.height = 40;
      canvas.getContext("2d").fillRect(0, 0, 30, 40);
      return canvas.toDataURL("image/png").split(",")[1];
    });
    await page.setInputFiles("#files", { name: "square.png", mimeType: "image/png", buffer: Buffer.from(data, "base64") });
    await isUploaded(page, 1);
    await page.waitForSelector("#attachments canvas.thumbnail");
    await page.fill("#message", "What is it?");
    await page.press("#message", "Enter");
    await page.waitForFunction(() => document.querySelector(".message.user:not(.pending) .image img")?.naturalWidth === 60);
    await edit(page, ".message.user", "What is it really?");
    assert.equal(await page.locator(".message.user:not(.pending) .image img").count(), 1, "the edit keeps it");
    const [question] = await page.evaluate(async () => {
      const { SessileClient } = await import("/sessile.js");
      const client = new SessileClient({ url: location.origin });
      const session = client.session(new URLSearchParams(location.search).get("session")).open();
      await session.live();
      const items = session.view.thread().filter((entry) => entry.item?.role === "user").map((entry) => entry.item.content.map((part) => part.type));
      client.close();
      return items;
    });
    assert.deepEqual(question, ["input_image", "input_text"]);
  } finally {
    await seeing.dispose();
  }
});
