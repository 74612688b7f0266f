package sessile

import java.util.concurrent.CompletableFuture
import java.util.function.Consumer
import kotlin.concurrent.withLock

/**
 * How reading stands. `DETACHED`: nobody reads. `ATTACHING`: the server has not said yet where it begins. `REPLAYING`: catching up.
 * `LIVE`: everything that happens arrives. `GONE`: unknown, forbidden or deleted while away. `DELETED`: its last event came.
 */
enum class SessionPhase { DETACHED, ATTACHING, REPLAYING, LIVE, GONE, DELETED }

/** How soon after a change it is stored. */
private const val SAVE_AFTER_MS = 1_000L

/** Larger views are not stored: a snapshot is cheaper than that much writing. In characters of JSON. */
private const val SAVED_MAX = 2_000_000

/** Characters written a millisecond at most while a session changes: a long one is stored less often. */
private const val SAVED_PER_MS = 100
private const val WARM_EVERY_MS = 20_000L

/** What was said: the item that holds it, and the answer to it, if one was asked for. */
class Sent internal constructor(val itemId: String, val offset: Long, val answer: Answer?)

/**
 * One conversation: its view kept up to date, and its commands.
 *
 * It is read while it is open; `open` and `close` count, so that several parts of a program may share one handle. Snapshot, replay and
 * reset end in the same place, the view. The handle survives reconnects by itself. Every method may be called from any thread and
 * none waits, unless it says so; a future is completed exceptionally with a `SessileException`.
 *
 * A position is stored with its view, and only after what led to it was shown: when listeners have returned, readers have come for what
 * follows, and a screen (`screen`) has said so. A program that is killed in between reads that once more.
 */
class Session internal constructor(val id: String, internal val client: SessileClient) {
    val view = View()

    private var phaseNow = SessionPhase.DETACHED
    private var errorNow: SessileException? = null
    private var positionNow: Position? = null
    private var readers = 0
    private var openings = 0
    private var warmedAt: Long? = null
    private var isTold = true
    private val changes = LinkedHashSet<ChangeListener>()
    private val watchers = LinkedHashSet<Watcher>()
    private val waiters = ArrayList<() -> Boolean>()

    private var saveTimer: Registration? = null
    private var savedLength = 0
    private var captured: Pair<Long, String>? = null

    val phase: SessionPhase get() = client.lock.withLock { phaseNow }

    /** Why it is gone. */
    val error: SessileException? get() = client.lock.withLock { errorNow }

    /** The last event that the view has. */
    val position: Position? get() = client.lock.withLock { positionNow }

    // -- reading

    /** Read on from where this handle or the storage stands; otherwise from `from`, or from a snapshot. */
    @JvmOverloads
    fun open(from: Position? = null): Session = client.lock.withLock {
        if (readers++ > 0) return this
        phaseNow = SessionPhase.ATTACHING
        errorNow = null
        val opening = ++openings
        val known = positionNow
        if (known != null) {
            client.follow(id, known)
            return this
        }
        client.store.load(key()) { text ->
            client.lock.withLock {
                if (readers > 0 && opening == openings) { // else closed again while the storage was read
                    if (text != null) restore(text)
                    client.follow(id, positionNow ?: from)
                }
            }
        }
        this
    }

    private fun restore(text: String) {
        val saved = try {
            fields(Json.read(text))
        } catch (_: DecodeException) {
            null
        }
        val state = saved?.obj("state")
        val epoch = saved?.text("epoch")
        val offset = saved?.get("offset") as? Long
        // Anything that is not what `save` writes counts as nothing: a snapshot serves as well.
        if (state == null || epoch == null || offset == null || state["items"] !is List<*> || state["open"] !is List<*>) return
        view.load(state)
        positionNow = Position(epoch, offset)
    }

    /** One reader less; after the last one the server is told to send no more. */
    fun close() = client.lock.withLock {
        if (readers == 0 || --readers > 0) return@withLock
        save()
        if (phaseNow != SessionPhase.GONE && phaseNow != SessionPhase.DELETED) phaseNow = SessionPhase.DETACHED
        client.unfollow(id)
        settle()
    }

    /** Completes when everything that had happened is in the view; exceptionally when the session is gone. Opens it meanwhile. */
    fun live(): CompletableFuture<Session> {
        open()
        val live = until { if (phaseNow == SessionPhase.LIVE || phaseNow == SessionPhase.DELETED) this else null }
        return live.whenComplete { _, _ -> close() }
    }

    /**
     * Every event applied from now on, in order, each once, to be read by a thread that waits. What a snapshot stands for is not among
     * them. Close it when it is no longer read.
     */
    fun events(): EventReader = client.lock.withLock { EventReader(this, client).also { open() } }

    /** Tells when the view or the phase changed: once for everything that came together. Does not open the session. */
    fun onChange(listener: Consumer<Session>): Registration = client.lock.withLock {
        val entry = ChangeListener(listener, view.version)
        changes.add(entry)
        watchers.add(entry.watcher)
        Registration {
            client.lock.withLock {
                changes.remove(entry)
                unwatch(entry.watcher)
            }
        }
    }

