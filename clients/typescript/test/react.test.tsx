/** The hooks, in React itself. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { StrictMode } from "react";
import { act, create } from "react-test-renderer";
import { useSession, useStatus } from "../src/react.js";
import type { SessileClient } from "./surface.js";
import { greet, world } from "./virtual.js";

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;

function Conversation({ client, id }: { client: SessileClient; id: string }) {
  const { view, phase, version } = useSession(client, id);
  const status = useStatus(client);
  return <p data-version={version}>{`${status.phase} ${phase} ${view.title ?? "-"}`}</p>;
}

const state = (title: string, session = "S") => ({ type: "resumed", session, mode: "snapshot", epoch: "E", at: 1, state: { items: [], open: [], title } });

test("a component follows its session and the connection, another id, and unmounting", async () => {
  const it = world();
  const draw = (id: string) => (
    <StrictMode>
      <Conversation client={it.client} id={id} />
    </StrictMode>
  );
  let root!: ReturnType<typeof create>;
  await act(async () => {
    root = create(draw("S"));
  });
  const text = (): unknown => (root.toJSON() as { children: unknown[] }).children[0];
  assert.equal(text(), "connecting attaching -");
  await act(async () => {
    greet(it);
    it.socket.play(state("one"), { type: "caught_up", session: "S", offset: 1 });
  });
  assert.equal(text(), "ready live one");
  await act(async () => it.socket.play({ type: "event", session: "S", epoch: "E", offset: 2, event: { type: "session.updated", title: "two" } }));
  assert.equal(text(), "ready live two");

  it.socket.frames.length = 0;
  await act(async () => root.update(draw("T")));
  assert.deepEqual(it.socket.frames.map(({ type, session }) => [type, session]), [["unsubscribe", "S"], ["subscribe", "T"]]);
  await act(async () => it.socket.play(state("other", "T")));
  assert.equal(text(), "ready replaying other");
  it.socket.frames.length = 0;
  await act(async () => root.unmount());
  assert.deepEqual(it.socket.frames.map(({ type, session }) => [type, session]), [["unsubscribe", "T"]]);
});
