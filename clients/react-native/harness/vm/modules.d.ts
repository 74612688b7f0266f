/** React Native's own files, whose types are Flow. */
declare module "react-native/Libraries/EventEmitter/RCTDeviceEventEmitter" {
  const emitter: { emit(name: string, ...args: unknown[]): void };
  export default emitter;
}
declare module "react-native/Libraries/WebSocket/WebSocket" {
  const WebSocket: unknown;
  export default WebSocket;
}
