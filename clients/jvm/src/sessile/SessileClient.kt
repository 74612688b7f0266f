package sessile

import java.security.SecureRandom
import java.time.Duration
import java.util.concurrent.CompletableFuture
import java.util.concurrent.Executor
import java.util.concurrent.locks.ReentrantLock
import java.util.function.Consumer
import java.util.logging.Level
import java.util.logging.Logger
import kotlin.concurrent.withLock

/** Sessions as a list has them: `raw` is a row as it came. */
class SessionInfo internal constructor(val raw: Map<String, Any?>) {
    val id: String get() = raw.text("id") ?: raw.text("session") ?: ""
    val title: String? get() = raw.text("title")
    val createdAt: Long? get() = raw.number("created_at")
    val updatedAt: Long? get() = raw.number("updated_at")

    /** Of a search: where it was found, each with `item_id`, `role`, `snippet`, `start`, `end`. */
    val matches: List<Map<String, Any?>> get() = raw.objects("matches")
}

class Page internal constructor(val data: List<SessionInfo>, val hasMore: Boolean, val lastId: String?)

private const val OUTBOX = "outbox"
private const val ROLLUP_MS = 200

/**
 * The client of a Sessile server: one WebSocket at a time, commands that are sent once, sessions by name.
 *
 * It carries out what Core decides, in order, and keeps in its storage what must survive the program: each open session's position with
 * its view, and the commands that were not answered yet (so that a message written in a tunnel is sent though the app was killed; its id
 * makes a repeat harmless, for 24 h).
 *
 * Every method may be called from any thread, and none waits but `await`. Futures are completed on threads of the client that may
 * wait; listeners are called one at a time, in order, on the executor given for them.
 */
class SessileClient internal constructor(private val options: Builder, internal val threads: Threads) : AutoCloseable {
    internal val lock = ReentrantLock()
    internal val changed = lock.newCondition()
    private val transport = options.chosenTransport ?: HttpTransport()
    internal val store = StorageQueue(options.storage, options.storagePrefix + ":", threads) { complain(it) }

    private class Waiting(val type: String, val future: CompletableFuture<Fields>) {
        var timer: Registration? = null
    }

    private val core = options.random.let { Core(Ulids(it), it, options.device, if (options.isSlowLink) ROLLUP_MS else 0) }
    private val url = Sessile.webSocketUrl(options.url)
    private val sessions = LinkedHashMap<String, Session>()
    private val waiting = LinkedHashMap<String, Waiting>()
    private val touched = LinkedHashSet<Session>()
    private val statusListeners = ArrayList<Consumer<Status>>()
    private val errorListeners = ArrayList<Consumer<SessileException>>()
    private val resetListeners = ArrayList<Consumer<Session>>()
    private var socket: Socket? = null

    /** Grows with every dial and hang-up: what an earlier socket says is not heard. */
    private var dialled = 0
    private var timer: Registration? = null
    private var timerAt: Long? = null
    private var isPumping = false

    /** What an earlier run left unanswered: nothing is sent, and nothing stored over it, before it was read. */
    private var isOutboxRead = false
    private var isOutboxWanted = false
    private var isWanted = false
    private var isClosed = false
    private var keptIds = ""
    private var statusNow = core.status()

    val status: Status get() = lock.withLock { statusNow }

    // -- the connection

    /** Begin to connect, and keep at it. Commands and opening a session do so by themselves. */
    fun connect(): SessileClient = lock.withLock {
        checkOpen()
        isWanted = true
        if (isOutboxRead) drive { core.start(it) } else restore()
        this
    }

    /** Take up the commands of an earlier run without connecting: for a program that starts offline or in the background. */
    fun restore() = lock.withLock {
        if (isOutboxWanted) return@withLock
        isOutboxWanted = true
        store.load(OUTBOX) { text ->
            lock.withLock {
                if (!isClosed) {
                    if (text != null) restoreOutbox(text)
                    isOutboxRead = true
                    drive { if (isWanted) core.start(it) }
                }
            }
        }
    }

