package sessile.test

import java.io.File
import java.util.concurrent.CompletableFuture
import kotlin.system.exitProcess
import sessile.Encoding
import sessile.FileStorage
import sessile.HttpTransport
import sessile.Json
import sessile.Sessile
import sessile.SessileClient
import sessile.SocketTransport
import sessile.fields

/**
 * A program that uses the client against a real server, steered by lines on its input (tests/integration/clients/test_jvm.py):
 *
 *     java … JourneyKt URL FOLDER ENCODING TRANSPORT
 *     create | open SESSION | say TOKENS WORDS | later TOKENS WORDS | read | view | until ITEMS | suspend | resume | end
 *
 * Every line that it prints is JSON: an answer's pieces as they come, and what a line of input led to.
 */
fun main(args: Array<String>) {
    val (url, folder, encoding, transport) = args
    val storage = FileStorage(File(folder))
    val client = Sessile.builder(url)
        .storage(storage)
        .encoding(Encoding.valueOf(encoding.uppercase()))
        .transport(if (transport == "http") HttpTransport() else SocketTransport())
        .auth { System.getenv("JOURNEY_KEY") }
        .build()
    client.onStatus { tell("status" to it.phase.name.lowercase(), "error" to it.error?.code) }
    client.onError { tell("complaint" to it.code) }
    try {
        Journey(client, storage).run()
    } catch (error: Throwable) {
        tell("failed" to "$error")
        exitProcess(1)
    }
}

@Synchronized
private fun tell(vararg what: Pair<String, Any?>) {
    println(Json.write(mapOf(*what)))
    System.out.flush()
}

private class Journey(private val client: SessileClient, private val storage: FileStorage) {
    private var session = ""
    private var responseId = ""

    private fun say(tokens: String, words: String) =
        client.session(session).send(words, mapOf("max_output_tokens" to tokens.toInt(), "queue" to true))

    fun run() {
        for (line in generateSequence(::readlnOrNull)) {
            val words = line.split(" ", limit = 3)
            when (words[0]) {
                "create" -> {
                    session = Sessile.await(client.create()).id
                    tell("session" to session)
                }
                "open" -> {
                    session = words[1]
                    val had = storage.read("sessile:session:$session")?.let { fields(Json.read(it)) }
                    client.session(session).open()
                    Sessile.await(client.session(session).live())
                    tell("opened" to session, "stored" to had?.get("offset"))
                }
                "say" -> {
                    val sent = Sessile.await(say(words[1], words[2]))
                    responseId = sent.answer!!.responseId
                    tell("said" to sent.itemId, "response" to responseId)
                }
                // Without waiting: it may be said by the next run.
                "later" -> {
                    say(words[1], words[2])
                    Sessile.await(client.stored())
                    tell("unanswered" to client.unanswered.map { it["id"] })
                }
                "read" -> Thread(::read).apply { isDaemon = true }.start()
                "view" -> view()
                "until" -> until(words[1].toInt())
                "suspend" -> client.suspend()
                "resume" -> client.resume()
                "end" -> {
                    client.close()
                    return tell("ended" to true)
                }
            }
        }
    }

    private fun read() {
        try {
            val end = client.session(session).answer(responseId).read { tell("piece" to it.delta, "restarted" to it.isRestarted) }
            tell("status_of" to end.id, "end" to end.status.name.lowercase(), "reason" to end.reason)
        } catch (error: Throwable) {
            tell("failed" to "$error")
        }
    }

    /** Until the conversation has so many items and none is being written. */
    private fun until(count: Int) {
        val view = client.session(session).view
        val settled = CompletableFuture<Int>()
        fun look() {
            if (view.items.size >= count && view.open.isEmpty()) settled.complete(view.items.size)
        }
        client.session(session).onChange { look() }.use {
            look()
            tell("settled" to Sessile.await(settled).toLong())
        }
    }

    private fun view() {
        val view = client.session(session).view
        tell(
            "offset" to client.session(session).position?.offset,
            "items" to view.items.map { mapOf("id" to it.id, "role" to it.role, "text" to it.text, "status" to it.status) },
        )
    }
}
