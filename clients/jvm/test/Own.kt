package sessile.test

import java.io.File
import java.nio.file.Files
import java.time.Instant
import java.util.Random
import java.util.concurrent.CompletableFuture
import java.util.concurrent.Executor
import java.util.concurrent.Flow
import java.util.concurrent.TimeUnit
import sessile.AnswerTimeoutException
import sessile.ClosedException
import sessile.DecodeException
import sessile.Encoding
import sessile.Fields
import sessile.FileStorage
import sessile.Json
import sessile.MsgPack
import sessile.Piece
import sessile.Session
import sessile.Sessile
import sessile.SessileException
import sessile.StoppedException
import sessile.Ulids
import sessile.fields
import sessile.itemOf
import sessile.obj
import sessile.plain
import sessile.retryAfterMs
import sessile.text
import sessile.ulidMadeAt
import sessile.utf8Length

/** What is this client's own: its parts, what it stores and when, and the ways to read an answer. */
fun own(suite: Suite) {
    parts(suite)
    storing(suite)
    sending(suite)
    reading(suite)
}

private inline fun <reified T : Throwable> throws(body: () -> Unit): T {
    try {
        body()
    } catch (error: Throwable) {
        return error as? T ?: fail("threw $error")
    }
    fail("threw nothing")
}

private fun failure(future: CompletableFuture<*>): Throwable = throws<Throwable> { Sessile.await(future) }

private fun parts(suite: Suite) {
    suite.test("values come back from both encodings as they were") {
        val chance = Random(1)
        fun value(depth: Int): Any? = when (chance.nextInt(if (depth > 4) 6 else 8)) {
            0 -> null
            1 -> chance.nextBoolean()
            2 -> chance.nextLong() shr (11 + chance.nextInt(50))
            3 -> chance.nextDouble() * 1e9
            4 -> String(IntArray(chance.nextInt(40)) { chance.nextInt(0xd7ff) }, 0, 0)
            5 -> String(IntArray(chance.nextInt(40)) { if (chance.nextBoolean()) chance.nextInt(128) else 0x1f600 + chance.nextInt(50) }.let { it }, 0, 0)
            6 -> List(chance.nextInt(20)) { value(depth + 1) }
            else -> (0 until chance.nextInt(20)).associate { "k$it" to value(depth + 1) }
        }
        repeat(500) {
            val made = value(0)
            same(made, Json.read(Json.write(made)), "JSON")
            same(made, MsgPack.read(MsgPack.write(made)), "MessagePack")
        }
        for (n in longArrayOf(0, 127, 128, 255, 256, 65_535, 65_536, 4294967295, 4294967296, 9007199254740991)) {
            for (m in longArrayOf(n, -n, -n - 1)) if (m >= -9007199254740991) same(m, MsgPack.read(MsgPack.write(m)), "$m")
        }
    }
    suite.test("bytes that are no value are refused and nothing else is thrown") {
        val chance = Random(2)
        repeat(20_000) {
            val bytes = ByteArray(chance.nextInt(12)).also(chance::nextBytes)
            try {
                MsgPack.read(bytes)
            } catch (_: DecodeException) {
            }
            try {
                Json.read(String(bytes, Charsets.ISO_8859_1))
            } catch (_: DecodeException) {
            }
        }
        for (bad in listOf("", "{", "[1,]", "{\"a\":1,}", "01", "1.", "-", "\"\n\"", "\"\\x\"", "nul", "1 2", "[".repeat(70), "1e999", "9007199254740992")) {
            throws<DecodeException> { Json.read(bad) }
        }
        throws<DecodeException> { MsgPack.read(byteArrayOf(0xdd.toByte(), 127, -1, -1, -1)) }
    }
    suite.test("a lone surrogate harms neither encoding") {
        same("\\ud800", Json.write("\ud800").trim('"'))
        same("\ufffd", MsgPack.read(MsgPack.write("\ud800")))
        same(10, utf8Length("aé€😀"))
    }
    suite.test("what cannot be sent is refused where it is given") {
        same("{\"a\":[1,2.5,\"x\"]}", Json.write(plain(mapOf("a" to arrayOf<Any>(1, 2.5f, StringBuilder("x"))), "b")))
        same("b.a[1]", throws<IllegalArgumentException> { plain(mapOf("a" to listOf(1, Double.NaN)), "b") }.message!!.substringBefore(" is"))
        throws<IllegalArgumentException> { plain(mapOf(1 to 2), "b") }
        throws<IllegalArgumentException> { plain(Any(), "b") }
        throws<IllegalArgumentException> { plain(1L shl 60, "b") }
        throws<IllegalArgumentException> { World().client.command("session.get", mapOf("id" to "mine")) }
    }
    suite.test("ULIDs ascend, and tell when they were made") {
        val ids = Ulids { 0.999999 }
        val made = listOf(5L, 5L, 5L, 4L, 1_760_000_000_000L).map(ids::next)
        same(made.sorted(), made)
        same(1_760_000_000_000L, ulidMadeAt(made.last()))
        same(null, ulidMadeAt("no ulid"))
    }
    suite.test("Retry-After is seconds, a date, or finer in ms") {
        val now = Instant.parse("2026-11-26T20:00:00Z")
        same(1500L, retryAfterMs(null, "1.5", now))
        same(700L, retryAfterMs("700", "3", now))
        same(30_000L, retryAfterMs(null, "Thu, 26 Nov 2026 20:00:30 GMT", now))
        for (nonsense in listOf(null, "soon", "NaN", "-5", "Thu, 26 Nov 2020 20:00:30 GMT")) same(0L, retryAfterMs(null, nonsense, now), "$nonsense")
        same(86_400_000L, retryAfterMs(null, "1e30", now))
    }
    suite.test("files are whole, apart, and gone when removed") {
        val folder = Files.createTempDirectory("sessile").toFile()
        try {
            val storage = FileStorage(File(folder, "kept"))
            same(null, storage.read("a"))
            for (key in listOf("sessile:session:a/b", "sessile:session:..", "sessile:outbox", "é")) storage.write(key, "of $key ✓")
            storage.write("sessile:outbox", "again")
            same("again", FileStorage(File(folder, "kept")).read("sessile:outbox"))
            same("of sessile:session:.. ✓", storage.read("sessile:session:.."))
            same(4, File(folder, "kept").list()!!.size)
            storage.remove("é")
            storage.remove("é")
            same(null, storage.read("é"))
        } finally {
            folder.deleteRecursively()
        }
    }
}

