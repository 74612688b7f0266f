/** Signing in with a real provider in a real Chromium: the chat page, the operator's page, what scripts can read, signing out. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { after, before, test } from "node:test";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

import { Browser, Server } from "./harness.mjs";

const PROVIDER = fileURLToPath(new URL("../support/openid/provider.mjs", import.meta.url));
let provider, server, browser, issuer;

before(async () => {
  const probe = createServer().listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address();
  probe.close();
  await once(probe, "close");
  const page = `http://127.0.0.1:${port}`;
  provider = spawn(process.execPath, [PROVIDER, JSON.stringify({ page, secret: "s3cret" })], { stdio: ["ignore", "pipe", "inherit"] });
  [issuer] = await once(createInterface({ input: provider.stdout }), "line");
  process.env.SESSILE_OIDC_CLIENT_SECRET = "s3cret";
  server = new Server([
    "--oidc-issuer", issuer, "--oidc-client-id", "sessile", "--oidc-scopes", "openid,offline_access", "--oidc-tenant-claim", "org",
    "--oidc-role-claim", "groups", "--oidc-roles", "user,operator", "--public-url", page,
  ]);
  server.port = port;
  await server.start();
  browser = await new Browser().start();
});
after(async () => {
  await browser?.dispose();
  await server?.dispose();
  provider?.kill();
});

/** A page that reaches this machine only: the provider's own pages name a font elsewhere. */
async function opened(path) {
  const page = await browser.page();
  await page.route(/^https:/, (route) => route.abort());
  await page.goto(server.url + path);
  return page;
}

/** Fills in the provider's own pages. */
async function atProvider(page, login) {
  await page.waitForURL(`${issuer}/**`);
  await page.locator("input[name=login]").fill(login);
  await page.locator("input[name=password]").fill("any");
  await page.locator("button[type=submit]").click();
  await page.getByRole("button", { name: /continue/i }).click();
}

test("a person signs in, talks, is known after a reload, and signs out everywhere", async () => {
  const page = await opened("");
  await page.getByRole("dialog", { name: "This server asks who you are" }).waitFor();
  assert.equal(await page.locator("#key-input").isVisible(), false);
  await page.locator("#key-sign-in").click();
  await atProvider(page, "ana");
  await page.getByText("Signed in as ana").waitFor();
  await page.getByRole("textbox", { name: "Message" }).fill("Of the sea.");
  await page.keyboard.press("Enter");
  await page.locator("#thread li").nth(1).waitFor();
  await page.reload();
  await page.locator("#thread li").nth(1).waitFor();
  const seen = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, Object.keys(sessionStorage)]));
  assert.doesNotMatch(seen, /sessile-(session|refresh|hint|begin|key)/);
  const kept = await page.context().cookies(server.url);
  const ours = kept.filter((each) => each.name.startsWith("sessile-"));
  assert.deepEqual(ours.map((each) => [each.name, each.httpOnly, each.sameSite]), [["sessile-session", true, "Strict"]]);
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForURL(`${issuer}/**`);
  await page.getByRole("button", { name: /yes/i }).click();
  await page.waitForURL(server.url);
  await page.getByRole("dialog", { name: "This server asks who you are" }).waitFor();
  await page.context().addCookies(ours);
  const stale = await page.evaluate(() => fetch("v1/models").then((answer) => answer.status));
  assert.equal(stale, 401);
  await page.context().close();
});

test("a tab that one person left open shows nothing of theirs to the next one", async () => {
  const page = await opened("");
  await page.locator("#key-sign-in").click();
  await atProvider(page, "ana");
  await page.getByText("Signed in as ana").waitFor();
  await page.getByRole("textbox", { name: "Message" }).fill("Of Ana alone.");
  await page.keyboard.press("Enter");
  await page.locator("#thread li").nth(1).waitFor();
  const left = await page.context().newPage();
  await left.route(/^https:/, (route) => route.abort());
  await left.goto(page.url());
  await left.getByText("Of Ana alone.").first().waitFor();
  await left.getByRole("textbox", { name: "Message" }).fill("A draft of Ana.");
  await left.evaluate(() => {
    localStorage.setItem("sessile-presets", JSON.stringify([{ name: "Orders of Ana" }]));
    localStorage.setItem("sessile-preferences", JSON.stringify({ theme: "dark", folded: ["Folder of Ana"] }));
  });
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.waitForURL(`${issuer}/**`);
  await page.getByRole("button", { name: /yes/i }).click();
  await page.waitForURL(server.url);
  await page.locator("#key-sign-in").click();
  await atProvider(page, "ben");
  await page.getByText("Signed in as ben").waitFor();
  await left.reload();
  await left.getByText("Signed in as ben").waitFor();
  await left.waitForFunction(() => !location.search.includes("session="));
  await left.locator('#link[data-phase="ready"]').waitFor();
  const kept = await left.evaluate(() => JSON.stringify([document.body.innerText, document.querySelector("#message").value, { ...sessionStorage }, { ...localStorage }]));
  assert.doesNotMatch(kept, /Ana/);
  await page.context().close();
});

test("an operator signs in to the operator's page and comes back to it", async () => {
  const page = await opened("operator");
  await page.locator("#key-sign-in").click();
  await atProvider(page, "boss");
  await page.getByText("1 of 1 serving").waitFor();
  await page.getByText("Signed in as boss").waitFor();
  assert.equal(new URL(page.url()).pathname, "/operator");
  await page.context().close();
});
