/** The hooks and the list, in React itself. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { StrictMode } from "react";
import { act, create, type ReactTestRenderer } from "react-test-renderer";
import { greet, settled } from "../../typescript/test/virtual.js";
import { Messages, rowsOf, useAnswer, useSession, useStatus, useUnsent, type ListProps, type Row } from "../src/react.js";
import type { PhoneClient } from "../src/index.js";
import { phone, type Phone } from "./phone-world.js";

(globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;

const EVENT = (offset: number, event: object) => ({ type: "event", session: "S", epoch: "E", offset, event });
const ITEM = (id: string, parent: string | null, role: string, text: string) => ({
  ...{ id, parent_id: parent, type: "message", role, status: "completed", created_at: 1 },
  content: [{ type: role === "user" ? "input_text" : "output_text", text }],
});
const STATE = (items: object[]) => ({ type: "resumed", session: "S", mode: "snapshot", epoch: "E", at: 1, state: { items, open: [], head: null, title: null } });

async function shown(it: Phone, element: React.ReactElement): Promise<ReactTestRenderer> {
  let root!: ReactTestRenderer;
  it.client.start();
  await act(async () => {
    root = create(<StrictMode>{element}</StrictMode>);
    await settled();
  });
  return root;
}
const words = (root: ReactTestRenderer): string => JSON.stringify(root.toJSON());

function Conversation({ client }: { client: PhoneClient }) {
  const { phase, view } = useSession(client, "S");
  const unsent = useUnsent(client, "S").map((frame) => frame["content"]);
  return <p>{`${useStatus(client).phase} ${phase} ${view.title ?? "-"} [${unsent.join()}]`}</p>;
}

test("a component follows its session, the connection and what is unsent, and stores what it has shown", async () => {
  const it = phone();
  const root = await shown(it, <Conversation client={it.client} />);
  assert.match(words(root), /connecting attaching - \[\]/);
  await act(async () => {
    greet(it as never);
    it.socket.play(STATE([]));
    it.client.session("S").send("hello").catch(() => undefined);
  });
  assert.match(words(root), /ready replaying - \[hello\]/);
  await act(async () => it.socket.play({ type: "ok", id: it.socket.take()!["id"], item_id: "i", offset: 2 }));
  assert.match(words(root), /\[\]/);
  // The session changes and React has not drawn it: its position stays where it was.
  await it.clock.advance(1_000);
  await it.client.stored();
  const stored = (): unknown => (JSON.parse(it.storage.disk.get("sessile:session:S")!) as { offset: number }).offset;
  assert.equal(stored(), 1);
  await act(async () => {
    it.socket.play(EVENT(2, { type: "session.updated", title: "two" }));
    it.client.save();
    await it.client.stored();
    assert.equal(stored(), 1);
  });
  assert.match(words(root), / two /);
  await it.client.stored();
  assert.equal(stored(), 2);
  await act(async () => root.unmount());
  assert.equal(it.client.session("S").phase, "detached");
});

function AnswerText({ client }: { client: PhoneClient }) {
  const { text, response, isOver } = useAnswer(client, "S", "r1");
  return <p>{`${text}|${response?.status ?? "none"}|${isOver}`}</p>;
}

const at = { item_id: "m1", output_index: 0, content_index: 0 };
const ANSWER = [
  { type: "response.created", response_id: "r1", response: { id: "r1", status: "in_progress", parent_id: "q1", output: [] } },
  { type: "response.output_item.added", response_id: "r1", output_index: 0, item: { ...ITEM("m1", "q1", "assistant", ""), content: [], status: "in_progress" } },
  { type: "response.content_part.added", response_id: "r1", ...at, part: { type: "output_text", text: "" } },
  { type: "response.output_text.delta", response_id: "r1", ...at, delta: "Two " },
  { type: "response.output_text.delta", response_id: "r1", ...at, delta: "bulges." },
  { type: "response.completed", response_id: "r1", response: { id: "r1", status: "completed", parent_id: "q1", output: [ITEM("m1", "q1", "assistant", "Two bulges.")] } },
];

test("an answer is drawn as it is written", async () => {
  const it = phone();
  const root = await shown(it, <AnswerText client={it.client} />);
  assert.match(words(root), /\|none\|false/);
  await act(async () => {
    greet(it as never);
    it.socket.play(STATE([ITEM("q1", null, "user", "Why?")]));
    it.socket.play(...ANSWER.slice(0, 4).map((event, i) => EVENT(2 + i, event)));
  });
  assert.match(words(root), /Two \|in_progress\|false/);
  await act(async () => it.socket.play(...ANSWER.slice(4).map((event, i) => EVENT(6 + i, event))));
  assert.match(words(root), /Two bulges\.\|completed\|true/);
});

test("the list is told newest first, and what comes draws its own row and no other", async () => {
  const it = phone();
  const drawn: string[] = [];
  const given: ListProps[] = [];
  const renderRow = ({ key, entry }: Row) => {
    drawn.push(key);
    return <p>{`${key}:${entry.item?.content?.[0]?.text ?? ""}`}</p>;
  };
  /** Draws only the first three rows, as a list with virtual rows does. */
  const List = (props: ListProps) => {
    given.push(props);
    return props.data.slice(0, 3).map((row) => <div key={props.keyExtractor(row)}>{props.renderItem({ item: row })}</div>);
  };
  const root = await shown(it, <Messages client={it.client} session="S" list={List as never} renderRow={renderRow} />);
  const items = Array.from({ length: 5_000 }, (_, i) => ITEM(`i${i}`, i === 0 ? null : `i${i - 1}`, i % 2 ? "assistant" : "user", `t${i}`));
  items.push(ITEM("q1", "i4999", "user", "Why?"));
  await act(async () => {
    greet(it as never);
    it.socket.play(STATE(items));
    it.socket.play(...ANSWER.slice(0, 4).map((event, i) => EVENT(2 + i, event)));
  });
  const last = given.at(-1)!;
  assert.equal(last.inverted, true);
  assert.deepEqual(last.data.slice(0, 3).map((row) => row.key), ["m1", "q1", "i4999"]);
  assert.equal(last.data.length, 5_002);
  assert.match(words(root), /m1:Two /);
  drawn.length = 0;
  await act(async () => it.socket.play(EVENT(6, ANSWER[4]!)));
  assert.deepEqual(new Set(drawn), new Set(["m1"]));
  assert.equal(given.at(-1)!.data[1], last.data[1]);
});

test("a row is replaced when its siblings are others", () => {
  const entry = { id: "a", parentId: null, siblings: ["a"], index: 0 };
  const [row] = rowsOf([entry]);
  assert.equal(rowsOf([{ ...entry, siblings: ["a"] }], [row!])[0], row);
  assert.notEqual(rowsOf([{ ...entry, siblings: ["a", "b"] }], [row!])[0], row);
  assert.notEqual(rowsOf([{ ...entry, siblings: ["b"] }], [row!])[0], row);
});
