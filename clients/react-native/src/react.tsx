/**
 * React hooks for a phone, and the list of messages. React is the program's own (18 or later), and so is the list.
 *
 * Who draws a session through these hooks has its position stored after it was shown: an effect runs after React put
 * the new version on the screen, and tells the client.
 */
import { memo, useCallback, useEffect, useMemo, useRef, useSyncExternalStore, type ComponentType, type ReactElement } from "react";
import type { CommandFrame, Entry, ResponseRecord, Session, SessionPhase, Status, View } from "sessile";
import type { PhoneClient } from "./phone.js";

export interface SessionHook {
  session: Session;
  /** The live view. It is changed in place: draw from it, compare `version` (or items by `===`) to know what is new. */
  view: View;
  version: number;
  phase: SessionPhase;
}

/** Reads the session while the component is mounted, draws again when it changes, and tells what was shown. */
export function useSession(client: PhoneClient, id: string): SessionHook {
  const session = useMemo(() => client.session(id), [client, id]);
  useEffect(() => {
    const drawn = client.draws(id);
    session.open();
    return () => {
      session.close();
      drawn();
    };
  }, [client, session, id]);
  const subscribe = useCallback((changed: () => void) => session.on("change", changed), [session]);
  const stampOf = (): string => `${session.phase} ${session.view.version}`;
  const stamp = useSyncExternalStore(subscribe, stampOf, stampOf);
  const hook = useMemo(
    () => ({ session, view: session.view, version: session.view.version, phase: session.phase }),
    [session, stamp], // the stamp stands for everything that changes in place
  );
  useEffect(() => client.shown(id, hook.version), [client, id, hook]);
  return hook;
}

export interface AnswerHook {
  text: string;
  /** undefined until its first event has come. */
  response: ResponseRecord | undefined;
  isOver: boolean;
}

/** The text of one answer as it is written. For a row: it draws again when this answer changes, not when another does. */
export function useAnswer(client: PhoneClient, id: string, responseId: string): AnswerHook {
  const session = useMemo(() => client.session(id), [client, id]);
  useEffect(() => {
    session.open();
    return () => session.close();
  }, [session]);
  const subscribe = useCallback((changed: () => void) => session.on("change", changed), [session]);
  const textOf = (): string => session.view.text(responseId);
  const recordOf = (): ResponseRecord | undefined => session.view.responses.get(responseId);
  const text = useSyncExternalStore(subscribe, textOf, textOf);
  const response = useSyncExternalStore(subscribe, recordOf, recordOf);
  const isOver = response !== undefined && response.status !== "queued" && response.status !== "in_progress";
  return useMemo(() => ({ text, response, isOver }), [text, response, isOver]);
}

/** How the connection stands. */
export function useStatus(client: PhoneClient): Status {
  const subscribe = useCallback((changed: () => void) => client.on("status", changed), [client]);
  const statusOf = (): Status => client.status;
  return useSyncExternalStore(subscribe, statusOf, statusOf);
}

/** What was said in this session and not answered yet, oldest first: written offline, or on its way. */
export function useUnsent(client: PhoneClient, id: string): readonly CommandFrame[] {
  const subscribe = useCallback((changed: () => void) => client.on("unanswered", changed), [client]);
  const unsent = (): CommandFrame[] => client.unanswered.filter((frame) => frame.type === "message.create" && frame["session"] === id);
  const stampOf = (): string => unsent().map((frame) => frame.id).join();
  const stamp = useSyncExternalStore(subscribe, stampOf, stampOf);
  return useMemo(unsent, [client, id, stamp]);
}

// -- the list --------------------------------------------------------------------------------------------------

/** One row: replaced when anything of its entry changed, else the same object. */
export interface Row {
  readonly key: string;
  readonly entry: Entry;
}

/** What the list is given: FlatList's own properties. */
export interface ListProps {
  data: readonly Row[];
  keyExtractor: (row: Row) => string;
  renderItem: (info: { item: Row }) => ReactElement | null;
  inverted: boolean;
  initialNumToRender: number;
  maxToRenderPerBatch: number;
  windowSize: number;
  maintainVisibleContentPosition: { minIndexForVisible: number };
}

export interface MessagesProps {
  client: PhoneClient;
  session: string;
  /** React Native's FlatList, or another list with its properties. */
  list: ComponentType<ListProps>;
  renderRow: (row: Row) => ReactElement | null;
  /** The end of the branch to show; absent: the newest. */
  tip?: string | null;
}

/** The rows of a branch, newest first, as an inverted list has them. Unchanged rows are the same objects. */
export function rowsOf(entries: readonly Entry[], before: readonly Row[] = []): Row[] {
  const known = new Map(before.map((row) => [row.key, row]));
  return entries.map((entry) => (isSame(known.get(entry.id)?.entry, entry) ? known.get(entry.id)! : { key: entry.id, entry })).reverse();
}

function isSame(one: Entry | undefined, other: Entry): boolean {
  if (one === undefined) return false;
  const isSamePlace = one.parentId === other.parentId && one.index === other.index && one.siblings.length === other.siblings.length;
  if (!isSamePlace || one.item !== other.item || one.response !== other.response) return false;
  return one.siblings.every((id, i) => id === other.siblings[i]);
}

const keyOf = (row: Row): string => row.key;
const AT_NEWEST = { minIndexForVisible: 0 };
const Drawn = memo(({ row, renderRow }: { row: Row; renderRow: MessagesProps["renderRow"] }) => renderRow(row));

/** A conversation as a list with virtual rows: what comes draws its own row again, and no other. */
export function Messages({ client, session: id, list: List, renderRow, tip }: MessagesProps): ReactElement {
  const { view, version } = useSession(client, id);
  const last = useRef<readonly Row[]>([]);
  const rows = useMemo(() => rowsOf(view.thread(tip), last.current), [view, version, tip]);
  useEffect(() => void (last.current = rows), [rows]);
  const renderItem = useCallback(({ item }: { item: Row }) => <Drawn row={item} renderRow={renderRow} />, [renderRow]);
  return (
    <List
      data={rows}
      keyExtractor={keyOf}
      renderItem={renderItem}
      inverted
      initialNumToRender={12}
      maxToRenderPerBatch={8}
      windowSize={7}
      maintainVisibleContentPosition={AT_NEWEST}
    />
  );
}
