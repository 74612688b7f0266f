/** React hooks: a session and the connection as state. React is the program's own (18 or later). */
import { useCallback, useEffect, useMemo, useSyncExternalStore } from "react";
import type { SessileClient, Session, SessionPhase, Status, View } from "./index.js";

export interface SessionHook {
  session: Session;
  /** The live view. It is changed in place: draw from it, compare `version` (or items by `===`) to know what is new. */
  view: View;
  version: number;
  phase: SessionPhase;
}

/** Reads the session while the component is mounted and draws again when it changes. */
export function useSession(client: SessileClient, id: string): SessionHook {
  const session = useMemo(() => client.session(id), [client, id]);
  useEffect(() => {
    session.open();
    return () => session.close();
  }, [session]);
  const subscribe = useCallback((changed: () => void) => session.on("change", changed), [session]);
  const stamp = useSyncExternalStore(
    subscribe,
    () => `${session.phase} ${session.view.version}`,
    () => `${session.phase} ${session.view.version}`,
  );
  return useMemo(
    () => ({ session, view: session.view, version: session.view.version, phase: session.phase }),
    [session, stamp], // the stamp stands for everything that changes in place
  );
}

/** How the connection stands. */
export function useStatus(client: SessileClient): Status {
  const subscribe = useCallback((changed: () => void) => client.on("status", changed), [client]);
  return useSyncExternalStore(subscribe, () => client.status, () => client.status);
}
