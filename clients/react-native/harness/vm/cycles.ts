/** The app of `bench.clients.phone_cycles`: one session, drawn as it changes, and words that are said. */
import RCTDeviceEventEmitter from "react-native/Libraries/EventEmitter/RCTDeviceEventEmitter";
import WebSocket from "react-native/Libraries/WebSocket/WebSocket";
import { ENCODINGS, type EncodingName } from "../../../typescript/test/surface.js";
import { PhoneClient, type NetworkState } from "../../src/index.js";
import { AsyncStorage, emitsBy, hear, tell, Timing } from "./host.js";

type Told = { [name: string]: unknown };
emitsBy((name, event) => RCTDeviceEventEmitter.emit(name, event));
const states = new Set<(state: string) => void>();
const networks = new Set<(state: NetworkState) => void>();
const AppState = {
  currentState: "active",
  addEventListener(_type: string, listener: (state: string) => void) {
    states.add(listener);
    return { remove: () => void states.delete(listener) };
  },
};
let network: NetworkState = { type: "wifi", isConnected: true };
const NetInfo = {
  addEventListener(listener: (state: NetworkState) => void) {
    networks.add(listener);
    listener(network);
    return () => void networks.delete(listener);
  },
};
let client: PhoneClient;
let id: string;

function start(told: Told): void {
  network = told["network"] as NetworkState;
  id = String(told["session"]);
  client = new PhoneClient({
    url: String(told["url"]),
    encoding: ENCODINGS[told["encoding"] as EncodingName],
    device: String(told["device"]),
    WebSocket: WebSocket as never,
    timers: Timing,
    storage: AsyncStorage,
    appState: AppState,
    network: NetInfo,
  });
  const session = client.session(id);
  client.draws(id);
  session.on("event", (frame) => tell({ is: "shown", frame }));
  session.on("reset", () => tell({ is: "fault", why: "reset" }));
  client.on("error", (error) => tell({ is: "fault", why: String(error) }));
  let phase = "";
  session.on("change", () => {
    client.shown(id, session.view.version);
    if (session.phase !== phase) tell({ is: "phase", phase: (phase = session.phase), offset: session.position?.offset });
  });
  session.open({ epoch: "", offset: 0 });
  client.start();
}

hear((told) => {
  if (told["is"] === "start") start(told);
  else if (told["is"] === "app") for (const listener of states) listener((AppState.currentState = String(told["state"])));
  else if (told["is"] === "network") for (const listener of networks) listener((network = told["state"] as NetworkState));
  else if (told["is"] === "say") {
    const word = String(told["word"]);
    client.session(id).send(word, { queue: true, max_output_tokens: 8 } as never).then(
      () => tell({ is: "answered", word }),
      (error: unknown) => tell({ is: "fault", why: `${word}: ${String(error)}` }),
    );
  } else if (told["is"] === "how") tell({ is: "how", phase: client.session(id).phase, unanswered: client.unanswered.length, offset: client.session(id).position?.offset });
});
tell({ is: "ready" });
