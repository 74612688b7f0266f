package sessile

import java.time.Duration
import java.time.Instant
import java.time.ZonedDateTime
import java.time.format.DateTimeFormatter
import java.time.format.DateTimeParseException
import java.util.concurrent.Executor
import java.util.concurrent.RejectedExecutionException
import java.util.concurrent.ScheduledThreadPoolExecutor
import java.util.concurrent.SynchronousQueue
import java.util.concurrent.ThreadFactory
import java.util.concurrent.ThreadPoolExecutor
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger

/*
 * Small functions that several files need. In one file, because each file with functions of its own is another class in the jar.
 */

internal typealias Fields = Map<String, Any?>

/** As deep as the protocol nests (2.2). */
internal const val DEPTH_MAX = 64
internal const val INTEGER_MAX = (1L shl 53) - 1

internal fun safe(value: Long?, max: Long): Long {
    if (value == null || value > max || value < -max) throw DecodeException("integer beyond 2^53", 1002)
    return value
}

/** Whether the unit at `i` is half of a pair whose other half is missing. */
internal fun isLone(text: String, i: Int): Boolean {
    val unit = text[i]
    if (unit.isHighSurrogate()) return i + 1 >= text.length || !text[i + 1].isLowSurrogate()
    return unit.isLowSurrogate() && (i == 0 || !text[i - 1].isHighSurrogate())
}

internal fun utf8Length(text: String): Int {
    var length = 0
    for (unit in text) length += if (unit < '\u0080') 1 else if (unit < '\u0800' || unit.isSurrogate()) 2 else 3
    return length
}

/**
 * What a program gives as the body of a command, as plain values of its own: it may not change while it waits under one id.
 * What cannot be sent is refused where it is given.
 */
internal fun plain(value: Any?, path: String, depth: Int = 0): Any? {
    require(depth <= DEPTH_MAX - 2) { "$path is nested deeper than the protocol allows ($DEPTH_MAX)" }
    return when (value) {
        null, is Boolean, is String -> value
        is Byte, is Short, is Int, is Long -> (value as Number).toLong().also {
            require(it in -INTEGER_MAX..INTEGER_MAX) { "$path is an integer beyond 2^53: send it as a string" }
        }
        is Number -> value.toDouble().also { require(it.isFinite()) { "$path is a number that is not finite" } }
        is CharSequence -> value.toString()
        is Enum<*> -> value.name.lowercase()
        is Map<*, *> -> value.entries.associateTo(LinkedHashMap<String, Any?>()) { (key, entry) ->
            require(key is String) { "$path has a key that is no string: $key" }
            key to plain(entry, "$path.$key", depth + 1)
        }
        is Iterable<*> -> value.mapIndexed { i, entry -> plain(entry, "$path[$i]", depth + 1) }
        is Array<*> -> value.mapIndexed { i, entry -> plain(entry, "$path[$i]", depth + 1) }
        else -> throw IllegalArgumentException("$path is a ${value.javaClass.name}: give null, a Boolean, Number, String, List or Map")
    }
}

internal fun fields(value: Any?): Fields? {
    @Suppress("UNCHECKED_CAST")
    return value as? Fields
}

internal fun Fields.text(key: String): String? = this[key] as? String

internal fun Fields.number(key: String): Long? = (this[key] as? Number)?.toLong()

internal fun Fields.obj(key: String): Fields? = fields(this[key])

internal fun Fields.objects(key: String): List<Fields> = (this[key] as? List<*>).orEmpty().mapNotNull(::fields)

/** As everything here relies on it: `content` is a list of parts. */
internal fun itemOf(raw: Fields): Item {
    val content = raw["content"]
    if (content is List<*>) return Item(raw)
    val kind = if (raw["role"] == "assistant") "output_text" else "input_text"
    return Item(raw + ("content" to if (content is String) listOf(mapOf("type" to kind, "text" to content)) else emptyList()))
}

internal fun statusOf(name: String?): ResponseStatus? = ResponseStatus.values().firstOrNull { it.name.lowercase() == name }

internal fun recordOf(stored: Fields): ResponseRecord = ResponseRecord(stored.text("id") ?: "").with(
    status = statusOf(stored.text("status")) ?: ResponseStatus.COMPLETED,
    parentId = stored.text("parent_id"),
    output = (stored["output"] as? List<*>).orEmpty().filterIsInstance<String>(),
    reason = stored.text("reason"),
    error = stored.obj("error")?.let { ErrorObject(it) },
    dropped = stored.number("dropped"),
    told = stored,
)