private fun event(offset: Long, type: String, vararg more: Pair<String, Any?>): Fields = mapOf(
    "type" to "event", "session" to "s", "epoch" to "e", "offset" to offset, "at" to 1_760_000_000_000 + offset,
    "event" to mapOf("type" to type, "response_id" to "r", "item_id" to "i") + more,
)

private fun delta(offset: Long, text: String) = event(offset, "response.output_text.delta", "content_index" to 0L, "delta" to text)

/** A session that is read live, with an answer that has begun: offset 2. */
private fun World.begun(): Session {
    val session = client.session("s").open()
    greet()
    socket.play(mapOf("type" to "resumed", "session" to "s", "mode" to "replay", "epoch" to "e", "from" to 1L, "top" to 0L))
    socket.play(mapOf("type" to "caught_up", "session" to "s", "offset" to 0L))
    socket.play(event(1, "response.created", "response" to mapOf("parent_id" to null)))
    val item = mapOf("id" to "i", "parent_id" to null, "type" to "message", "role" to "assistant", "content" to emptyList<Any>(), "status" to "in_progress")
    socket.play(event(2, "response.output_item.added", "item" to item))
    return session
}

private fun World.stored(): Long? = storage.read("sessile:session:s")?.let { fields(Json.read(it))!!["offset"] as Long }

/** Runs what it is given when the test says so. */
private class Later : Executor {
    val tasks = ArrayDeque<Runnable>()

    override fun execute(task: Runnable) = tasks.addLast(task)

    fun run() {
        while (tasks.isNotEmpty()) tasks.removeFirst().run()
    }
}

