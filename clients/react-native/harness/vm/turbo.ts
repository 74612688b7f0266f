/** Stands for React Native's TurboModuleRegistry: the native modules that there are. */
import { RCTWebSocket } from "./native.js";

const modules: Record<string, unknown> = {
  WebSocketModule: RCTWebSocket,
  PlatformConstants: { getConstants: () => ({ isTesting: true, Version: 34, reactNativeVersion: { major: 0, minor: 83, patch: 10 } }) },
};
export const get = (name: string): unknown => modules[name] ?? null;
export const getEnforcing = (name: string): unknown => {
  if (!(name in modules)) throw new Error(`no native module ${name}`);
  return modules[name];
};
