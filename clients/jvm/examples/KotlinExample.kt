// A chat in the terminal: what is typed is sent, and the answer is shown as it is written.
import java.io.File
import sessile.FileStorage
import sessile.Sessile

fun main(args: Array<String>) {
    val client = Sessile.builder(args[0]) // https://chat.example
        .auth { System.getenv("CHAT_KEY") } // asked for before each connection
        .storage(FileStorage(File(args[1])))
        .build()
    client.onStatus { if (it.phase.name == "OFFLINE") System.err.println("[offline, trying again]") }

    client.use {
        val session = Sessile.await(client.create(mapOf("title" to "Tides")))
        for (line in generateSequence(::readlnOrNull)) {
            val sent = Sessile.await(session.send(line, mapOf("max_output_tokens" to 200)))
            val end = sent.answer!!.read { piece -> print(piece.delta) } // the connection may come and go meanwhile
            println("\n[${end.status.name.lowercase()}, ${end.usage?.get("output_tokens")} tokens]")
        }
    }
}
