/** The public surface of `sessile-react-native`, but for what draws (`sessile-react-native/react`). */
import "./globals.js";

export { PhoneClient, type PhoneOptions } from "./phone.js";
export { networkName } from "./ports.js";
export type { AppStatePort, BackgroundPort, NetworkPort, NetworkState, StoragePort } from "./ports.js";
export { phoneWebSocket, refusalStatus } from "./socket.js";
export { OrderedStorage, ShownFirst } from "./storage.js";
export * from "sessile";
