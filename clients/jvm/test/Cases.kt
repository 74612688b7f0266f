package sessile.test

import java.io.File
import java.util.concurrent.CompletableFuture
import sessile.CommandException
import sessile.Encoding
import sessile.Fields
import sessile.Json
import sessile.Sent
import sessile.SessileException
import sessile.StoppedException
import sessile.fields
import sessile.number
import sessile.obj
import sessile.objects
import sessile.text

/**
 * Every case of docs/protocol/cases that names `client`, once per encoding: the runner plays the server, in virtual time, and asserts
 * what this SDK sends and what a program using it sees. The format is docs/protocol/README.md.
 */
fun cases(folder: File, suite: Suite) {
    val specs = folder.listFiles { file -> file.name.endsWith(".json") }.orEmpty().sorted().map { fields(Json.Reader(it.readText(), Long.MAX_VALUE).whole())!! }
    val ours = specs.filter { "client" in (it["runs"] as List<*>) }
    check(ours.isNotEmpty()) { "there are no cases in $folder" }
    for (spec in ours) {
        for (encoding in (spec["encodings"] as List<*>?) ?: listOf("json", "msgpack")) {
            suite.test("${spec["name"]} ($encoding): ${spec["title"]}") {
                CaseRunner(spec, if (encoding == "json") Encoding.JSON else Encoding.MSGPACK).run()
            }
        }
    }
}

private class CaseRunner(private val spec: Fields, encoding: Encoding) {
    private val values = Values(spec.obj("given").orEmpty())
    private val ignore = ((spec["ignore"] as List<*>?) ?: listOf("ack")).toSet()
    private val results = HashMap<String, CompletableFuture<out Any?>>()
    private val it: World
    private var socket: TestSocket? = null
    private var dialsSeen = 0
    private var stepAt: Long

    init {
        val storage = MemoryStorage()
        for ((name, saved) in spec.obj("saved").orEmpty()) {
            storage.write("sessile:session:${values.played(name)}", Json.write(values.played(saved)))
        }
        it = World(encoding, (spec["random"] as Number?)?.toDouble() ?: 0.5, storage)
        stepAt = it.clock.now()
    }

    fun run() {
        it.client.connect()
        spec.objects("steps").forEachIndexed { i, step ->
            try {
                if ("call" in step) call(step) else step(step)
            } catch (error: Throwable) {
                throw Failure("step $i ${Json.write(step).take(300)}: $error").initCause(error)
            }
        }
        nothingLeft("at the end")
        it.client.close()
    }

    private fun left(): List<Fields> = it.sockets.flatMap { each -> each.frames }.filter { frame -> frame["type"] !in ignore }

    private fun nothingLeft(at: String) {
        same(emptyList<Fields>(), left(), "$at: frames that the case does not name")
        same(dialsSeen, it.sockets.size, "$at: dials")
        socket?.closedWith?.let { closed -> fail("$at: closed with $closed") }
    }

    private fun step(step: Fields) {
        val (verb, argument) = step.entries.firstOrNull { it.key != "note" && it.key != "on" } ?: fail("no verb")
        when (verb) {
            "connect" -> connect(fields(argument).orEmpty())
            "client" -> for (pattern in argument as? List<*> ?: listOf(argument)) values.match(pattern, nextFrame())
            "server" -> {
                val played = values.played(argument)
                val frames = (played as? List<*> ?: listOf(played)).map { fields(it)!! }
                (socket ?: fail("no connection to play on")).play(*frames.toTypedArray())
            }
            "server_raw" -> socket!!.raw(raw(fields(argument)!!))
            "close" -> close(fields(argument)!!)
            "advance_ms" -> it.clock.advance(argument as Long)
            "quiet_ms" -> {
                it.clock.advance(argument as Long)
                nothingLeft("in quiet time")
            }
            "expect" -> expect(fields(argument)!!)
            else -> fail("a client case cannot use $verb")
        }
        stepAt = it.clock.now()
    }

    private fun raw(said: Fields): Any = said.text("text") ?: said.text("hex")!!.chunked(2).map { it.toInt(16).toByte() }.toByteArray()

    private fun nextFrame(): Fields {
        while (true) {
            val frame = socket?.frames?.removeFirstOrNull() ?: fail("the SDK has sent nothing (more)")
            if (frame["type"] !in ignore) return frame
        }
    }

    private fun connect(how: Fields) {
        val (low, high) = ((how["after_ms"] as List<*>?) ?: listOf(0L, 0L)).map { each -> (each as Number).toLong() }
        it.clock.advance(stepAt + high - it.clock.now()) { it.sockets.size > dialsSeen }
        if (it.sockets.size <= dialsSeen) fail("no dial within $high ms")
        val waited = it.clock.now() - stepAt
        if (waited < low) fail("dialled after $waited ms, not $low")
        val dialled = it.sockets[dialsSeen++]
        socket = null
        when (val refuse = how["refuse"]) {
            null -> {
                socket = dialled
                dialled.accept()
            }
            is Map<*, *> -> dialled.refuse((refuse["http"] as Long).toInt(), (refuse["retry_after_s"] as Number? ?: 0).toLong() * 1000)
            else -> dialled.drop()
        }
    }

    private fun close(how: Fields) {
        val closing = socket ?: fail("no connection to close")
        socket = null
        when (how["by"]) {
            "client" -> {
                val (code, _) = closing.closedWith ?: fail("the SDK has not closed")
                values.match(how["code"], code.toLong())
                same(emptyList<Fields>(), closing.frames.filter { frame -> frame["type"] !in ignore }, "frames before the close")
            }
            "network" -> closing.drop()
            else -> closing.drop((values.played(how["code"]) as Long).toInt())
        }
    }