private fun storing(suite: Suite) {
    suite.test("a position is stored with its view, a second after a change") {
        val it = World()
        it.begun()
        it.socket.play(delta(3, "Hi"))
        same(null, it.stored())
        it.clock.advance(1000)
        same(3L, it.stored())
        val again = World(storage = it.storage)
        val session = again.client.session("s").open()
        same("Hi", session.view.text("r"))
        val hello = again.greet()
        same(listOf(mapOf("session" to "s", "epoch" to "e", "offset" to 3L)), hello["resume"])
    }
    suite.test("a position is not stored before a listener has returned") {
        val later = Later()
        val it = World(callbacks = later)
        val session = it.begun()
        session.onChange { }
        it.socket.play(delta(3, "Hi"))
        it.clock.advance(5000)
        same(null, it.stored())
        it.socket.play(delta(4, " there")) // the listener is told once for both
        later.run()
        same(3L, it.stored())
        it.clock.advance(1000)
        same(4L, it.stored())
    }
    suite.test("nor before a screen says so") {
        val it = World()
        val session = it.begun()
        it.clock.advance(1000)
        val screen = session.screen()
        it.socket.play(delta(3, "Hi"))
        it.clock.advance(5000)
        same(2L, it.stored())
        screen.shown(session.view.version)
        same(3L, it.stored())
        it.socket.play(delta(4, " there"))
        it.clock.advance(5000)
        screen.close()
        same(4L, it.stored())
    }
    suite.test("nor before a reader of events has come for the next one") {
        val it = World()
        val session = it.begun()
        it.clock.advance(1000)
        val events = session.events()
        it.socket.play(delta(3, "Hi"), delta(4, " there"))
        it.clock.advance(5000)
        same(2L, it.stored())
        same(3L, events.next()["offset"])
        same(4L, events.next()["offset"])
        it.client.suspend()
        same(2L, it.stored())
        events.close()
        same(4L, it.stored())
    }
    suite.test("a damaged store counts as none, and is told") {
        val storage = MemoryStorage()
        storage.write("sessile:session:s", "{\"epoch\":\"e\",\"offset\":3}")
        storage.write("sessile:outbox", "[1]")
        val it = World(storage = storage)
        val told = ArrayList<String>()
        it.client.onError { error -> told.add(error.code) }
        it.client.session("s").open()
        same(listOf(mapOf("session" to "s")), it.greet()["resume"])
        same(listOf("storage"), told)
    }
    suite.test("a storage that fails is told, and the conversation goes on") {
        val broken = object : sessile.Storage {
            override fun read(key: String): String? = error("read")

            override fun write(key: String, value: String) = error("write")

            override fun remove(key: String) = error("remove")
        }
        val it = World(storage = broken)
        val told = ArrayList<String>()
        it.client.onError { error -> told.add(error.code) }
        it.begun()
        it.socket.play(delta(3, "Hi"))
        it.clock.advance(1000)
        same(true, told.size >= 3 && told.all { code -> code == "storage" }, "$told")
        same("Hi", it.client.session("s").view.text("r"))
    }
}