    /** The app goes to the background: hang up, stop every timer and store what must be kept. */
    fun suspend() = lock.withLock {
        isWanted = false
        drive { core.suspend() }
        for (session in sessions.values) session.save()
    }

    /** Back in the foreground, or a network came up. Harmless at any time. */
    fun resume() {
        lock.withLock { if (isOutboxRead) drive { core.resume(it) } else connect() }
    }

    /** Completes when the storage has all that was to be kept when it was called. */
    fun stored(): CompletableFuture<Void?> {
        val future = CompletableFuture<Void?>()
        lock.withLock { for (session in sessions.values) session.save() }
        store.whenStored { future.complete(null) }
        return future
    }

    /**
     * For good. Unanswered commands fail with `ClosedException` and are not kept; to leave them to the next run, `suspend` and wait for
     * `stored`. Waits, for at most five seconds, until the storage has what it is to keep.
     */
    override fun close() {
        val kept = lock.withLock {
            if (isClosed) return
            for (session in sessions.values) session.save()
            isWanted = false
            drive { core.stop() }
            isClosed = true
            for (session in sessions.values) session.ended(ClosedException())
            sessions.clear()
            CompletableFuture<Void?>().also { future -> store.whenStored { future.complete(null) } }
        }
        if (!lock.isHeldByCurrentThread) Sessile.waitFor(kept, Duration.ofSeconds(5))
        threads.close()
    }

    /** Commands that have no answer yet, oldest first, as frames; those of an earlier run that the storage kept are among them. */
    val unanswered: List<Map<String, Any?>> get() = lock.withLock { core.unanswered() }

    // -- commands

    /**
     * Send any command by its name. Completes with its `ok`; exceptionally with what the server said (`CommandException`) or why it could not.
     * `timeoutMs`: give up waiting after so long (the outcome is unknown then); null: wait, over reconnects too. Cancelling the
     * future gives up too.
     */
    @JvmOverloads
    fun command(type: String, fields: Map<String, Any?>, timeoutMs: Long? = null): CompletableFuture<Map<String, Any?>> {
        val body = fields(plain(fields, type))!! + ("type" to type)
        require("id" !in fields) { "$type: the client makes the id" }
        val future = CompletableFuture<Fields>()
        lock.withLock {
            whyStopped()?.let { return future.apply { completeExceptionally(it) } }
            if (waiting.size >= options.unansweredMax) {
                return future.apply { completeExceptionally(SessileException("overflow", "Too many commands wait for an answer.", true)) }
            }
            wake()
            drive { now ->
                val id = core.command(now, body)
                val entry = Waiting(type, future)
                waiting[id] = entry
                if (timeoutMs != null) entry.timer = threads.scheduler.schedule(timeoutMs) { giveUp(id, timeoutMs) }
                future.whenComplete { _, _ -> if (future.isCancelled) giveUp(id, null) }
            }
        }
        return future
    }

    private fun giveUp(id: String, timeoutMs: Long?) = lock.withLock {
        val entry = answered(id) ?: return@withLock
        drive { core.forget(id) }
        if (timeoutMs != null) complete(entry.future, null, AnswerTimeoutException("${entry.type} was not answered in $timeoutMs ms."))
    }

    /** A new session, open for reading from its first event on. `fields`: `title`, `model`, `instructions`, `tools`, `metadata`, … */
    @JvmOverloads
    fun create(fields: Map<String, Any?> = emptyMap()): CompletableFuture<Session> = command("session.create", fields).thenApply {
        session(it.text("session") ?: "").open(Position(it.text("epoch") ?: "", 0))
    }

    /** One page of the sessions, newest first. `after` is the `lastId` of the page before. */
    @JvmOverloads
    fun page(limit: Int = 100, after: String? = null): CompletableFuture<Page> = paged("session.list", emptyMap(), limit, after)

