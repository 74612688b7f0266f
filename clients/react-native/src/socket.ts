/**
 * React Native's WebSocket, taught to say why a handshake was refused. It tells it in words, as the reason of a close
 * with 1006: OkHttp's on Android, SocketRocket's on iOS. Without it a wrong key would be dialled with for ever. `Retry-After`
 * is not among the words: there the back-off alone decides.
 */
import type { WebSocketClass, WebSocketLike } from "sessile";

const WORDS = /(?:but was '|response code from server: ?|[Ss]tatus [Cc]ode:? )(\d{3})\b/;

/** The HTTP status with which the platform says that a handshake was answered; null: it was not. */
export function refusalStatus(reason: unknown): number | null {
  const status = typeof reason === "string" ? WORDS.exec(reason)?.[1] : undefined;
  return status === undefined || status === "101" ? null : Number(status);
}

/** A WebSocket class whose sockets have `refusal`. */
export function phoneWebSocket(WebSocket: WebSocketClass): WebSocketClass {
  return function (url: string, protocols: string[]): WebSocketLike {
    const socket = new WebSocket(url, protocols);
    let isOpen = false;
    const told: WebSocketLike = {
      binaryType: "",
      onopen: null,
      onmessage: null,
      onclose: null,
      onerror: null,
      send: (data) => socket.send(data),
      close: (code, reason) => socket.close(code, reason),
    };
    socket.binaryType = "arraybuffer"; // the other one needs a native module, and copies twice
    socket.onopen = (event: unknown) => {
      isOpen = true;
      told.onopen?.(event);
    };
    socket.onmessage = (event: unknown) => told.onmessage?.(event);
    socket.onerror = (event: unknown) => told.onerror?.(event);
    socket.onclose = (event: { reason?: unknown }) => {
      const httpStatus = isOpen ? null : refusalStatus(event.reason);
      if (socket.refusal !== undefined) told.refusal = socket.refusal;
      else if (httpStatus !== null) told.refusal = { httpStatus, retryAfterMs: 0 };
      told.onclose?.(event);
    };
    return told;
  } as unknown as WebSocketClass;
}