private fun sending(suite: Suite) {
    suite.test("what a killed program had not sent is sent by the next one, first and by its id") {
        val first = World()
        first.client.session("s").send("one")
        first.client.session("s").send("two")
        val ids = first.client.unanswered.map { it["id"] }
        val second = World(random = 0.25, storage = first.storage)
        second.client.session("s").send("three")
        second.greet()
        same(listOf("one", "two", "three"), second.socket.frames.map { it["content"] })
        same(ids, second.socket.frames.take(2).map { it["id"] })
    }
    suite.test("closing gives up what was not sent; suspending leaves it to the next run") {
        val it = World()
        val said = it.client.session("s").send("one")
        it.client.suspend()
        same(true, it.storage.read("sessile:outbox")!!.contains("one"))
        it.client.close()
        same(null, it.storage.read("sessile:outbox"))
        same(true, failure(said) is ClosedException)
        throws<ClosedException> { it.client.session("s") }
        same(0, it.clock.pending, "timers")
    }
    suite.test("who gives up waiting gets an error, and the command is forgotten") {
        val it = World()
        val asked = it.client.command("session.get", mapOf("session" to "s"), 3000)
        val cancelled = it.client.command("session.get", mapOf("session" to "s"))
        cancelled.cancel(true)
        same(1, it.client.unanswered.size)
        it.clock.advance(3000)
        same(true, failure(asked) is AnswerTimeoutException)
        same(0, it.client.unanswered.size)
    }
    suite.test("too many commands are refused at once") {
        val it = World { unansweredMax(2) }
        repeat(2) { _ -> it.client.session("s").send("x") }
        same(true, failure(it.client.session("s").send("x")) is SessileException)
    }
    suite.test("a key is asked for anew before each connection; one that cannot be had is a cut") {
        var asked = 0
        val it = World { auth { if (++asked == 1) error("no network") else "key-$asked" } }
        it.client.connect()
        same(0, it.sockets.size)
        it.clock.advance(125)
        same("key-2", it.greet()["auth"])
        it.socket.drop(4402)
        it.clock.advance(250)
        same("key-3", it.greet()["auth"])
    }
    suite.test("a key that is refused ends everything that waits, with why") {
        val it = World()
        val live = it.client.session("s").live()
        val said = it.client.session("s").send("x")
        it.socket.refuse(401, 0)
        for (future in listOf(live, said, it.client.session("s").send("y"))) same(401, (failure(future) as StoppedException).httpStatus)
        throws<StoppedException> { it.client.session("s").answer("r").pieces().hasNext() }
    }
    suite.test("in the background there is no socket and no timer") {
        val it = World()
        it.begun()
        it.client.suspend()
        same(1000, it.socket.closedWith!!.first)
        same(0, it.clock.pending, "timers")
        it.client.resume()
        same(2L, fields((it.greet()["resume"] as List<*>)[0])!!["offset"])
    }
    suite.test("idle, a connected client wakes less than three times a minute") {
        val it = World()
        it.begun()
        it.clock.advance(1000)
        it.socket.frames.clear()
        var wakes = 0
        repeat(10) { _ ->
            var woken = false
            it.clock.advance(60_000) {
                if (it.socket.frames.isNotEmpty()) {
                    while (it.socket.frames.isNotEmpty()) {
                        wakes++
                        if (it.socket.take()["type"] == "ping") it.socket.play(mapOf("type" to "pong"))
                    }
                    woken = true
                }
                false
            }
            same(true, woken)
        }
        same(true, wakes <= 30, "$wakes pings in 10 minutes")
    }
}