    /** Sessions in which every word of `q` stands. A page may have more behind it and yet nothing in it: each looks at so many. */
    @JvmOverloads
    fun search(q: String, limit: Int = 20, after: String? = null): CompletableFuture<Page> = paged("session.search", mapOf("q" to q), limit, after)

    private fun paged(type: String, fields: Fields, limit: Int, after: String?): CompletableFuture<Page> {
        val from = if (after == null) emptyMap() else mapOf("after" to after)
        return command(type, fields + from + ("limit" to limit)).thenApply {
            Page(it.objects("data").map { SessionInfo(it) }, it["has_more"] == true, it.text("last_id"))
        }
    }

    /** The newest sessions, page after page, at most `max` of them. */
    @JvmOverloads
    fun list(max: Int = 10_000, pageSize: Int = 100): CompletableFuture<List<SessionInfo>> = listFrom(ArrayList(), max, pageSize, null)

    private fun listFrom(had: ArrayList<SessionInfo>, max: Int, pageSize: Int, after: String?): CompletableFuture<List<SessionInfo>> =
        page(pageSize, after).thenCompose { page ->
            had.addAll(page.data)
            if (page.hasMore && page.lastId != null && had.size < max) listFrom(had, max, pageSize, page.lastId)
            else CompletableFuture.completedFuture<List<SessionInfo>>(had.take(max))
        }

    /** The handle of a session; the same one each time. Reading begins with its `open()`. */
    fun session(id: String): Session = lock.withLock {
        checkOpen()
        sessions.getOrPut(id) { Session(id, this) }
    }

    // -- listening

    fun onStatus(listener: Consumer<Status>): Registration = listening(statusListeners, listener)

    /** What has no caller to throw at: errors about the connection, the storage, or a command of an earlier run. */
    fun onError(listener: Consumer<SessileException>): Registration = listening(errorListeners, listener)

    /** The log of a session was lost or rewritten, and its view begun anew: what was shown may never have been. */
    fun onReset(listener: Consumer<Session>): Registration = listening(resetListeners, listener)

    private fun <T> listening(listeners: ArrayList<Consumer<T>>, listener: Consumer<T>): Registration = lock.withLock {
        val entry = Consumer<T> { listener.accept(it) } // the same one may listen twice
        listeners.add(entry)
        Registration { lock.withLock { listeners.remove(entry) } }
    }

    private fun <T> tell(listeners: List<Consumer<T>>, what: T) {
        for (listener in ArrayList(listeners)) threads.callbacks.execute { listener.accept(what) }
    }

    private fun complain(error: SessileException) = lock.withLock {
        if (errorListeners.isEmpty()) Logger.getLogger("sessile").log(Level.WARNING, "{0}: {1}", arrayOf(error.code, error.message))
        tell(errorListeners, error)
    }

    // -- inside: all of it under the lock

    internal fun now(): Long = threads.scheduler.now()

    /** Where the client has stopped, reading begins when it is connected again; who waits is told. */
    internal fun follow(session: String, position: Position?) {
        if (whyStopped() == null) wake()
        drive { core.follow(it, session, position) }
    }

    internal fun unfollow(session: String) = drive { core.unfollow(it, session) }

    internal fun resetOf(session: Session, reason: String?) {
        Logger.getLogger("sessile").log(Level.INFO, "{0} was begun anew: {1}", arrayOf(session.id, reason))
        tell(resetListeners, session)
    }

    /** Waits until something has changed. */
    internal fun await() {
        try {
            changed.await()
        } catch (error: InterruptedException) {
            throw Sessile.interrupted(error)
        }
    }

    /** Futures are completed where their dependents may wait, and never under the lock. */
    internal fun <T> complete(future: CompletableFuture<T>, value: T?, error: Throwable?) = threads.workers.execute {
        if (error == null) future.complete(value) else future.completeExceptionally(error)
    }

    /** Why no command can be sent any more. */
    internal fun whyStopped(): SessileException? {
        if (isClosed) return ClosedException()
        if (statusNow.phase != ClientPhase.STOPPED) return null
        val error = statusNow.error ?: return ClosedException()
        return StoppedException(error.message, statusNow.closeCode, statusNow.httpStatus)
    }