    /** For who draws by themselves: until `Screen.shown` says so, nothing that came is stored as read. */
    fun screen(): Screen = client.lock.withLock { Screen(this, view.version) }

    /** The stream of one answer, from its beginning, whenever it is asked for. */
    fun answer(responseId: String): Answer = Answer(this, client, responseId, 0)

    // -- speaking

    /** Say something. `options`: `parent_id`, `respond`, `queue`, `model` and sampling (protocol, 5.2 and 5.5), by their names there. */
    @JvmOverloads
    fun send(content: Any, options: Map<String, Any?> = emptyMap()): CompletableFuture<Sent> {
        client.lock.withLock { warmedAt = null }
        return command("message.create", options + ("content" to content)).thenApply { sent(it) }
    }

    /** Say it differently: a sibling of `itemId`, on a new branch. */
    fun edit(itemId: String, content: Any, options: Map<String, Any?>): CompletableFuture<Sent> =
        command("message.edit", options + mapOf("item_id" to itemId, "content" to content)).thenApply { sent(it) }

    /** Another answer to `parent_id`: a sibling of those that are there. */
    fun regenerate(options: Map<String, Any?>): CompletableFuture<Answer> =
        command("response.create", options).thenApply { Answer(this, client, it.text("response_id") ?: "", it.number("offset") ?: 0) }

    /**
     * Stop an answer; its text so far stays. False when it had ended already, unless its turn waits for tool outputs: then the turn
     * ends, with an error for each that is missing, and it is true.
     */
    fun cancel(responseId: String): CompletableFuture<Boolean> =
        command("response.cancel", mapOf("response_id" to responseId)).thenApply { it["noop"] != true }

    /**
     * Say something while an answer is written: it ends with what it says so far, and the one that is returned goes on behind these
     * words. One that calls tools is let end: then the words are answered together with the tools' outputs.
     */
    fun steer(responseId: String, content: Any): CompletableFuture<Sent> =
        command("response.steer", mapOf("response_id" to responseId, "content" to content)).thenApply { sent(it) }

    /** What a call of the program's own tool gave. */
    fun toolOutput(callId: String, output: String, isError: Boolean): CompletableFuture<Sent> {
        val flag = if (isError) mapOf("is_error" to true) else emptyMap()
        return command("tool.output", mapOf("call_id" to callId, "output" to output) + flag).thenApply { sent(it) }
    }

    /** Agree, or do not, that the server carries out a call that waits for that (`View.approvals`). The first device counts. */
    fun approve(callId: String, isApproved: Boolean): CompletableFuture<Map<String, Any?>> =
        command("tool.approve", mapOf("call_id" to callId, "approved" to isApproved))

    /** Ask that a person looks again at what was withheld of an answer. The id of the case; `View.reviews` tells what came of it. */
    fun appeal(responseId: String, note: String): CompletableFuture<String> = appealed("response_id", responseId, note)

    /** The same about a message that was refused: `content` says it again, for nothing of it is stored. */
    fun appealMessage(content: String, note: String): CompletableFuture<String> = appealed("content", content, note)

    private fun appealed(key: String, about: String, note: String): CompletableFuture<String> {
        val noted = if (note.isEmpty()) emptyMap() else mapOf("note" to note)
        return command("review.appeal", mapOf(key to about) + noted).thenApply { it.text("review_id") ?: "" }
    }

    /** What its user thinks of an answer that has ended, `up` or `down`, and why; null takes back what they thought before. */
    fun feedback(responseId: String, rating: String?, reason: String): CompletableFuture<Map<String, Any?>> {
        val why = if (reason.isEmpty()) emptyMap() else mapOf("reason" to reason)
        return command("feedback.set", mapOf("response_id" to responseId, "rating" to rating) + why)
    }

    /** `title`, `metadata` and so on: what is absent stays, null clears. */
    fun update(fields: Map<String, Any?>): CompletableFuture<Map<String, Any?>> = command("session.update", fields)

    fun delete(): CompletableFuture<Map<String, Any?>> = command("session.delete", emptyMap())

    fun get(): CompletableFuture<Map<String, Any?>> = command("session.get", emptyMap())

    /** Any other command to this session by its name, as `session.compact` or `item.pin`. */
    fun command(type: String, fields: Map<String, Any?>): CompletableFuture<Map<String, Any?>> =
        client.command(type, fields + ("session" to id))

    /** The user has begun to type. Call it on every key: it is sent at most every 20 s, and without a connection soon forgotten. */
    fun warm() {
        client.lock.withLock {
            val now = client.now()
            if (warmedAt.let { it != null && now - it < WARM_EVERY_MS }) return
            warmedAt = now
        }
        client.command("session.warm", mapOf("session" to id), WARM_EVERY_MS) // a hint: its failure changes nothing
    }