private fun reading(suite: Suite) {
    fun end(offset: Long) = event(offset, "response.completed", "response" to mapOf("usage" to mapOf("output_tokens" to 2L)))
    suite.test("pieces add up to the text, and a retraction begins anew") {
        val it = World()
        val session = it.begun()
        val pieces = ArrayList<Piece>()
        val ends = ArrayList<String?>()
        session.answer("r").onPiece({ piece -> pieces.add(piece) }, { record, _ -> ends.add(record?.status?.name) })
        it.socket.play(delta(3, "Hi"))
        it.socket.play(delta(4, " you"))
        it.socket.play(event(5, "content.retracted", "content_index" to 0L, "start" to 3L, "end" to 6L, "replacement" to "😀"))
        it.socket.play(end(6))
        same(listOf("Hi", " you", "Hi 😀"), pieces.map { piece -> piece.delta })
        same(listOf(false, false, true), pieces.map { piece -> piece.isRestarted })
        same(listOf<String?>("COMPLETED"), ends)
        val record = Sessile.await(session.answer("r").done())
        same(2L, record.usage!!["output_tokens"])
    }
    for (encoding in Encoding.values()) suite.test("a thread that waits reads an answer while another feeds it ($encoding)") {
        val it = World(encoding)
        val session = it.begun()
        val read = CompletableFuture.supplyAsync {
            val text = StringBuilder()
            val record = session.answer("r").read { piece -> text.append(piece.delta) }
            "$text ${record.status}"
        }
        it.socket.play(delta(3, "Hi"))
        it.socket.play(delta(4, " there"))
        it.socket.play(end(5))
        same("Hi there COMPLETED", read.get(10, TimeUnit.SECONDS))
    }
    suite.test("a subscriber gets no more than it asked for, in larger pieces") {
        val it = World()
        val session = it.begun()
        val got = ArrayList<String>()
        var subscription: Flow.Subscription? = null
        session.answer("r").publisher().subscribe(object : Flow.Subscriber<Piece> {
            override fun onSubscribe(made: Flow.Subscription) {
                subscription = made
            }

            override fun onNext(piece: Piece) {
                got.add(piece.delta)
            }

            override fun onError(error: Throwable) = fail("$error")

            override fun onComplete() {
                got.add("end")
            }
        })
        it.socket.play(delta(3, "Hi"))
        it.socket.play(delta(4, " there"))
        same(emptyList<String>(), got)
        subscription!!.request(1)
        it.socket.play(delta(5, "!"))
        same(listOf("Hi there"), got)
        it.socket.play(end(6))
        subscription.request(1)
        same(listOf("Hi there", "!", "end"), got)
    }
    suite.test("a reader of events that falls behind is told, after what it has") {
        val it = World()
        val session = it.begun()
        val events = session.events()
        for (offset in 3L..4200L) it.socket.play(delta(offset, "x"))
        var read = 0
        throws<SessileException> { while (events.hasNext()) read += if (events.next().obj("event")?.text("delta") == "x") 1 else 0 }
        same(4096, read)
        same("x".repeat(4198), session.view.text("r"))
    }
    suite.test("what waits ends when the client is closed") {
        val it = World()
        val session = it.begun()
        val done = session.answer("r").done()
        val read = CompletableFuture.supplyAsync { session.answer("r").read { } }
        it.client.close()
        same(true, failure(done) is ClosedException)
        same(true, throws<java.util.concurrent.ExecutionException> { read.get(10, TimeUnit.SECONDS) }.cause is ClosedException)
    }
    suite.test("an image that is retracted is gone") {
        val view = World().client.session("s").view
        val image = mapOf("type" to "input_image", "image_url" to "data:image/png;base64,AAAA", "sha256" to "00")
        val content = listOf(mapOf("type" to "input_text", "text" to "Look"), image, image)
        val item = mapOf("id" to "a", "parent_id" to null, "type" to "message", "role" to "user", "content" to content)
        view.apply(mapOf("type" to "item.created", "item" to item), 0)
        view.apply(mapOf("type" to "content.retracted", "item_id" to "a", "content_index" to 1L, "start" to 0L, "end" to 1L), 0)
        same(listOf(content[0], mapOf("type" to "input_image"), image), view.thread().single().item!!.content)
    }
    suite.test("the thread is one branch, with its siblings; unknown tips count as none") {
        val view = World().client.session("s").view
        fun item(id: String, parent: String?) = mapOf("id" to id, "parent_id" to parent, "type" to "message", "content" to id)
        for ((id, parent) in listOf("a" to null, "b" to "a", "c" to "a", "d" to "b")) {
            view.apply(mapOf("type" to "item.created", "item" to item(id, parent)), 0)
        }
        same(listOf("a", "b", "d"), view.thread().map { it.id })
        same(listOf("a", "c"), view.thread("c").map { it.id })
        same(listOf("b", "c"), view.thread("c")[1].siblings)
        same(view.thread().map { it.id }, view.thread("nowhere").map { it.id })
        view.apply(mapOf("type" to "content.retracted", "item_id" to "b", "category" to "item_deleted"), 0)
        same(listOf("a", "d"), view.thread("d").map { it.id })
        val again = World().client.session("t").view
        again.load(fields(Json.read(Json.write(view.state())))!!)
        same(view.thread().map { it.id }, again.thread().map { it.id })
        same("a", itemOf(item("a", null)).text)
    }
    suite.test("a server's tool waits for approval until somebody decides") {
        val it = World()
        val session = it.begun()
        it.socket.play(event(3, "tool_call.approval_requested", "call_id" to "c", "name" to "pay"))
        same(listOf("pay"), session.view.approvals.map { call -> call.name })
        session.approve("c", true)
        val sent = it.socket.frames.last()
        same(listOf("tool.approve", "c", true), listOf(sent["type"], sent["call_id"], sent["approved"]))
        it.socket.play(event(4, "tool_call.approval_decided", "call_id" to "c", "approved" to true, "by" to "x"))
        same(0, session.view.approvals.size)
    }
}
