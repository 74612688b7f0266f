package sessile

import java.io.ByteArrayOutputStream
import java.net.URI
import java.net.http.HttpClient
import java.net.http.WebSocket
import java.net.http.WebSocketHandshakeException
import java.nio.ByteBuffer
import java.time.Duration
import java.time.Instant
import java.util.concurrent.CompletableFuture
import java.util.concurrent.CompletionException
import java.util.concurrent.CompletionStage
import java.util.concurrent.TimeUnit

/**
 * The JDK's own WebSocket (`java.net.http`, Java 11 and later; Android has none and uses `SocketTransport`). Give an `HttpClient`
 * of your own for a proxy, an authority or client certificates.
 *
 * It does not say every close code: where a code is for the WebSocket layer alone, the connection is cut. It compresses nothing.
 */
class HttpTransport @JvmOverloads constructor(
    private val http: HttpClient = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(10)).build(),
) : Transport {
    override fun open(url: URI, headers: Map<String, String>, subprotocol: String, listener: SocketListener): Socket {
        val socket = HttpSocket(listener)
        val builder = http.newWebSocketBuilder().subprotocols(subprotocol).connectTimeout(Duration.ofSeconds(10))
        for ((name, value) in headers) builder.header(name, value)
        builder.buildAsync(url, socket).whenComplete { _, error -> if (error != null) socket.failed(error) }
        return socket
    }
}

/** A snapshot of a session at its limits is smaller. */
private const val MESSAGE_MAX = 256 * 1024 * 1024
private const val KEPT_MAX = 1024 * 1024

private class HttpSocket(private val listener: SocketListener) : Socket, WebSocket.Listener {
    private var socket: WebSocket? = null
    private var isOver = false

    /** One message at a time: the JDK refuses a second one before the first is out. */
    private var sent: CompletableFuture<*> = CompletableFuture.completedFuture(null)
    private val text = StringBuilder()
    private var binary = ByteArrayOutputStream()

    @Synchronized
    override fun send(message: Any) {
        val socket = socket ?: return
        sent = sent.thenCompose {
            if (message is String) socket.sendText(message, true) else socket.sendBinary(ByteBuffer.wrap(message as ByteArray), true)
        }
        sent.whenComplete { _, error -> if (error != null) over(1006, "$error") }
    }

    @Synchronized
    override fun close(code: Int, reason: String) {
        isOver = true
        val socket = socket ?: return
        // Behind what was sent before, which may never get out: the socket is given up in any case.
        sent.thenCompose { socket.sendClose(code, reason) }.orTimeout(2, TimeUnit.SECONDS).whenComplete { _, error ->
            if (error != null) socket.abort()
        }
        // The other end's close is awaited by nobody.
        CompletableFuture.delayedExecutor(5, TimeUnit.SECONDS).execute(socket::abort)
    }

    override fun onOpen(opened: WebSocket) {
        val isWanted = synchronized(this) {
            socket = opened
            !isOver
        }
        if (!isWanted) return opened.abort()
        listener.opened()
        opened.request(1)
    }

    override fun onText(from: WebSocket, data: CharSequence, last: Boolean): CompletionStage<*>? {
        if (text.length + data.length > MESSAGE_MAX) return tooBig(from)
        text.append(data)
        if (last) {
            val whole = text.toString()
            text.setLength(0)
            if (text.capacity() > KEPT_MAX) text.trimToSize()
            tell(whole)
        }
        from.request(1)
        return null
    }

    override fun onBinary(from: WebSocket, data: ByteBuffer, last: Boolean): CompletionStage<*>? {
        if (binary.size() + data.remaining() > MESSAGE_MAX) return tooBig(from)
        val part = ByteArray(data.remaining())
        data.get(part)
        if (last && binary.size() == 0) {
            tell(part)
        } else {
            binary.write(part)
            if (last) {
                val whole = binary.toByteArray()
                binary = ByteArrayOutputStream()
                tell(whole)
            }
        }
        from.request(1)
        return null
    }

    override fun onClose(from: WebSocket, code: Int, reason: String): CompletionStage<*>? {
        over(code, reason)
        return null
    }

    override fun onError(from: WebSocket, error: Throwable) = over(1006, "$error")

    fun failed(error: Throwable) {
        val cause = if (error is CompletionException) error.cause ?: error else error
        if (cause !is WebSocketHandshakeException || cause.response == null) return over(1006, "$cause")
        val status = cause.response.statusCode()
        // An answer of 101 that is no right handshake is a cut like any other.
        if (status == 101) return over(1006, "$cause")
        val headers = cause.response.headers()
        val afterMs = retryAfterMs(headers.firstValue("retry-after-ms").orElse(null), headers.firstValue("retry-after").orElse(null), Instant.now())
        if (end()) listener.refused(status, afterMs)
    }

    private fun tooBig(from: WebSocket): CompletionStage<*>? {
        from.abort()
        over(1009, "a message of more than $MESSAGE_MAX")
        return null
    }

    private fun tell(message: Any) {
        if (!synchronized(this) { isOver }) listener.message(message)
    }

    private fun over(code: Int, reason: String) {
        if (end()) listener.closed(code, reason)
    }

    @Synchronized
    private fun end(): Boolean = !isOver.also { isOver = true }
}
