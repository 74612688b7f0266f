package sessile

import java.net.URI

/**
 * What the client needs from the place that it runs in. Each has a default (`SessileClient.Builder`); a program gives its own where
 * it has something better: OkHttp's WebSocket on Android, a database as the storage, virtual time in tests.
 */
interface Transport {
    /** Dials at once and never waits; what comes of it is told to `listener`, from any thread, one call at a time. */
    fun open(url: URI, headers: Map<String, String>, subprotocol: String, listener: SocketListener): Socket
}

/** One WebSocket. Neither call waits. */
interface Socket {
    /** `message` is a String (a text message) or a ByteArray (a binary one). */
    fun send(message: Any)

    /** Nothing needs to be told to the listener afterwards. A code that the platform cannot say may become another. */
    fun close(code: Int, reason: String)
}

interface SocketListener {
    fun opened()

    /** A whole message: a String or a ByteArray. */
    fun message(message: Any)

    /** 1006: the connection was cut, or could not be made. */
    fun closed(code: Int, reason: String)

    /** The handshake was answered with an HTTP status instead; `retryAfterMs` is 0 where the server does not say. */
    fun refused(httpStatus: Int, retryAfterMs: Long)
}

/** Keeps positions, views and unanswered commands over the end of the program. It is called from one thread at a time and may wait. */
interface Storage {
    fun read(key: String): String?

    /** Whole or not at all, also when the program is killed meanwhile. */
    fun write(key: String, value: String)

    fun remove(key: String)
}

/** The credential: called before each connection, on a thread that may wait, so that an expired token is replaced. null: none. */
fun interface TokenSource {
    fun token(): String?
}

/** Ends what it was returned for; a second time does nothing. */
fun interface Registration : AutoCloseable {
    override fun close()
}

/** Time. `now` is Unix time in ms; differences of it are durations, so it should not jump. */
interface Scheduler {
    fun now(): Long

    fun schedule(delayMs: Long, task: Runnable): Registration
}