    private fun checkOpen() {
        if (isClosed) throw ClosedException()
    }

    private fun wake() {
        if (isClosed || statusNow.phase == ClientPhase.STOPPED) throw whyStopped()!!
        if (statusNow.phase == ClientPhase.OFFLINE && statusNow.retryAt == null) connect() else restore()
    }

    private inline fun drive(step: (Long) -> Unit) {
        step(now())
        pump()
    }

    private fun pump() {
        if (isPumping) return // a listener called us: the loop below goes on with it
        isPumping = true
        try {
            while (true) {
                val effects = core.drain()
                if (effects.isEmpty() && touched.isEmpty()) break
                for (effect in effects) carryOut(effect)
                val settled = ArrayList(touched)
                touched.clear()
                for (session in settled) session.settle()
            }
        } finally {
            isPumping = false
        }
        schedule()
        storeOutbox()
    }

    private fun carryOut(effect: Effect) {
        when (effect.kind) {
            DO_CONNECT -> dial()
            DO_SEND -> {
                val body = Codec.body(effect.frames!!)
                socket?.send(if (options.encoding == Encoding.JSON) Json.write(body) else MsgPack.write(body))
            }
            DO_CLOSE -> hangUp(effect.code, effect.id)
            DO_STATUS -> {
                statusNow = effect.status!!
                if (statusNow.phase == ClientPhase.STOPPED) touched.addAll(sessions.values) // who waits is told
                tell(statusListeners, statusNow)
            }
            DO_ANSWERED -> {
                val error = effect.error?.let { fromWire(it, false) } ?: if (effect.frame.isEmpty()) whyStopped() ?: ClosedException() else null
                val entry = answered(effect.id)
                if (entry != null) complete(entry.future, effect.frame, error) else if (effect.error != null) complain(error!!)
            }
            DO_EXPIRED -> {
                val entry = answered(effect.id)
                val error = SessileException("expired", "${effect.frame["type"]} was not answered in 24 h; whether it took effect is unknown.")
                if (entry != null) complete(entry.future, null, error) else complain(error)
            }
            DO_COMPLAINT -> complain(CommandException(effect.error!!))
            else -> sessions[effect.id]?.let {
                it.take(effect)
                touched.add(it)
            }
        }
    }

    private fun answered(id: String): Waiting? = waiting.remove(id)?.also { it.timer?.close() }

    private fun schedule() {
        val due = core.deadline()
        if (due == timerAt) return
        timer?.close()
        timer = null
        timerAt = due
        if (due == null) return
        timer = threads.scheduler.schedule(maxOf(0, due - now())) {
            lock.withLock {
                timerAt = null
                drive { core.tick(it) }
            }
        }
    }

    // -- the socket

    private fun dial() {
        val number = ++dialled
        val auth = options.auth ?: return openSocket(number, null)
        threads.workers.execute {
            val token = try {
                Result.success(auth.token())
            } catch (error: Exception) {
                Result.failure(error)
            }
            lock.withLock {
                if (number == dialled) {
                    token.onSuccess { openSocket(number, it) }.onFailure {
                        complain(SessileException("auth", "The key could not be had: $it", true, it))
                        drive { now -> core.closed(now, 1006, "no key") }
                    }
                }
            }
        }
    }

    private fun openSocket(number: Int, token: String?) {
        try {
            socket = transport.open(url, options.headers, options.encoding.subprotocol, SocketEvents(number, token))
        } catch (error: Exception) {
            complain(SessileException("transport", "The connection could not be begun: $error", true, error))
            drive { core.closed(it, 1006, "no transport") }
        }
    }

