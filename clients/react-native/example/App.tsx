/** One conversation: its messages, what waits to be sent, and a line to write on. */
import AsyncStorage from "@react-native-async-storage/async-storage";
import NetInfo from "@react-native-community/netinfo";
import { useEffect, useState } from "react";
import { AppState, FlatList, SafeAreaView, Text, TextInput } from "react-native";
import { itemText, PhoneClient } from "../src/index";
import { Messages, useAnswer, useStatus, useUnsent, type Row } from "../src/react";

const client = new PhoneClient({
  url: "http://10.0.2.2:8080", // the machine that runs the emulator
  storage: AsyncStorage,
  appState: AppState,
  network: NetInfo,
}).start();

function Answer({ session, id }: { session: string; id: string }) {
  const { text, isOver } = useAnswer(client, session, id);
  return <Text>{isOver ? text : `${text} …`}</Text>;
}

function Conversation({ session }: { session: string }) {
  const [words, setWords] = useState("");
  const unsent = useUnsent(client, session);
  const { phase } = useStatus(client);
  const renderRow = ({ entry }: Row) =>
    entry.response === undefined ? <Text>{`> ${itemText(entry.item)}`}</Text> : <Answer session={session} id={entry.response.id} />;
  const send = () => {
    client.session(session).send(words, { queue: true }).catch((error: Error) => setWords(error.message));
    setWords("");
  };
  return (
    <SafeAreaView style={{ flex: 1 }}>
      <Text>{unsent.length === 0 ? phase : `${phase}, ${unsent.length} to be sent`}</Text>
      <Messages client={client} session={session} list={FlatList} renderRow={renderRow} />
      <TextInput
        value={words}
        onChangeText={(text) => {
          setWords(text);
          client.session(session).warm();
        }}
        onSubmitEditing={send}
      />
    </SafeAreaView>
  );
}

export function App() {
  const [session, setSession] = useState<string | null>(null);
  useEffect(() => {
    const known = AsyncStorage.getItem("example:session");
    void known.then(async (id) => {
      const made = id ?? (await client.create({ title: "From a phone" })).id;
      await AsyncStorage.setItem("example:session", made);
      setSession(made);
    });
  }, []);
  return session === null ? <Text>…</Text> : <Conversation session={session} />;
}
