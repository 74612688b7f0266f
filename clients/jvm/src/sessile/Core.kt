package sessile

import kotlin.math.ceil
import kotlin.math.max

/** How the connection stands. */
enum class ClientPhase { OFFLINE, CONNECTING, READY, SUSPENDED, STOPPED }

/** A place in a session's log. `offset` counts from 1; 0 is before the first event. An empty epoch with offset 0: from the start. */
class Position(val epoch: String, val offset: Long) {
    override fun equals(other: Any?): Boolean = other is Position && other.epoch == epoch && other.offset == offset

    override fun hashCode(): Int = epoch.hashCode() * 31 + offset.hashCode()

    override fun toString(): String = "$epoch:$offset"
}

/** `closeCode`, `httpStatus` and `error`: why it stopped, or what the server said before the last close. */
class Status internal constructor(
    val phase: ClientPhase,
    /** Attempts since a connection was last of use. */
    val attempt: Int,
    /** When the next attempt is due (while offline), in the clock's ms. */
    val retryAt: Long?,
    /** The server announced that it will close this connection. */
    val isDraining: Boolean,
    val closeCode: Int?,
    val httpStatus: Int?,
    val error: ErrorObject?,
)

/** What the core wants done, in this order. The comments say which fields count. */
internal class Effect(
    val kind: Int,
    /** A session, or the id of a command. */
    val id: String = "",
    /** A frame as it came, or a command that expired. */
    val frame: Fields = emptyMap(),
    val error: ErrorObject? = null,
    val position: Position? = null,
    val code: Int = 0,
    val frames: MutableList<Fields>? = null,
    val status: Status? = null,
)

internal const val DO_CONNECT = 0

/** `frames` */
internal const val DO_SEND = 1

/** `code`, `id`: the reason */
internal const val DO_CLOSE = 2

/** `status` */
internal const val DO_STATUS = 3

/** `id`; `frame`: its `ok`, or `error`, or neither: it was dropped */
internal const val DO_ANSWERED = 4

/** `id`, `frame` */
internal const val DO_EXPIRED = 5

/** `error` */
internal const val DO_COMPLAINT = 6

/** From here on of a session, `id` */
internal const val DO_ATTACHING = 7

/** `position`: where the reader stands */
internal const val DO_REPLAY = 8

/** `frame`: a snapshot or a reset, up to `position` */
internal const val DO_STATE = 9

/** `frame`, at `position` */
internal const val DO_EVENT = 10
internal const val DO_CAUGHT_UP = 11

/** `error`, if the server said one */
internal const val DO_GONE = 12

private const val DIAL_LIMIT_MS = 10_000L
private const val READY_LIMIT_MS = 10_000L

/** What a connection gets to prove that it lives, after we ourselves slept. */
private const val PROBE_MS = 5_000L

/** A timer that comes this late says that the device slept, not that the peer was silent. */
private const val TIMER_LATE_MS = 5_000L
private const val ACK_EVERY_MS = 1_000L
private const val COMMAND_TRIES_MAX = 5

/** For so long a server knows a repeat as one (protocol, 5.1). */
private const val COMMAND_KEPT_MS = 24 * 3600 * 1000L

/** Sent and unanswered at a time. A server refuses more than 32, what we subscribe to among them. */
private const val IN_FLIGHT_MAX = 24

/** Frames in one message (protocol, 2.1). */
private const val FRAMES_MAX = 256

/** How long a server may stay after the time that its `goaway` named. */
private const val GOAWAY_GRACE_MS = 5_000L
private const val ASK_AGAIN_MS = 1_000L

/** After this many gaps in a row a snapshot is asked for; after one more the connection is given up. */
private const val GAPS_MAX = 3

