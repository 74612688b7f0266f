/** What React Native's WebSocket says of a refused handshake, in the words of its two platforms. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { settled } from "../../typescript/test/virtual.js";
import { refusalStatus } from "../src/index.js";
import { phone } from "./phone-world.js";

test("the status of a refused handshake is read from the platforms' words", () => {
  assert.equal(refusalStatus("Expected HTTP 101 response but was '401 Unauthorized'"), 401);
  assert.equal(refusalStatus("Received bad response code from server: 503."), 503);
  assert.equal(refusalStatus("Invalid Status Code: 403"), 403);
  assert.equal(refusalStatus("Failed to connect to /10.0.2.2:8080"), null);
  assert.equal(refusalStatus("Expected HTTP 101 response but was '101 '"), null);
  assert.equal(refusalStatus(undefined), null);
});

test("a wrong key stops, a busy server is asked again, and words on an open socket mean nothing", async () => {
  const it = phone();
  it.client.start();
  await settled();
  it.socket.drop(1006, "Expected HTTP 101 response but was '503 Service Unavailable'");
  assert.equal(it.client.status.phase, "offline");
  await it.clock.advance(1_000);
  it.socket.accept();
  it.socket.drop(1006, "Expected HTTP 101 response but was '401 Unauthorized'");
  assert.equal(it.client.status.phase, "offline");
  await it.clock.advance(1_000);
  it.socket.drop(1006, "Expected HTTP 101 response but was '401 Unauthorized'");
  assert.deepEqual([it.client.status.phase, it.client.status.httpStatus], ["stopped", 401]);
  it.appState.go("background");
  it.appState.go("active");
  assert.equal(it.client.status.phase, "stopped");
});
