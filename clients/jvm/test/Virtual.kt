package sessile.test

import java.net.URI
import java.util.concurrent.Executor
import sessile.Codec
import sessile.Encoding
import sessile.Fields
import sessile.Json
import sessile.MsgPack
import sessile.Registration
import sessile.Scheduler
import sessile.Sessile
import sessile.SessileClient
import sessile.Socket
import sessile.SocketListener
import sessile.Storage
import sessile.Threads
import sessile.Transport

/** A clock that moves when it is told. */
class VirtualClock : Scheduler {
    private class Timer(val at: Long, val task: Runnable)

    private var nowMs = 1_760_000_000_000
    private val timers = ArrayList<Timer>()

    override fun now(): Long = nowMs

    override fun schedule(delayMs: Long, task: Runnable): Registration {
        val timer = Timer(nowMs + delayMs, task)
        timers.add(timer)
        return Registration { timers.remove(timer) }
    }

    val pending: Int get() = timers.size

    /** Runs what falls due within `ms`, in order; stops early when `until` holds. */
    fun advance(ms: Long, until: () -> Boolean = { false }) {
        val end = nowMs + ms
        var runs = 0
        while (!until()) {
            check(runs++ < 100_000) { "timers run in circles" }
            val next = timers.minByOrNull { it.at }?.takeIf { it.at <= end }
            if (next == null) {
                nowMs = end
                return
            }
            nowMs = maxOf(nowMs, next.at)
            timers.remove(next)
            next.task.run()
        }
    }

    /** The device slept: time has passed, and no timer ran in it. */
    fun sleep(ms: Long) {
        nowMs += ms
    }
}

/** A socket whose other end is the test. */
class TestSocket(private val listener: SocketListener, private val encoding: Encoding) : Socket {
    val frames = ArrayDeque<Fields>()
    var closedWith: Pair<Int, String>? = null

    override fun send(message: Any) {
        frames.addAll((if (encoding == Encoding.JSON) Codec.text(message as String) else Codec.binary(message as ByteArray)).first)
    }

    override fun close(code: Int, reason: String) {
        closedWith = Pair(code, reason)
    }

    fun accept() = listener.opened()

    fun refuse(status: Int, retryAfterMs: Long) = listener.refused(status, retryAfterMs)

    fun drop(code: Int = 1006, reason: String = "") = listener.closed(code, reason)

    fun raw(message: Any) = listener.message(message)

    fun play(vararg frames: Fields) {
        val body: Any = if (frames.size == 1) frames[0] else frames.toList()
        raw(if (encoding == Encoding.JSON) Json.write(body) else MsgPack.write(body))
    }

    /** The next frame but for acknowledgements. */
    fun take(): Fields = frames.removeFirst()
}

/** For as long as the test. */
class MemoryStorage : Storage {
    private val values = HashMap<String, String>()

    override fun read(key: String): String? = values[key]

    override fun write(key: String, value: String) {
        values[key] = value
    }

    override fun remove(key: String) {
        values.remove(key)
    }
}

/** A client in virtual time; every thread is this one, unless `callbacks` says otherwise. */
class World(
    encoding: Encoding = Encoding.JSON,
    random: Double = 0.5,
    val storage: Storage = MemoryStorage(),
    callbacks: Executor = Executor { it.run() },
    configure: SessileClient.Builder.() -> Unit = {},
) {
    val clock = VirtualClock()
    val sockets = ArrayList<TestSocket>()
    val client: SessileClient

    init {
        val transport = object : Transport {
            override fun open(url: URI, headers: Map<String, String>, subprotocol: String, listener: SocketListener): Socket =
                TestSocket(listener, encoding).also { sockets.add(it) }
        }
        val builder = Sessile.builder("http://server").transport(transport).storage(storage).encoding(encoding)
        builder.random = { random }
        builder.configure()
        client = SessileClient(builder, Threads(clock, { it.run() }, callbacks) {})
    }

    val socket: TestSocket get() = sockets.last()

    /** Accepts the newest socket and answers its `hello`, which is returned. */
    fun greet(ready: Fields = READY): Fields {
        socket.accept()
        return socket.take().also { socket.play(ready) }
    }
}

val READY: Fields = mapOf(
    "type" to "ready", "connection" to "con_1", "heartbeat_ms" to 25_000L, "window_events" to 1024L, "window_bytes" to 262_144L,
)