/**
 * The client's side of the protocol, without I/O: which frames to send, which events to apply, when to come back.
 *
 * The shell (SessileClient) calls a method for what happened, then carries out `drain()` in order and calls `tick` when `deadline()`
 * has come. Time, ids and chance are arguments; nothing here waits, dials or stores, and one thread at a time is in it.
 *
 * Invariants
 *  - An event is handed on only if it begins right after the last one handed on of its session: what is older is dropped, a gap or
 *    a foreign epoch asks again from where we stand.
 *  - A command keeps its id until it is answered; after a reconnect every unanswered one is repeated, in order, unless it is so old
 *    that the server may not know it again.
 *  - At most one socket is meant to be open; whoever asks for Connect or Close has already forgotten the old one.
 *
 * It does NOT know what events mean (View) nor what commands are for.
 */
internal class Core(
    private val ids: Ulids,
    private val random: () -> Double,
    private val device: String? = null,
    private val rollupMs: Int = 0,
) {
    private class Subscription(var position: Position?) {
        /** Events count only after the server has said where it begins. */
        var isAnswered = false
        var askId: String? = null
        var askAgainAt: Long? = null

        /** In a row, since an event was applied. */
        var gaps = 0

        fun wanted(): Fields {
            val position = position
            if (position == null || gaps >= GAPS_MAX) return emptyMap()
            if (position.epoch.isEmpty()) return mapOf("offset" to position.offset)
            return mapOf("epoch" to position.epoch, "offset" to position.offset)
        }
    }

    private class Pending(val frame: Fields) {
        val id = frame["id"] as String
        var tries = 0
        var retryAt: Long? = null

        /** Sent on the present connection. */
        var isInFlight = false
    }

    private var phase = ClientPhase.OFFLINE
    private var attempt = 0
    private var retryAt: Long? = null
    private var connectBy: Long? = null
    private var drainBy: Long? = null
    private var probeBy: Long? = null
    private var notBefore = 0L
    private var lastCloseCode: Int? = null
    private var lastStatus: Int? = null
    private var lastError: ErrorObject? = null

    private var heardAt = 0L
    private var isPinged = false
    private var heartbeatMs = 25_000L
    private var windowEvents = 1024L
    private var windowBytes = 262_144L

    private var unackedEvents = 0L
    private var unackedBytes = 0L
    private var ackAt: Long? = null
    private val seen = LinkedHashMap<String, Long>()

    private val subscriptions = LinkedHashMap<String, Subscription>()
    private val asks = HashMap<String, String>()

    /** Sessions that this connection's `hello` named. */
    private val greeted = LinkedHashSet<String>()
    private val pending = LinkedHashMap<String, Pending>()
    private var effects = ArrayList<Effect>()

    // -- what the shell reads

    fun drain(): List<Effect> = effects.also { effects = ArrayList() }

    fun status() = Status(
        phase, attempt, if (phase == ClientPhase.OFFLINE) retryAt else null, drainBy != null, lastCloseCode, lastStatus, lastError,
    )

    /** Unanswered commands, oldest first: what must survive if the program may be killed. */
    fun unanswered(): List<Fields> = pending.values.map { it.frame }

    /** When `tick` is due next, or null when nothing is waited for. */
    fun deadline(): Long? {
        if (phase == ClientPhase.OFFLINE) return retryAt
        if (phase == ClientPhase.CONNECTING) return connectBy
        if (phase != ClientPhase.READY) return null
        val due = arrayListOf(heardAt + if (isPinged) silenceMs() else heartbeatMs, probeBy, ackAt, drainBy)
        for (each in pending.values) due.add(each.retryAt)
        for (each in subscriptions.values) due.add(each.askAgainAt)
        return due.minOf { it ?: Long.MAX_VALUE }
    }

    // -- what the owner wants

    /** Connect now; a second call while on the way changes nothing. Also ends a suspension or a stop. */
    fun start(now: Long) {
        if (phase == ClientPhase.CONNECTING || phase == ClientPhase.READY) return
        attempt = 0
        notBefore = 0
        forgetTrouble()
        dial(now)
    }

    /** The app goes to the background: no socket, no timers. Commands are kept. */
    fun suspend() {
        if (phase == ClientPhase.SUSPENDED || phase == ClientPhase.STOPPED) return
        hangUp(1000, "suspended")
        enter(ClientPhase.SUSPENDED)
    }

    /** Back in the foreground, or the network changed: connect at once, or ask a socket that looks alive for a sign. */
    fun resume(now: Long) {
        if (phase == ClientPhase.READY) probe(now)
        else if (phase == ClientPhase.SUSPENDED || phase == ClientPhase.OFFLINE) start(now)
    }

    /** For good. Unanswered commands are given up; they may have taken effect. */
    fun stop() {
        if (phase == ClientPhase.STOPPED) return
        hangUp(1000, "closed by its owner")
        enter(ClientPhase.STOPPED)
        dropAll()
    }

    /** `body` has `type` and no `id`. */
    fun command(now: Long, body: Fields): String {
        val id = ids.next(now)
        pending[id] = Pending(body + ("id" to id))
        transmit(now)
        return id
    }

    /** Commands of an earlier run: they go before those of this one. */
    fun restore(frames: List<Fields>) {
        val made = ArrayList(pending.values)
        pending.clear()
        for (each in frames.map { Pending(it) } + made) pending[each.id] = each
    }

    /** The owner no longer waits for this one. It may have taken effect. */
    fun forget(id: String) {
        pending.remove(id)
    }

    /** Read a session from `position` on; null asks for a snapshot. */
    fun follow(now: Long, session: String, position: Position?) {
        subscriptions[session] = Subscription(position)
        effects.add(Effect(DO_ATTACHING, session))
        if (phase == ClientPhase.READY) ask(now, session)
    }

    fun unfollow(now: Long, session: String) {
        val subscription = subscriptions.remove(session) ?: return
        subscription.askId?.let { asks.remove(it) }
        if (phase == ClientPhase.READY) unsubscribe(now, session)
    }

    // -- what the socket did

    fun opened(now: Long, auth: String?) {
        if (phase != ClientPhase.CONNECTING) return
        connectBy = now + READY_LIMIT_MS
        val resume = subscriptions.map { (session, subscription) -> mapOf<String, Any?>("session" to session) + subscription.wanted() }
        greeted.addAll(subscriptions.keys)
        val hello = linkedMapOf<String, Any?>("type" to "hello")
        if (auth != null) hello["auth"] = auth
        if (device != null) hello["device"] = device
        if (rollupMs > 0) hello["rollup_ms"] = rollupMs.toLong()
        if (resume.isNotEmpty()) hello["resume"] = resume
        send(hello)
    }

    fun closed(now: Long, code: Int, reason: String) {
        if (phase != ClientPhase.CONNECTING && phase != ClientPhase.READY) return
        lastCloseCode = code
        forgetConnection()
        if (isFinalClose(code)) halt(lastError?.message ?: reason.ifEmpty { "The server closed with $code." })
        else backOff(now)
    }

    /** The handshake was answered, but not with a WebSocket. */
    fun refused(now: Long, httpStatus: Int, retryAfterMs: Long) {
        if (phase != ClientPhase.CONNECTING) return
        lastStatus = httpStatus
        forgetConnection()
        notBefore = now + retryAfterMs
        if (isFinalStatus(httpStatus)) halt("The server refused the connection with HTTP $httpStatus.") else backOff(now)
    }

    /** Something came that is not this protocol. Nothing after it can be trusted, and another attempt would meet the same. */
    fun garbled(message: String, closeCode: Int) {
        if (phase != ClientPhase.CONNECTING && phase != ClientPhase.READY) return
        lastCloseCode = closeCode
        hangUp(closeCode, message)
        halt("The server does not speak this protocol: $message.")
    }

    fun received(now: Long, frames: List<Fields>, bytes: Int) {
        heardAt = now
        isPinged = false
        probeBy = null
        val count = max(1, frames.size)
        val share = (bytes + count - 1) / count
        for (frame in frames) frame(now, frame, share)
        if (unackedEvents * 2 >= windowEvents || unackedBytes * 2 >= windowBytes) acknowledge()
    }

    // -- time

    fun tick(now: Long) {
        val due = deadline()
        if (due == null || now < due) return
        if (phase == ClientPhase.OFFLINE) dial(now)
        else if (phase == ClientPhase.CONNECTING) fail(now, 4412, "no answer")
        else tickReady(now, now - due > TIMER_LATE_MS)
    }

    private fun tickReady(now: Long, hasSlept: Boolean) {
        if (isDue(probeBy, now)) return fail(now, 4412, "no sign of life")
        if (isDue(drainBy, now)) return fail(now, 1001, "asked to go away")
        if (now >= heardAt + heartbeatMs) {
            if (hasSlept) {
                heardAt = now // silence is counted from waking
                probe(now)
            } else if (now >= heardAt + silenceMs()) {
                return fail(now, 4412, "silence")
            } else if (!isPinged) {
                isPinged = true
                send(mapOf("type" to "ping"))
            }
        }
        if (isDue(ackAt, now)) acknowledge()
        transmit(now)
        for ((session, subscription) in ArrayList(subscriptions.entries)) if (isDue(subscription.askAgainAt, now)) ask(now, session)
    }

    // -- frames

    private fun frame(now: Long, frame: Fields, bytes: Int) {
        when (frame["type"]) {
            "ready" -> ready(now, frame)
            "event" -> {
                count(now, frame.text("session")!!, frame.number("offset")!!, bytes)
                event(now, frame)
            }
            "resumed" -> {
                if (frame["mode"] == "snapshot" || frame["mode"] == "reset") {
                    count(now, frame.text("session")!!, frame.number("at")!!, bytes)
                }
                resumed(now, frame)
            }
            "caught_up" -> caughtUp(now, frame)
            "ok" -> {
                attempt = 0
                val id = frame.text("id")!!
                if (pending.remove(id) != null) effects.add(Effect(DO_ANSWERED, id, frame)) else asks.remove(id)
                transmit(now)
            }
            "error" -> errored(now, frame.text("id"), ErrorObject(frame.obj("error")!!))
            "ping" -> send(mapOf("type" to "pong"))
            "goaway" -> {
                val afterMs = frame.number("after_ms") ?: 0
                drainBy = now + afterMs + GOAWAY_GRACE_MS
                announce()
            }
            else -> Unit // a newer server may say more: what is unknown is ignored
        }
    }

    private fun ready(now: Long, frame: Fields) {
        if (phase != ClientPhase.CONNECTING) return
        heartbeatMs = frame.number("heartbeat_ms") ?: 25_000
        windowEvents = frame.number("window_events") ?: 1024
        windowBytes = frame.number("window_bytes") ?: 262_144
        forgetTrouble()
        connectBy = null
        enter(ClientPhase.READY)
        // What began to be followed while the greeting was under way was not in `hello`.
        for ((session, subscription) in ArrayList(subscriptions.entries)) {
            if (subscription.askId == null && session !in greeted) ask(now, session)
        }
        for (session in greeted) if (session !in subscriptions) unsubscribe(now, session)
        transmit(now)
    }

    private fun event(now: Long, frame: Fields) {
        val session = frame.text("session")!!
        val subscription = subscriptions[session] ?: return
        val position = subscription.position
        if (!subscription.isAnswered || position == null) return
        val epoch = frame.text("epoch")!!
        val offset = frame.number("offset")!!
        if (epoch != position.epoch) return gap(now, session, subscription)
        if (offset <= position.offset) return // seen
        if ((frame.number("first_offset") ?: offset) != position.offset + 1) return gap(now, session, subscription)
        attempt = 0
        subscription.gaps = 0
        subscription.position = Position(epoch, offset)
        effects.add(Effect(DO_EVENT, session, frame, position = subscription.position))
        if (frame.obj("event")?.text("type") == "session.deleted") subscriptions.remove(session) // its last offset
    }

    private fun caughtUp(now: Long, frame: Fields) {
        val session = frame.text("session")!!
        val subscription = subscriptions[session] ?: return
        if (!subscription.isAnswered) return
        if (frame.number("offset")!! > (subscription.position?.offset ?: 0)) return gap(now, session, subscription)
        attempt = 0
        effects.add(Effect(DO_CAUGHT_UP, session))
    }

    /** What comes does not continue what we have. Ask again from where we stand, and in the end begin anew. */
    private fun gap(now: Long, session: String, subscription: Subscription) {
        subscription.gaps++
        if (subscription.gaps > GAPS_MAX) fail(now, 1001, "the log cannot be followed") else ask(now, session)
    }

    private fun resumed(now: Long, frame: Fields) {
        val session = frame.text("session")!!
        val subscription = subscriptions[session] ?: return
        if (frame["mode"] == "gone") return gone(now, session, subscription, frame.obj("error")?.let { ErrorObject(it) })
        attempt = 0
        val position = subscription.position
        val epoch = frame.text("epoch")!!
        subscription.isAnswered = true
        if (frame["mode"] == "replay") {
            val offset = position?.offset ?: 0
            val isOtherLog = position != null && position.epoch.isNotEmpty() && position.epoch != epoch
            if (frame.number("from")!! > offset + 1 || isOtherLog) return gap(now, session, subscription)
            subscription.position = Position(epoch, offset)
            effects.add(Effect(DO_REPLAY, session, position = subscription.position))
            return
        }
        val at = frame.number("at")!!
        val isReset = frame["mode"] == "reset"
        if (!isReset && position != null && position.epoch == epoch && at < position.offset) {
            // Older than what we have: the tail up to here is dropped as seen.
            effects.add(Effect(DO_REPLAY, session, position = position))
            return
        }
        subscription.position = Position(epoch, at)
        subscription.gaps = 0
        effects.add(Effect(DO_STATE, session, frame, position = subscription.position))
    }

    private fun gone(now: Long, session: String, subscription: Subscription, error: ErrorObject?) {
        if (error != null && error.isRetryable) {
            subscription.askAgainAt = now + (error.retryAfterMs ?: ASK_AGAIN_MS)
            unanswer(session, subscription)
            return
        }
        subscriptions.remove(session)
        effects.add(Effect(DO_GONE, session, error = error))
    }

    private fun errored(now: Long, id: String?, error: ErrorObject) {
        if (id == null) {
            lastError = error
            error.retryAfterMs?.let { notBefore = now + it }
            effects.add(Effect(DO_COMPLAINT, error = error))
            return
        }
        val session = asks.remove(id)
        val waiting = pending[id]
        if (session != null) {
            val subscription = subscriptions[session]
            if (subscription != null && subscription.askId == id) gone(now, session, subscription, error)
        } else if (waiting != null) {
            val afterMs = error.retryAfterMs
            if (error.isRetryable && afterMs != null && !isBusy(error.code) && waiting.tries < COMMAND_TRIES_MAX) {
                waiting.isInFlight = false
                waiting.retryAt = now + afterMs
            } else {
                pending.remove(id)
                effects.add(Effect(DO_ANSWERED, id, error = error))
            }
        } else {
            return
        }
        transmit(now)
    }

    // -- sending

    private fun send(frame: Fields) {
        val last = effects.lastOrNull()?.frames
        if (last != null && last.size < FRAMES_MAX) last.add(frame)
        else effects.add(Effect(DO_SEND, frames = arrayListOf(frame)))
    }

    /** Sends what may be sent: in order, as many as the server lets stand unanswered, none before its time. */
    private fun transmit(now: Long) {
        if (phase != ClientPhase.READY) return
        var room = IN_FLIGHT_MAX - pending.values.count { it.isInFlight }
        val each = pending.values.iterator()
        while (room > 0 && each.hasNext()) {
            val waiting = each.next()
            if (waiting.isInFlight || waiting.retryAt.let { it != null && now < it }) continue
            val madeAt = ulidMadeAt(waiting.id)
            if (madeAt != null && now - madeAt >= COMMAND_KEPT_MS) {
                each.remove()
                effects.add(Effect(DO_EXPIRED, waiting.id, waiting.frame))
                continue
            }
            room--
            waiting.tries++
            waiting.isInFlight = true
            waiting.retryAt = null
            send(waiting.frame)
        }
    }

    private fun ask(now: Long, session: String) {
        val subscription = subscriptions[session] ?: return
        subscription.askId?.let { asks.remove(it) }
        val id = ids.next(now)
        subscription.askId = id
        subscription.askAgainAt = null
        unanswer(session, subscription)
        asks[id] = session
        send(mapOf("type" to "subscribe", "id" to id, "session" to session) + subscription.wanted())
    }

    private fun unsubscribe(now: Long, session: String) = send(mapOf("type" to "unsubscribe", "id" to ids.next(now), "session" to session))

    private fun unanswer(session: String, subscription: Subscription) {
        if (subscription.isAnswered) effects.add(Effect(DO_ATTACHING, session))
        subscription.isAnswered = false
    }

    /** Everything that came counts, applied or not: an ack frees the window and means nothing else. */
    private fun count(now: Long, session: String, offset: Long, bytes: Int) {
        unackedEvents++
        unackedBytes += bytes
        seen[session] = offset
        if (ackAt == null) ackAt = now + ACK_EVERY_MS
    }

    private fun acknowledge() {
        for ((session, offset) in seen) send(mapOf("type" to "ack", "session" to session, "offset" to offset))
        forgetUnacked()
    }

    private fun probe(now: Long) {
        if (probeBy != null) return
        probeBy = now + PROBE_MS
        send(mapOf("type" to "ping"))
    }

    // -- coming and going

    private fun dial(now: Long) {
        forgetConnection()
        connectBy = now + DIAL_LIMIT_MS
        heardAt = now
        enter(ClientPhase.CONNECTING)
        effects.add(Effect(DO_CONNECT))
    }

    private fun fail(now: Long, code: Int, reason: String) {
        lastCloseCode = code
        hangUp(code, reason)
        backOff(now)
    }

    private fun backOff(now: Long) {
        retryAt = max(now + ceil(backoffMs(attempt, random())).toLong(), notBefore)
        attempt++
        enter(ClientPhase.OFFLINE)
    }

    private fun hangUp(code: Int, reason: String) {
        if (phase == ClientPhase.CONNECTING || phase == ClientPhase.READY) effects.add(Effect(DO_CLOSE, reason, code = code))
        forgetConnection()
    }

    private fun forgetConnection() {
        connectBy = null
        drainBy = null
        probeBy = null
        retryAt = null
        isPinged = false
        greeted.clear()
        asks.clear()
        forgetUnacked()
        for ((session, subscription) in subscriptions) {
            unanswer(session, subscription)
            subscription.askId = null
            subscription.askAgainAt = null
        }
        for (each in pending.values) each.isInFlight = false
    }

    private fun forgetTrouble() {
        lastCloseCode = null
        lastStatus = null
        lastError = null
    }

    private fun halt(message: String) {
        lastError = ErrorObject(lastError?.raw.orEmpty() + mapOf("code" to "stopped", "message" to message))
        enter(ClientPhase.STOPPED)
        dropAll()
    }

    private fun forgetUnacked() {
        unackedEvents = 0
        unackedBytes = 0
        ackAt = null
        seen.clear()
    }

    private fun dropAll() {
        for (id in pending.keys) effects.add(Effect(DO_ANSWERED, id))
        pending.clear()
    }

    private fun enter(to: ClientPhase) {
        phase = to
        announce()
    }

    private fun announce() {
        effects.add(Effect(DO_STATUS, status = status()))
    }

    /** Silence ends a connection after 1.4 heartbeats. */
    private fun silenceMs(): Long = heartbeatMs * 7 / 5

    private fun isDue(at: Long?, now: Long): Boolean = at != null && now >= at
}
