/**
 * What a phone gives: storage, app state, network state, time in the background. React Native's own objects have these
 * members (AsyncStorage, AppState, NetInfo), so a program passes them as they are, and a test passes its own.
 */
import type { StorageLike } from "sessile";

/** Where positions, views and unanswered commands are kept: AsyncStorage, or anything with its three methods. */
export type StoragePort = StorageLike;

/** React Native's `AppState`. */
export interface AppStatePort {
  /** `active`, `background`, on iOS also `inactive` (a call comes in, the app switcher shows): that is still the foreground. */
  readonly currentState: string | null;
  addEventListener(type: "change", listener: (state: string) => void): { remove(): void };
}

/** What `@react-native-community/netinfo` tells. */
export interface NetworkState {
  /** `wifi`, `cellular`, `none`, … */
  type: string;
  /** null: not known. Only `false` is believed: a server may be reachable though the Internet is not. */
  isConnected: boolean | null;
  /** Its address, where the platform tells: another one means that every open socket is dead. */
  details?: unknown;
}

/** `@react-native-community/netinfo`'s default export. */
export interface NetworkPort {
  addEventListener(listener: (state: NetworkState) => void): () => void;
}

/** Asks the platform for a moment after the app went away (iOS: `beginBackgroundTask`). */
export interface BackgroundPort {
  /** Returns what `end` takes. The platform may call `expired` when the time is up before. */
  begin(expired: () => void): unknown;
  end(task: unknown): void;
}

/** By what a network is told from another: its kind and our address in it. */
export function networkName(state: NetworkState): string {
  const { ipAddress } = (state.details ?? {}) as { ipAddress?: unknown };
  return typeof ipAddress === "string" ? `${state.type} ${ipAddress}` : state.type;
}
