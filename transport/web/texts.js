/**
 * The texts of the page in its languages. English ones are in the sources, as arguments of `t`, and in the HTML; each is the key of its
 * German one in this table. A test compares the two. Dates, numbers and amounts are the browser's own (Intl).
 */

export const languages = { en: "English", de: "Deutsch" };
/** Chosen by theme.js. */
export const language = document.documentElement.lang === "de" ? "de" : "en";
const locale = navigator.languages.find((each) => each.startsWith(language)) ?? language;

/** @param {string} english @param {Record<string, string | number>} [values] for `{names}` */
export function t(english, values = {}) {
  const text = language === "de" ? (GERMAN[english] ?? english) : english;
  return text.replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** Puts what the HTML says into the reader's language. @param {Element} root */
export function translate(root) {
  if (language !== "en") {
    const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const english = node.nodeValue?.trim() ?? "";
      if (GERMAN[english] !== undefined) node.nodeValue = (node.nodeValue ?? "").replace(english, t(english));
    }
    for (const element of root.querySelectorAll("[aria-label], [placeholder], [title]")) {
      for (const name of ["aria-label", "placeholder", "title"]) {
        const english = element.getAttribute(name);
        if (english !== null) element.setAttribute(name, t(english));
      }
    }
  }
  document.documentElement.dataset["spoken"] = ""; // chat.css hides the page until then where it must be translated
}

const whole = new Intl.NumberFormat(locale);
const clock = new Intl.DateTimeFormat(locale, { timeStyle: "short" });
const date = new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" });

/** @param {number} value */
export const number = (value) => whole.format(value);

/** Today the time, else the date too. @param {number} at unix ms */
export function time(at) {
  return (new Date(at).toDateString() === new Date().toDateString() ? clock : date).format(at);
}

/** @param {number | string} amount @param {string} currency */
export function money(amount, currency) {
  const value = Number(amount);
  const digits = value > 0 && value < 0.01 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: 4 };
  return new Intl.NumberFormat(locale, { style: "currency", currency, ...digits }).format(value);
}