/** When a ULID was made, in ms since 1970; null: it is none. */
internal fun ulidMadeAt(id: String): Long? {
    if (id.length != 26 || id[0] > '7' || id.any { it !in ULID_DIGITS }) return null
    return id.take(10).fold(0L) { ms, digit -> ms * 32 + ULID_DIGITS.indexOf(digit) }
}

internal const val ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

/** Full jitter: anywhere between nothing and 0.25 s · 2ⁿ, at most 20 s. */
internal fun backoffMs(attempt: Int, random: Double): Double = random * minOf(20_000L, 250L shl minOf(attempt, 16))

/** Whether to wait for a busy branch, to queue or to give up is the program's decision (protocol, 5.3). */
internal fun isBusy(code: String): Boolean = code == "response_in_progress" || code == "tools_pending"

/** The leaf that fits what the server said. */
internal fun fromWire(error: ErrorObject, aboutSession: Boolean): CommandException = when {
    isBusy(error.code) -> BusyException(error)
    aboutSession || error.code == "session_not_found" || error.code == "session_deleted" -> GoneException(error)
    else -> CommandException(error)
}

/** A handshake refused with 408, 425 or 429 is worth another attempt, unlike the rest of 400–499. */
internal fun isFinalStatus(status: Int): Boolean = status in 400..499 && status != 408 && status != 425 && status != 429

/** Close codes after which a client must not come back by itself (protocol, 6.1). */
internal fun isFinalClose(code: Int): Boolean = when (code) {
    1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403 -> true
    else -> false
}

/** `Retry-After` in ms: a number of seconds or a date; `retry-after-ms`, which is finer, goes before it. 0: not said. */
internal fun retryAfterMs(ms: String?, after: String?, now: Instant): Long {
    val said = ms?.trim()?.toDoubleOrNull() ?: after?.trim()?.toDoubleOrNull()?.times(1000)
    if (said != null) return if (said.isNaN()) 0 else said.coerceIn(0.0, RETRY_AFTER_MAX_MS).toLong()
    val date = try {
        ZonedDateTime.parse(after ?: return 0, DateTimeFormatter.RFC_1123_DATE_TIME).toInstant()
    } catch (_: DateTimeParseException) {
        return 0
    }
    return Duration.between(now, date).toMillis().coerceIn(0, RETRY_AFTER_MAX_MS.toLong())
}

/** A day: what says more is wrong, or will be asked again then. */
private const val RETRY_AFTER_MAX_MS = 86_400_000.0

/** What a listener threw is reported as its thread would report it. */
internal fun uncaught(error: Throwable) {
    val thread = Thread.currentThread()
    thread.uncaughtExceptionHandler.uncaughtException(thread, error)
}

private fun daemons(name: String): ThreadFactory {
    val made = AtomicInteger()
    return ThreadFactory { Thread(it, "$name-${made.incrementAndGet()}").apply { isDaemon = true } }
}

/** Daemon threads: one for timers, and others that come when something may wait and go after ten idle seconds. */
internal fun realThreads(callbacks: Executor?): Threads {
    val timers = ScheduledThreadPoolExecutor(1, daemons("sessile-timer"))
    timers.removeOnCancelPolicy = true
    val workers = ThreadPoolExecutor(0, Int.MAX_VALUE, 10, TimeUnit.SECONDS, SynchronousQueue(), daemons("sessile"))
    val startMs = System.currentTimeMillis()
    val startNs = System.nanoTime()
    val scheduler = object : Scheduler {
        // The clock of the day may be set back or forth; durations must not notice.
        override fun now(): Long = startMs + (System.nanoTime() - startNs) / 1_000_000

        override fun schedule(delayMs: Long, task: Runnable): Registration {
            val future = try {
                timers.schedule(task, delayMs, TimeUnit.MILLISECONDS)
            } catch (_: RejectedExecutionException) {
                return Registration { } // closed meanwhile
            }
            return Registration { future.cancel(false) }
        }
    }
    return Threads(scheduler, workers, callbacks) { timers.shutdownNow() }
}