    private fun call(step: Fields) {
        val said = fields(values.played(step - setOf("call", "as", "note", "on")))!!
        val work = invoke(step.text("call")!!, said.text("session"), said - "session")
        stepAt = it.clock.now()
        step.text("as")?.let { label -> results[label] = work }
    }

    private fun invoke(name: String, id: String?, said: Fields): CompletableFuture<out Any?> {
        val client = it.client
        fun session() = client.session(id!!)
        fun word(key: String) = said.text(key)!!
        val nothing = CompletableFuture.completedFuture(emptyMap<String, Any?>())
        return when (name) {
            "attach" -> nothing.also { session().open() }
            "detach" -> nothing.also { session().close() }
            "stop" -> nothing.also { client.close() }
            "create" -> client.create(said + if (id == null) emptyMap() else mapOf("session" to id))
                .thenApply { made -> mapOf("session" to made.id, "epoch" to made.position?.epoch) }
            "send" -> session().send(said["content"]!!, said - "content").thenApply(::asOk)
            "edit" -> session().edit(word("item_id"), said["content"]!!, said - setOf("item_id", "content")).thenApply(::asOk)
            "regenerate" -> session().regenerate(said).thenApply { answer -> mapOf("response_id" to answer.responseId) }
            "cancel" -> session().cancel(word("response_id")).thenApply { done -> mapOf("noop" to !done) }
            "steer" -> session().steer(word("response_id"), said["content"]!!).thenApply(::asOk)
            "tool_output" -> session().toolOutput(word("call_id"), word("output"), said["is_error"] == true).thenApply(::asOk)
            "appeal" -> {
                val note = said.text("note") ?: ""
                val content = said.text("content")
                val asked = if (content == null) session().appeal(word("response_id"), note) else session().appealMessage(content, note)
                asked.thenApply { review -> mapOf("review_id" to review) }
            }
            "update" -> session().update(said)
            "delete" -> session().delete()
            "get" -> session().get()
            "list" -> client.list(10_000, (said["limit"] as Long? ?: 100).toInt()).thenApply { rows -> mapOf("data" to rows.map { row -> row.raw }) }
            "warm" -> nothing.also { session().warm() }
            else -> fail("no such call: $name")
        }
    }

    private fun asOk(sent: Sent): Fields {
        val answer = sent.answer?.let { mapOf("response_id" to it.responseId) }.orEmpty()
        return mapOf("item_id" to sent.itemId, "offset" to sent.offset) + answer
    }

    private fun expect(what: Fields) {
        what.text("label")?.let { label -> result(results[label] ?: fail("no call is labelled $label"), what) }
        what.obj("client")?.let { wanted ->
            val status = it.client.status
            wanted["phase"]?.let { phase -> same(phase, status.phase.name.lowercase(), "client phase") }
            wanted["error"]?.let { error -> values.match(error, status.error?.raw.orEmpty() + codes(status.closeCode, status.httpStatus)) }
        }
        if ("session" in what) session(what)
    }

    private fun codes(close: Int?, http: Int?): Fields =
        mapOf("close_code" to close?.toLong(), "http_status" to http?.toLong()).filterValues { code -> code != null }

    private fun result(future: CompletableFuture<out Any?>, what: Fields) {
        if (what["pending"] == true) same(false, future.isDone, "the call is done")
        if ("ok" in what || "error" in what) {
            if (!future.isDone) fail("the call is not done")
            val outcome = runCatching { future.join() }
            val error = outcome.exceptionOrNull()?.let { thrown -> thrown.cause ?: thrown }
            if ("ok" in what) values.match(what["ok"], if (error != null) fail("the call failed: $error") else outcome.getOrNull())
            if ("error" in what) values.match(what["error"], asError(error ?: fail("the call did not fail: ${outcome.getOrNull()}")))
        }
    }

    private fun asError(error: Throwable): Fields {
        if (error is CommandException) return error.error.raw
        if (error !is SessileException) return mapOf("message" to "$error")
        val codes = if (error is StoppedException) codes(error.closeCode, error.httpStatus) else emptyMap()
        return mapOf("message" to error.message, "code" to error.code, "retryable" to error.isRetryable) + codes
    }

    private fun session(what: Fields) {
        val session = it.client.session(values.played(what["session"]) as String)
        val view = session.view
        val seen = mapOf(
            "phase" to session.phase.name.lowercase(),
            "epoch" to (session.position?.epoch ?: Absent),
            "offset" to (session.position?.offset ?: Absent),
            "open" to view.open.map { response -> response.id },
            "items" to view.items.map { item -> item.id },
            "head" to view.head,
            "title" to view.title,
            "branch" to view.branch(),
        )
        val perId = mapOf<String, (String) -> Any?>(
            "text" to view::text,
            "status" to { id -> view.response(id)?.status?.name?.lowercase() },
            "item_text" to { id -> view.item(id)?.content.orEmpty().joinToString("") { part -> part.text("text") ?: "" } },
            "arguments" to { id -> view.item(id)?.arguments },
            "reviews" to { id ->
                val review = view.reviews.firstOrNull { each -> each.id == id }
                review?.outcome ?: if (review?.isAppealed == true) "appealed" else "open"
            },
        )
        for ((key, wanted) in what - "session") {
            val of = perId[key]
            if (of == null) {
                values.match(wanted, if (key in seen) seen[key] else fail("expect knows no $key"), key)
            } else {
                for ((id, value) in fields(wanted)!!) values.match(value, of(values.played(id) as String), "$key[$id]")
            }
        }
    }
}
