/**
 * For Node: the WebSocket of the package `ws`, taught to say why a handshake was refused, so that the client knows
 * a wrong key (stop) from a server that asks to come back later. Browsers do not tell; there it is a cut like any.
 *
 *     import WebSocket from "ws";
 *     new SessileClient({ url, WebSocket: nodeWebSocket(WebSocket) });
 */
import type { WebSocketClass, WebSocketLike } from "./platform.js";

interface NodeSocket extends WebSocketLike {
  on(name: "unexpected-response", listener: (request: { destroy(): void }, response: Refusal) => void): unknown;
  terminate(): void;
}
interface Refusal {
  statusCode?: number;
  headers: { [name: string]: string | string[] | undefined };
}

export function nodeWebSocket(
  WebSocket: new (url: string, protocols: string[], options: { perMessageDeflate: boolean }) => unknown,
): WebSocketClass {
  // A constructor that returns an object: `new` then gives that one.
  return function (url: string, protocols: string[]): WebSocketLike {
    const socket = new WebSocket(url, protocols, { perMessageDeflate: url.endsWith("compress=deflate") }) as NodeSocket;
    socket.on("unexpected-response", (request, response) => {
      const after = Number(response.headers["retry-after-ms"] ?? Number(response.headers["retry-after"] ?? 0) * 1000);
      socket.refusal = { httpStatus: response.statusCode ?? 0, retryAfterMs: Number.isFinite(after) ? after : 0 };
      request.destroy();
      socket.terminate();
    });
    return socket;
  } as unknown as WebSocketClass;
}