    private fun sent(ok: Fields): Sent {
        val offset = ok.number("offset") ?: 0
        return Sent(ok.text("item_id") ?: "", offset, ok.text("response_id")?.let { Answer(this, client, it, offset) })
    }

    // -- from the client, under its lock

    internal fun take(effect: Effect) {
        when (effect.kind) {
            DO_ATTACHING -> phaseNow = SessionPhase.ATTACHING
            DO_REPLAY -> {
                if (effect.position?.offset == 0L) view.load(mapOf("items" to emptyList<Any>(), "open" to emptyList<Any>()))
                positionNow = effect.position
                phaseNow = SessionPhase.REPLAYING
            }
            DO_STATE -> {
                view.load(effect.frame.obj("state")!!)
                positionNow = effect.position
                phaseNow = SessionPhase.REPLAYING
                saveSoon()
                if (effect.frame["mode"] == "reset") client.resetOf(this, effect.frame.text("reason"))
            }
            DO_CAUGHT_UP -> phaseNow = SessionPhase.LIVE
            DO_EVENT -> {
                positionNow = effect.position
                event(effect.frame)
            }
            DO_GONE -> {
                phaseNow = SessionPhase.GONE
                positionNow = null
                forget()
                val error = effect.error ?: ErrorObject(mapOf("code" to "session_not_found", "message" to "The session is gone."))
                ended(fromWire(error, true))
            }
        }
    }

    private fun event(frame: Fields) {
        view.apply(frame.obj("event")!!, frame.number("at"))
        if (view.isDeleted) {
            phaseNow = SessionPhase.DELETED
            forget()
        } else {
            saveSoon()
        }
        for (each in watchers) each.took?.invoke(frame, view.version)
    }

    /** Everything that came together is applied. */
    internal fun settle() {
        waiters.removeAll { it() }
        client.changed.signalAll()
        if (changes.isNotEmpty() && isTold) {
            isTold = false
            client.threads.callbacks.execute(::tell)
        }
    }

    private fun tell() {
        val (listeners, version) = client.lock.withLock {
            isTold = true
            Pair(changes.toList(), view.version)
        }
        for (each in listeners) {
            try {
                each.listener.accept(this)
            } catch (error: Throwable) {
                uncaught(error)
            }
        }
        client.lock.withLock {
            for (each in listeners) each.seen = version
            shown()
        }
    }

    internal fun ended(error: SessileException) {
        errorNow = error
        if (phaseNow != SessionPhase.GONE && phaseNow != SessionPhase.DELETED) phaseNow = SessionPhase.DETACHED
        readers = 0
        stopSaving()
        settle()
    }

    /** Completes with the first value that `look` has, looked for under the lock; exceptionally when the session ends before. */
    internal fun <T : Any> until(look: () -> T?): CompletableFuture<T> {
        val future = CompletableFuture<T>()
        val done = {
            val value = if (future.isDone) null else look()
            val error = errorNow ?: client.whyStopped()
            if (value != null) client.complete(future, value, null)
            else if (error != null) client.complete(future, null, error)
            future.isDone || value != null || error != null
        }
        client.lock.withLock { if (!done()) waiters.add(done) }
        return future
    }

    // -- storing

    private fun key() = "session:$id"

    internal fun watch(watcher: Watcher) {
        watchers.add(watcher)
    }

    internal fun unwatch(watcher: Watcher) {
        watchers.remove(watcher)
        shown()
    }

    /** What was taken for storing is stored once all who show this session have shown it. */
    internal fun shown() {
        val (version, text) = captured ?: return
        if (watchers.any { it.seen() < version }) return
        captured = null
        client.store.store(key(), if (text.length > SAVED_MAX) null else text)
    }

    /** Take position and view together for storing, if there is anything new. */
    internal fun save() {
        if (saveTimer == null) return
        stopSaving()
        val position = positionNow ?: return
        val saved = mapOf("epoch" to position.epoch, "offset" to position.offset, "state" to view.state())
        val text = Json.write(saved)
        savedLength = text.length
        captured = Pair(view.version, text)
        shown()
    }

    private fun saveSoon() {
        if (!client.store.isKept || saveTimer != null) return
        val afterMs = maxOf(SAVE_AFTER_MS, savedLength / SAVED_PER_MS.toLong())
        saveTimer = client.threads.scheduler.schedule(afterMs) { client.lock.withLock(::save) }
    }

    private fun stopSaving() {
        saveTimer?.close()
        saveTimer = null
    }

    private fun forget() {
        stopSaving()
        captured = null
        client.store.store(key(), null)
    }
}

/** Somebody who shows what comes, under the client's lock. `seen`: the newest version of the view of which they have shown all. */
internal class Watcher(val seen: () -> Long, val took: ((Fields, Long) -> Unit)? = null)

private class ChangeListener(val listener: Consumer<Session>, var seen: Long) {
    val watcher = Watcher({ seen })
}