    private inner class SocketEvents(private val number: Int, private val token: String?) : SocketListener {
        private fun heard(isEnd: Boolean, step: (Long) -> Unit) = lock.withLock {
            if (number == dialled) {
                if (isEnd) {
                    socket = null
                    dialled++
                }
                drive(step)
            }
        }

        override fun opened() = heard(false) { core.opened(it, token) }

        override fun message(message: Any) = heard(false) { received(it, message) }

        override fun closed(code: Int, reason: String) = heard(true) { core.closed(it, code, reason) }

        override fun refused(httpStatus: Int, retryAfterMs: Long) = heard(true) { core.refused(it, httpStatus, retryAfterMs) }
    }

    private fun received(now: Long, message: Any) {
        try {
            if ((message is String) != (options.encoding == Encoding.JSON)) throw DecodeException("a message of the wrong kind", 1003)
            val (frames, bytes) = if (message is String) Codec.text(message) else Codec.binary(message as ByteArray)
            core.received(now, frames, bytes)
        } catch (error: DecodeException) {
            core.garbled(error.message ?: "", error.closeCode)
        }
    }

    private fun hangUp(code: Int, reason: String) {
        dialled++ // whatever the old socket says from now on is not heard
        socket?.close(code, reason.take(40))
        socket = null
    }

    // -- the outbox

    private fun storeOutbox() {
        if (!isOutboxRead || isClosed) return
        val kept = core.unanswered().filter { !isFleeting(it["type"]) }
        val ids = kept.joinToString { it.text("id")!! }
        if (ids == keptIds) return
        keptIds = ids
        store.store(OUTBOX, if (kept.isEmpty()) null else Json.write(kept))
    }

    /** Asking again costs nothing, so these are not kept over a restart of the program. */
    private fun isFleeting(type: Any?): Boolean = type == "session.get" || type == "session.list" || type == "session.search" || type == "session.warm"

    private fun restoreOutbox(text: String) {
        val frames = try {
            (Json.read(text) as? List<*>)?.map { fields(it)?.takeIf { frame -> frame.text("id") != null && frame.text("type") != null } }
        } catch (_: DecodeException) {
            null
        }
        if (frames == null || null in frames) complain(SessileException("storage", "The stored outbox is damaged."))
        else core.restore(frames.filterNotNull())
    }

    class Builder internal constructor(internal val url: String) {
        internal var auth: TokenSource? = null
        internal var encoding = Encoding.JSON
        internal var device: String? = null
        internal var isSlowLink = false
        internal var storage: Storage? = null
        internal var storagePrefix = "sessile"
        internal var unansweredMax = 256
        internal var headers: Map<String, String> = emptyMap()
        internal var callbacks: Executor? = null
        internal var chosenTransport: Transport? = null
                internal var random: () -> Double = SecureRandom().let { { it.nextDouble() } }

        /** The key, or what has a fresh one for every connection. */
        fun auth(source: TokenSource) = apply { auth = source }

        fun auth(key: String) = auth(TokenSource { key })

        /** `MSGPACK` sends the same frames smaller. */
        fun encoding(value: Encoding) = apply { encoding = value }

        /** Names this device to the server. */
        fun device(name: String) = apply { device = name }

        /** Bytes are dear here: text comes up to 200 ms later, in fewer frames. */
        fun slowLink(value: Boolean) = apply { isSlowLink = value }

        /** Keeps positions, views and unanswered commands. One client at a time may have it. Without one, memory must do. */
        fun storage(value: Storage) = apply { storage = value }

        /** What the storage's keys begin with. */
        fun storagePrefix(value: String) = apply { storagePrefix = value }

        /** How many commands may wait for an answer at once. */
        fun unansweredMax(value: Int) = apply { unansweredMax = value.also { require(it > 0) { "unansweredMax must be above 0" } } }

        /** Headers of the handshake, as `X-Sessile-User`. */
        fun headers(value: Map<String, String>) = apply { headers = HashMap(value) }

        /** Where listeners are called: on Android `context.mainExecutor`. Without one, on a thread of the client. */
        fun callbacks(value: Executor) = apply { callbacks = value }

        fun transport(value: Transport) = apply { chosenTransport = value }

        fun build() = SessileClient(this, realThreads(callbacks))
    }
}
