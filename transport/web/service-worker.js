/**
 * Keeps the page's own files, so that it opens at once and without the server. It keeps no answer of any interface.
 *
 * A file is kept under the hash that the page names for it, so a page always gets the very files it was written for; a new page
 * is shown at the next visit, once all its files are here, and the files of the one before stay until then. What a page names in a
 * template is kept once it was loaded.
 */
const CACHE = "sessile-page";
const PAGE = new URL("./", location.href).href;
const LATER = /<template[^]*?<\/template>/g; // names what a page loads only when it needs it
const PART = /(?:src|href)="([\w-]+\.\w+)"(?: integrity="([^"]+)")?/g;
/** @type {any} */
const worker = self;

/** @param {string} url @param {string | undefined} integrity */
const named = (url, integrity) => (integrity ? `${url}?${encodeURIComponent(integrity)}` : url);

/** @param {string} html @returns {Map<string, string>} names in the cache -> addresses */
function parts(html) {
  const urls = [...html.matchAll(PART)].map(([, name, integrity]) => ({ url: new URL(name ?? "", PAGE).href, integrity }));
  return new Map(urls.map(({ url, integrity }) => [named(url, integrity), url]));
}

async function refresh() {
  const cache = await caches.open(CACHE);
  const before = await cache.match(PAGE);
  const answer = await fetch(PAGE, { cache: "no-cache" });
  if (!answer.ok || answer.redirected) throw new Error(`The page answers ${answer.status}.`);
  const [old, html] = [(await before?.text()) ?? "", await answer.clone().text()];
  if (old === html) return;
  const files = parts(html);
  for (const [name, url] of parts(html.replace(LATER, ""))) {
    if (await cache.match(name)) continue;
    const file = await fetch(url, { cache: "no-cache" });
    if (!file.ok) throw new Error(`${url} answers ${file.status}.`);
    await cache.put(name, file);
  }
  await cache.put(PAGE, answer);
  const known = new Set([PAGE, ...files.keys(), ...parts(old).keys()]);
  for (const { url } of await cache.keys()) if (!known.has(url)) await cache.delete(url);
  if (old !== "") for (const client of await worker.clients.matchAll()) client.postMessage("renewed");
}

/** The page that each tab was given, as what its files are called in the cache. @type {Map<string, Map<string, string>>} */
const given = new Map();

/** @param {any} event @param {boolean} isPage */
async function answered({ request, clientId, resultingClientId }, isPage) {
  const cache = await caches.open(CACHE);
  const page = await cache.match(PAGE, { ignoreVary: true });
  if (isPage) {
    if (given.size > 100) given.clear(); // tabs that were closed
    if (page !== undefined) given.set(resultingClientId, parts(await page.clone().text()));
    return page ?? fetch(request);
  }
  const nameIn = (/** @type {Map<string, string>} */ files) => [...files].find(([, url]) => url === request.url)?.[0];
  const kept = async (/** @type {Map<string, string>} */ files) => {
    const name = nameIn(files);
    return name && cache.match(name, { ignoreVary: true });
  };
  const files = given.get(clientId);
  if (files !== undefined) {
    const there = await kept(files);
    if (there) return there;
    const file = await fetch(request); // it has the hash that the page names, or is refused
    const name = nameIn(files);
    if (file.ok && name) await cache.put(name, file.clone());
    return file;
  }
  // Another page, which may be newer than what is kept here; without the server that will do.
  return fetch(request).catch(async () => (await kept(parts((await page?.text()) ?? ""))) ?? Response.error());
}

worker.addEventListener("install", (/** @type {any} */ event) => {
  worker.skipWaiting();
  event.waitUntil(refresh());
});
worker.addEventListener("fetch", (/** @type {any} */ event) => {
  const { request } = event;
  const url = new URL(request.url);
  const isPage = request.mode === "navigate" && `${url.origin}${url.pathname}` === PAGE;
  const isPart = request.mode !== "navigate" && new URL("./", url).href === PAGE && /^[\w-]+\.(js|css|svg|png|webmanifest)$/.test(url.pathname.split("/").pop() ?? "");
  if (request.method !== "GET" || !(isPage || isPart)) return;
  event.respondWith(answered(event, isPage));
  if (isPage) event.waitUntil(refresh().catch(() => undefined));
});

// -- push: the server sends ids, and no word of a conversation ---------------------------------------------------------

const GERMAN = (navigator.language || "").startsWith("de");
const SAID = GERMAN
  ? { answer: "Eine Antwort ist da.", tool_call: "Eine Unterhaltung wartet auf dich.", approval: "Ein Werkzeug wartet auf deine Zustimmung." }
  : { answer: "An answer is there.", tool_call: "A conversation waits for you.", approval: "A tool waits for you to agree." };

/** @param {any} data @returns {{ session: string, id: string, cause: "answer" | "tool_call" | "approval" } | null} */
function notice(data) {
  try {
    const { session, id, cause } = data.json();
    return typeof session === "string" && typeof id === "string" ? { session, id, cause: cause === "tool_call" || cause === "approval" ? cause : "answer" } : null;
  } catch {
    return null; // a message that is not ours
  }
}

/** @param {{ session: string, id: string, cause: "answer" | "tool_call" | "approval" }} said */
async function show({ session, id, cause }) {
  // A message that comes twice, or a later one of the same conversation, takes the place of the one before.
  const shown = await worker.registration.getNotifications({ tag: session });
  if (shown.some((/** @type {any} */ each) => each.data?.id === id)) return;
  await worker.registration.showNotification("Sessile", { body: SAID[cause], tag: session, icon: "icon-192.png", data: { session, id } });
}

/** @param {string} session */
async function open(session) {
  const url = new URL(`?session=${encodeURIComponent(session)}`, PAGE).href;
  for (const client of await worker.clients.matchAll({ type: "window" })) if (client.url === url) return client.focus();
  return worker.clients.openWindow(url);
}

worker.addEventListener("push", (/** @type {any} */ event) => {
  const said = event.data && notice(event.data);
  if (said) event.waitUntil(show(said));
});
worker.addEventListener("notificationclick", (/** @type {any} */ event) => {
  event.notification.close();
  const session = event.notification.data?.session;
  if (typeof session === "string") event.waitUntil(open(session));
});