/** @type {Record<string, string>} */
const GERMAN = {
  // the frame
  "Skip to the message field": "Zum Nachrichtenfeld springen",
  "Conversations": "Unterhaltungen",
  "Your conversations": "Deine Unterhaltungen",
  "Close the list of conversations": "Liste der Unterhaltungen schließen",
  "Show the list of conversations": "Liste der Unterhaltungen zeigen",
  "New conversation": "Neue Unterhaltung",
  "Search": "Suchen",
  "Search the conversations": "Unterhaltungen durchsuchen",
  "Preferences": "Einstellungen",
  "Shortcuts": "Tastenkürzel",
  "Notify me of answers": "Über Antworten benachrichtigen",
  "This browser does not allow notifications here.": "Dieser Browser erlaubt hier keine Benachrichtigungen.",
  "Operator": "Betrieb",
  "Title of this conversation": "Titel dieser Unterhaltung",
  "Save the title": "Titel speichern",
  "More actions": "Mehr",
  "Messages": "Nachrichten",
  "Conversation": "Unterhaltung",
  "What shall we talk about?": "Worüber wollen wir reden?",
  "A conversation here keeps its place: through a lost connection, a reload, or a second device.": "Eine Unterhaltung bleibt hier, wo sie war: ohne Verbindung, nach dem Neuladen, auf einem anderen Gerät.",
  "Explain how tides work, in four sentences.": "Erkläre in vier Sätzen, wie die Gezeiten entstehen.",
  "Write a haiku about a lighthouse.": "Schreib ein Haiku über einen Leuchtturm.",
  "Give me three ideas for a rainy Sunday.": "Nenne mir drei Ideen für einen verregneten Sonntag.",
  "This conversation is not here": "Diese Unterhaltung gibt es hier nicht",
  "It was deleted.": "Sie wurde gelöscht.",
  "It may have been deleted.": "Vielleicht wurde sie gelöscht.",
  "Gone": "Nicht mehr da",
  "Begin a new one": "Eine neue beginnen",
  "This conversation is not on this device": "Diese Unterhaltung liegt nicht auf diesem Gerät",
  "It was not opened here lately. It comes as soon as the connection is back.": "Sie wurde hier in letzter Zeit nicht geöffnet. Sie kommt, sobald die Verbindung wieder da ist.",
  "Newest": "Neuestes",
  // the message field
  "Message": "Nachricht",
  "Write a message": "Schreib eine Nachricht",
  "Send": "Senden",
  "Send after this answer": "Nach dieser Antwort senden",
  "Stop": "Anhalten",
  "Model": "Modell",
  "Settings of this conversation, model": "Einstellungen dieser Unterhaltung, Modell",
  "Enter": "Eingabe",
  "Shift": "Umschalt",
  "sends,": "sendet,",
  "begins a new line": "beginnt eine neue Zeile",
  // the list
  "Today": "Heute",
  "Yesterday": "Gestern",
  "This week": "Diese Woche",
  "Earlier": "Früher",
  "Pinned": "Angeheftet",
  "Show more": "Mehr zeigen",
  "In the conversations": "In den Unterhaltungen",
  "Searching…": "Sucht …",
  "Nothing here yet.": "Noch nichts.",
  "Nothing found.": "Nichts gefunden.",
  "answering": "antwortet",
  "Untitled": "Ohne Titel",
  "Actions for “{title}”": "Aktionen für „{title}“",
  "Rename…": "Umbenennen …",
  "Pin": "Anheften",
  "Unpin": "Lösen",
  "Move to a folder…": "In einen Ordner …",
  "Share…": "Teilen …",
  "Export as Markdown": "Als Markdown exportieren",
  "Export as JSON": "Als JSON exportieren",
  "Delete…": "Löschen …",
  "Rename this conversation": "Diese Unterhaltung umbenennen",
  "Title": "Titel",
  "Move to a folder": "In einen Ordner verschieben",
  "Folder": "Ordner",
  "No folder": "Kein Ordner",
  "New folder…": "Neuer Ordner …",
  "Name of the new folder": "Name des neuen Ordners",
  "Select several…": "Mehrere auswählen …",
  "Select “{title}”": "„{title}“ auswählen",
  "Selected conversations": "Ausgewählte Unterhaltungen",
  "{n} selected": "{n} ausgewählt",
  "Done": "Fertig",
  "Undo": "Rückgängig",
  "1 conversation was deleted.": "1 Unterhaltung wurde gelöscht.",
  "{n} conversations were deleted.": "{n} Unterhaltungen wurden gelöscht.",
  "1 conversation found.": "1 Unterhaltung gefunden.",
  "{n} conversations found.": "{n} Unterhaltungen gefunden.",
  "Close this notice": "Hinweis schließen",
  "Delete this conversation": "Diese Unterhaltung löschen",
  "Delete this conversation?": "Diese Unterhaltung löschen?",
  "“{title}” and everything said in it will be gone, on all your devices.": "„{title}“ und alles, was darin gesagt wurde, verschwindet, auf allen deinen Geräten.",
  "Delete": "Löschen",
  "Keep it": "Behalten",
  "The conversation was deleted.": "Die Unterhaltung wurde gelöscht.",
  "The list of conversations could not be read: {why}": "Die Liste der Unterhaltungen war nicht zu lesen: {why}",
  // messages
  "Question": "Frage",
  "Answer": "Antwort",
  "version": "Fassung",
  "versions": "Fassungen",
  "answer": "Antwort",
  "answers": "Antworten",
  "Previous version": "Vorige Fassung",
  "Next version": "Nächste Fassung",
  "Previous answer": "Vorige Antwort",
  "Next answer": "Nächste Antwort",
  "Edit and ask again": "Bearbeiten und neu fragen",
  "Edit your message": "Bearbeite deine Nachricht",
  "Ask again": "Neu fragen",
  "Copy the answer": "Antwort kopieren",
  "Answer again": "Neu antworten",
  "Good answer": "Gute Antwort",
  "Bad answer": "Schlechte Antwort",
  "1 token": "1 Token",
  "{n} tokens": "{n} Tokens",
  "Tool call": "Werkzeugaufruf",
  "Tool output": "Ausgabe des Werkzeugs",
  "Stopped.": "Angehalten.",
  "Thinking…": "Denkt nach…",
  "Thoughts": "Gedanken",
  "Thought for a second": "Eine Sekunde nachgedacht",
  "Thought for {n} seconds": "{n} Sekunden nachgedacht",
  "Cut off at the length limit.": "An der Längengrenze abgeschnitten.",
  "The rest was withheld by a safety filter.": "Der Rest wurde von einem Sicherheitsfilter zurückgehalten.",
  "It could not be continued after a failure of the server.": "Nach einem Ausfall des Servers ging es nicht weiter.",
  "Ended because nobody was reading.": "Beendet, weil niemand las.",
  "Ended early.": "Vorzeitig beendet.",
  "No answer: {why}": "Keine Antwort: {why}",
  "the server failed": "der Server ist ausgefallen",
  "The oldest message was left out: the conversation is longer than the model can read at once.": "Die älteste Nachricht fehlte: Die Unterhaltung ist länger, als das Modell auf einmal lesen kann.",
  "The {n} oldest messages were left out: the conversation is longer than the model can read at once.": "Die {n} ältesten Nachrichten fehlten: Die Unterhaltung ist länger, als das Modell auf einmal lesen kann.",
  "Earlier messages were summarised: from here on the model reads a summary of the {n} oldest.": "Frühere Nachrichten wurden zusammengefasst: Von hier an liest das Modell eine Zusammenfassung der {n} ältesten.",
  "Ask for a review": "Um Prüfung bitten",
  "A person looks at what was withheld; you see here what they decide": "Ein Mensch sieht sich das Zurückgehaltene an; hier steht, wie er entscheidet",
  "A person has looked at it: it need not have been withheld. You may ask again.": "Ein Mensch hat es geprüft: Es hätte nicht zurückgehalten werden müssen. Du kannst noch einmal fragen.",
  "A person has looked at it: it stays withheld.": "Ein Mensch hat es geprüft: Es bleibt zurückgehalten.",
  "A person will look at it.": "Ein Mensch wird es prüfen.",
  "A message that was refused.": "Eine abgelehnte Nachricht.",
  "Another answer": "Noch eine Antwort",
  "Take back": "Zurücknehmen",
  "Waits for the answer above.": "Wartet auf die Antwort darüber.",
  "Sending…": "Wird gesendet …",
  "Will be sent when the connection is back.": "Wird gesendet, wenn die Verbindung wieder da ist.",
  "Not sent: {why}": "Nicht gesendet: {why}",
  "Not yet sent": "Noch nicht gesendet",
  "Discard": "Verwerfen",
  "Edit": "Bearbeiten",
  "Not inserted: the message would have {n} characters, and {max} are the most. Send it in parts.": "Nicht eingefügt: Die Nachricht hätte {n} Zeichen, höchstens {max} sind möglich. Bitte in Teilen senden.",
  "Copy the code": "Code kopieren",
  "Table": "Tabelle",
  "Formula": "Formel",
  "{language} block": "Block: {language}",
  "code": "Code",
  "The browser does not allow copying here": "Der Browser erlaubt hier kein Kopieren",
  "The answer failed.": "Die Antwort ist gescheitert.",
  "Answer: {text}": "Antwort: {text}",
  "The conversation was restored from an earlier state.": "Die Unterhaltung wurde aus einem früheren Stand wiederhergestellt.",
  "Another model cannot begin while an answer is being written here. Stop the answer, or wait for its end, then try again.": "Ein anderes Modell kann nicht beginnen, solange hier eine Antwort geschrieben wird. Halte sie an, oder warte auf ihr Ende, und versuch es dann noch einmal.",
  "An answer is still being written here. Stop it, or wait for its end.": "Hier wird noch eine Antwort geschrieben. Halte sie an, oder warte auf ihr Ende.",
  "Too many messages wait already.": "Es warten schon zu viele Nachrichten.",
  "Try again in {n} s.": "Versuch es in {n} s wieder.",
  "Taken back.": "Zurückgenommen.",
  "Thank you.": "Danke.",
  "What is not good about this answer?": "Was ist an dieser Antwort nicht gut?",
  "Reason": "Grund",
  "It is wrong": "Sie ist falsch",
  "It is not what I wanted": "Sie ist nicht, was ich wollte",
  "It is incomplete": "Sie ist unvollständig",
  "It is harmful or offends": "Sie schadet oder verletzt",
  "Something else": "Etwas anderes",
  "In your words": "In deinen Worten",
  "People who run this server read it, with the answer.": "Wer diesen Server betreibt, liest es, mit der Antwort.",
  // settings
  "Settings of this conversation": "Einstellungen dieser Unterhaltung",
  "own settings": "eigene Einstellungen",
  "Preset": "Vorlage",
  "none": "keine",
  "Name": "Name",
  "Save as preset": "Als Vorlage speichern",
  "Delete preset": "Vorlage löschen",
  "Another model answers from your next message on, and reads all that was said.": "Ein anderes Modell antwortet ab deiner nächsten Nachricht und liest alles, was gesagt wurde.",
  "{model} answers your next message.": "{model} beantwortet deine nächste Nachricht.",
  "{input} in, {output} out per million": "{input} hinein, {output} heraus je Million",
  "System prompt": "Systemprompt",
  "How the model should answer, and as whom": "Wie das Modell antworten soll, und als wer",
  "Temperature": "Temperatur",
  "0 is the most predictable, 2 the wildest": "0 ist am berechenbarsten, 2 am wildesten",
  "as the model has it": "wie das Modell sie hat",
  "Longest answer": "Längste Antwort",
  "in tokens": "in Tokens",
  "as the server allows": "wie der Server erlaubt",
  "Theme": "Farben",
  "Language": "Sprache",
  "As the system": "Wie das System",
  "As the browser": "Wie der Browser",
  "Light": "Hell",
  "Dark": "Dunkel",
  // dialogs
  "Save": "Speichern",
  "Cancel": "Abbrechen",
  "Close": "Schließen",
  "Copy": "Kopieren",
  "Copied.": "Kopiert.",
  "Keyboard shortcuts": "Tastenkürzel",
  "Ctrl": "Strg",
  "Del": "Entf",
  "Go to the message field": "Zum Nachrichtenfeld",
  "Copy the last answer": "Letzte Antwort kopieren",
  "Show or hide the list": "Liste zeigen oder verbergen",
  "This help": "Diese Hilfe",
  "Send the message": "Nachricht senden",
  "Begin a new line": "Neue Zeile beginnen",
  "Stop the answer, or close what is open": "Antwort anhalten, oder schließen, was offen ist",
  "In an empty message field: edit the last message": "Im leeren Nachrichtenfeld: letzte Nachricht bearbeiten",
  "In the list: rename": "In der Liste: umbenennen",
  "In the list: delete": "In der Liste: löschen",
  "The single key ? opens this help": "Die Taste ? allein öffnet diese Hilfe",
  // sharing
  "Share this conversation": "Diese Unterhaltung teilen",
  "Whoever has the link may read this conversation as it is now, without a key. What is said later is not in it. You may revoke it at any time.": "Wer den Link hat, kann diese Unterhaltung lesen, wie sie jetzt ist, ohne Schlüssel. Was später gesagt wird, ist nicht dabei. Du kannst ihn jederzeit widerrufen.",
  "Make a link": "Link machen",
  "The link. It is shown only now.": "Der Link. Er ist nur jetzt zu sehen.",
  "No link leads here.": "Kein Link führt hierher.",
  "Made {when}": "Vom {when}",
  "Revoke": "Widerrufen",
  "Revoke the link of {when}": "Link vom {when} widerrufen",
  "The link leads nowhere now.": "Der Link führt jetzt nirgends hin.",
  "Shared conversation": "Geteilte Unterhaltung",
  "Shared {when}, to read": "Geteilt am {when}, zum Lesen",
  "This link leads nowhere": "Dieser Link führt nirgends hin",
  "It was revoked, or the conversation was deleted, or it is not whole.": "Er wurde widerrufen, oder die Unterhaltung gelöscht, oder er ist nicht vollständig.",
  // the connection, and who speaks
  "Connected": "Verbunden",
  "Connected again.": "Wieder verbunden.",
  "Connecting": "Verbindet",
  "Connecting to the server.": "Verbindet sich mit dem Server.",
  "Reconnecting": "Verbindet neu",
  "No connection to the server.": "Keine Verbindung zum Server.",
  "No connection to the server. Trying again now.": "Keine Verbindung zum Server. Neuer Versuch läuft.",
  "There is no connection to the server.": "Es gibt keine Verbindung zum Server.",
  "The server is overloaded.": "Der Server ist überlastet.",
  "Next attempt in {n} s.": "Nächster Versuch in {n} s.",
  "Try now": "Jetzt versuchen",
  "Try again": "Noch einmal",
  "Offline": "Offline",
  "You are offline. What you read here before is here; what you write goes out when the connection is back.": "Du bist offline. Was du hier gelesen hast, ist da; was du schreibst, geht hinaus, wenn die Verbindung wieder da ist.",
  "Paused": "Pausiert",
  "Refused": "Abgelehnt",
  "The server refused the connection.": "Der Server hat die Verbindung abgelehnt.",
  "Server restarting": "Server startet neu",
  "The server is about to restart. Answers go on afterwards.": "Der Server startet gleich neu. Antworten gehen danach weiter.",
  "There is a new version of this page.": "Es gibt eine neue Fassung dieser Seite.",
  "Load it": "Laden",
  "Key": "Schlüssel",
  "Key needed": "Schlüssel nötig",
  "Continue": "Weiter",
  "Enter a key": "Schlüssel eingeben",
  "You may not do that here. Ask whoever gave you your key or account.": "Das darfst du hier nicht. Frag, wer dir deinen Schlüssel oder dein Konto gegeben hat.",
  "You cannot chat with this key or account. Use one that was made for a person.": "Mit diesem Schlüssel oder Konto kannst du nicht chatten. Nimm eins, das für eine Person gemacht ist.",
  "The server asks for a key.": "Der Server verlangt einen Schlüssel.",
  "The server asks who you are.": "Der Server fragt, wer du bist.",
  "This server asks for a key": "Dieser Server verlangt einen Schlüssel",
  "This server asks who you are": "Dieser Server fragt, wer du bist",
  "The server does not know that key. Try another one.": "Der Server kennt diesen Schlüssel nicht. Versuch einen anderen.",
  "It is kept in this tab only, and forgotten when you close it.": "Er bleibt nur in diesem Tab und wird vergessen, wenn du ihn schließt.",
  "Sign in": "Anmelden",
  "Sign in to see your conversations.": "Melde dich an, um deine Unterhaltungen zu sehen.",
  "Sign out": "Abmelden",
  "Signed in as {user}": "Angemeldet als {user}",
  "Here with a key": "Mit Schlüssel hier",
  "Forget it": "Vergessen",
  "Signing out failed. Try again.": "Das Abmelden ist gescheitert. Versuch es noch einmal.",
};
