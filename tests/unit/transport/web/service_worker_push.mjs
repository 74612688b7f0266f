/** Runs the page's service worker in a context of its own: what it does of pushes, told by what it calls. */
import { readFileSync } from "node:fs";
import vm from "node:vm";

const [, , file, ...messages] = process.argv;
const listeners = {};
const shown = [];
const opened = [];
const closed = [];
const focused = [];
let windows = [];
const registration = {
  getNotifications: async ({ tag }) => shown.filter((each) => each.tag === tag),
  showNotification: async (title, options) => {
    const before = shown.findIndex((each) => each.tag === options.tag);
    if (before >= 0) shown.splice(before, 1);
    shown.push({ title, ...options });
  },
};
const clients = { matchAll: async () => windows, openWindow: async (url) => void opened.push(url) };
const self = { addEventListener: (name, listener) => (listeners[name] = listener), registration, clients };
vm.runInNewContext(readFileSync(file, "utf8"), { self, location: new URL("https://chat.example/app/service-worker.js"), navigator: { language: "en" }, URL });

async function fire(name, event) {
  const waits = [];
  listeners[name]({ ...event, waitUntil: (promise) => waits.push(promise) });
  await Promise.all(waits);
}

for (const message of messages) await fire("push", { data: { json: () => JSON.parse(message) } });
await fire("push", { data: null });
const notification = { close: () => closed.push(1), data: shown[0]?.data };
await fire("notificationclick", { notification });
windows = [{ url: opened[0], focus: async () => void focused.push(1) }];
await fire("notificationclick", { notification });
console.log(JSON.stringify({ shown, opened, closed: closed.length, focused: focused.length }));
