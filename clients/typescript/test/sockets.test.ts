/** Over real sockets, with the package `ws`, on Node: the shell that virtual time leaves out. */
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import WebSocket, { WebSocketServer } from "ws";
import { pack, unpack } from "../src/codec.js";
import { nodeWebSocket } from "../src/node.js";
import { FakeHub } from "./fake-hub.js";
import { ENCODINGS, NAMES, SessileClient, StoppedError } from "./surface.js";

interface Running {
  hub: FakeHub;
  url: string;
  cut(): void;
  stop(): Promise<void>;
}

async function serve(refuse: () => { status: number; after?: string } | null = () => null): Promise<Running> {
  let made = 0;
  const hub = new FakeHub({
    now: Date.now,
    newId: (kind) => `${kind}_${++made}`,
    answer: (prompt) => Array.from({ length: 30 }, (_, i) => `${prompt}${i}é `),
    replayMax: 1000,
    windowEvents: 8,
    windowBytes: 100_000,
    heartbeatMs: 25_000,
    merge: true,
  });
  const server: Server = createServer();
  const sockets = new WebSocketServer({ noServer: true, handleProtocols: (offered) => [...offered][0]! });
  server.on("upgrade", (request, socket, head) => {
    const refusal = refuse();
    if (refusal !== null) {
      const after = refusal.after === undefined ? "" : `retry-after: ${refusal.after}\r\n`;
      return void socket.end(`HTTP/1.1 ${refusal.status} No\r\n${after}content-length: 0\r\nconnection: close\r\n\r\n`);
    }
    sockets.handleUpgrade(request, socket, head, (peer) => {
      const encoding = ENCODINGS[peer.protocol.endsWith("json") ? "json" : "msgpack"];
      const connection = hub.connect(
        (frame) => peer.send(pack(encoding, [frame as never])),
        (code, reason) => peer.close(code, reason),
      );
      peer.on("message", (data: Buffer, isBinary) => {
        connection.received(unpack(encoding, isBinary ? new Uint8Array(data) : data.toString()).frames as never);
      });
      peer.on("close", () => connection.closed());
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return {
    hub,
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    cut: () => sockets.clients.forEach((peer) => peer.terminate()),
    stop: async () => {
      sockets.clients.forEach((peer) => peer.terminate());
      server.close();
      await once(server, "close");
    },
  };
}

function status(client: SessileClient, phase: string): Promise<void> {
  return new Promise((resolve) => {
    const off = client.on("status", (now) => {
      if (now.phase !== phase) return;
      off();
      resolve();
    });
  });
}

for (const encoding of NAMES) {
  test(`a conversation over a real socket, cut twice in mid-answer (${encoding})`, async () => {
    const { hub, url, cut, stop } = await serve();
    const client = new SessileClient({ url, encoding: ENCODINGS[encoding], WebSocket: nodeWebSocket(WebSocket), random: () => 0.02 });
    try {
      const session = await client.create({ title: "real" });
      const server = hub.sessions.get(session.id)!;
      const { answer } = await session.send("ü");
      let [shown, pieces] = ["", 0];
      server.step();
      server.step();
      for await (const piece of answer!) {
        shown = piece.restarted ? piece.text : shown + piece.delta;
        if (++pieces === 3 || pieces === 9) {
          cut();
          server.step(); // written while nobody is connected
        }
        server.step();
      }
      assert.equal(shown, Array.from({ length: 30 }, (_, i) => `ü${i}é `).join(""));
      assert.equal((await answer!.done()).status, "completed");
      assert.deepEqual((await client.page()).data.map((info) => info["title"]), ["real"]);
    } finally {
      client.close();
      await stop();
    }
  });
}

test("a refused handshake: 503 is waited out for as long as it says, 401 is final", async () => {
  const answers = [{ status: 503, after: "1" }, { status: 401 }];
  const { url, stop } = await serve(() => answers.shift() ?? null);
  const client = new SessileClient({ url, WebSocket: nodeWebSocket(WebSocket), random: () => 0 });
  try {
    const offline = status(client, "offline");
    const asked = assert.rejects(client.command("session.list"), (error: StoppedError) => error.httpStatus === 401);
    await offline;
    assert.equal(client.status.httpStatus, 503);
    assert.ok(client.status.retryAt !== undefined, "the second that it says");
    await asked;
    assert.equal(client.status.phase, "stopped");
  } finally {
    client.close();
    await stop();
  }
});

test("without a WebSocket of its own, Node is told what to do", () => {
  const had = (globalThis as { WebSocket?: unknown }).WebSocket;
  (globalThis as { WebSocket?: unknown }).WebSocket = undefined;
  try {
    assert.throws(() => new SessileClient({ url: "http://x" }), /package `ws`/);
  } finally {
    (globalThis as { WebSocket?: unknown }).WebSocket = had;
  }
});
