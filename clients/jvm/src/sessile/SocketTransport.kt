package sessile

import java.io.BufferedInputStream
import java.io.ByteArrayOutputStream
import java.io.DataInputStream
import java.io.IOException
import java.net.InetSocketAddress
import java.net.URI
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import java.security.MessageDigest
import java.security.SecureRandom
import java.time.Instant
import java.util.Base64
import java.util.concurrent.LinkedBlockingQueue
import java.util.concurrent.TimeUnit
import javax.net.ssl.SSLSocket
import javax.net.ssl.SSLSocketFactory

private const val DIAL_LIMIT_MS = 10_000
private const val HEAD_BYTES_MAX = 65_536
private const val MESSAGE_BYTES_MAX = 256 * 1024 * 1024
private const val UNSENT_MAX = 4096
private const val HANDSHAKE_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

/**
 * A WebSocket on `java.net.Socket` alone: for Android (from 8.0), which has no `java.net.http`, and for whoever wants no thread that wakes while
 * nothing happens. Two threads a connection, both asleep in the system between messages. No proxy, no compression.
 *
 * `tls` is for `https` and `wss`; the certificate must be for the host in any case. Source: RFC 6455.
 */
class SocketTransport @JvmOverloads constructor(
    private val tls: SSLSocketFactory = SSLSocketFactory.getDefault() as SSLSocketFactory,
) : Transport {
    override fun open(url: URI, headers: Map<String, String>, subprotocol: String, listener: SocketListener): Socket =
        PlainSocket(url, headers, subprotocol, listener, tls).also { it.start() }
}

/** Ends the connection with `code`, which the other end gets to know if it can still be told. */
private class Violation(val code: Int, message: String) : IOException(message)

private class PlainSocket(
    private val url: URI,
    private val headers: Map<String, String>,
    private val subprotocol: String,
    private val listener: SocketListener,
    private val tls: SSLSocketFactory,
) : Socket {
    private val chance = SecureRandom()
    private val unsent = LinkedBlockingQueue<ByteArray>(UNSENT_MAX)
    private var socket = java.net.Socket()
    private var isOver = false

    fun start() = thread("sessile-read") {
        try {
            read(connect() ?: return@thread)
        } catch (error: Violation) {
            enqueue(8, byteArrayOf((error.code shr 8).toByte(), error.code.toByte()))
            over(error.code, error.message ?: "")
            cutSoon()
        } catch (error: Exception) {
            over(1006, "$error")
            socket.close()
        }
    }

    private fun thread(name: String, body: () -> Unit) = Thread(body, name).apply { isDaemon = true }.start()

    // -- the handshake

    /** null: it was refused. */
    private fun connect(): DataInputStream? {
        val isSecure = url.scheme == "wss"
        val port = if (url.port >= 0) url.port else if (isSecure) 443 else 80
        val host = url.host ?: throw IOException("no host in $url")
        val bare = socket
        bare.tcpNoDelay = true
        bare.connect(InetSocketAddress(host.removeSurrounding("[", "]"), port), DIAL_LIMIT_MS)
        bare.soTimeout = DIAL_LIMIT_MS
        if (isSecure) {
            val secured = tls.createSocket(bare, host, port, true) as SSLSocket
            secured.sslParameters = secured.sslParameters.apply { endpointIdentificationAlgorithm = "HTTPS" }
            secured.startHandshake()
            synchronized(this) { socket = secured }
        }
        val key = Base64.getEncoder().encodeToString(ByteArray(16).also { chance.nextBytes(it) })
        val path = (url.rawPath.ifEmpty { "/" }) + (url.rawQuery?.let { "?$it" } ?: "")
        val said = linkedMapOf(
            "Host" to if (url.port >= 0) "$host:$port" else host,
            "Upgrade" to "websocket",
            "Connection" to "Upgrade",
            "Sec-WebSocket-Key" to key,
            "Sec-WebSocket-Version" to "13",
            "Sec-WebSocket-Protocol" to subprotocol,
        ) + headers
        val lines = said.map { (name, value) -> "$name: $value" }
        if (lines.any { it.contains('\n') || it.contains('\r') }) throw IOException("a header with a line break")
        socket.getOutputStream().write(("GET $path HTTP/1.1\r\n" + lines.joinToString("\r\n") + "\r\n\r\n").toByteArray())
        val from = DataInputStream(BufferedInputStream(socket.getInputStream(), 16_384))
        val head = head(from)
        val status = head[0].split(' ').getOrNull(1)?.toIntOrNull() ?: throw IOException("no HTTP: ${head[0].take(80)}")
        val answered = head.drop(1).associate { it.substringBefore(':').trim().lowercase() to it.substringAfter(':').trim() }
        if (status != 101) {
            socket.close()
            if (end()) listener.refused(status, retryAfterMs(answered["retry-after-ms"], answered["retry-after"], Instant.now()))
            return null
        }
        val digest = MessageDigest.getInstance("SHA-1").digest((key + HANDSHAKE_GUID).toByteArray())
        if (answered["sec-websocket-accept"] != Base64.getEncoder().encodeToString(digest)) throw IOException("no WebSocket answered")
        if (answered["sec-websocket-protocol"] != subprotocol) throw IOException("the server did not take $subprotocol")
        socket.soTimeout = 0 // silence is for the client to judge
        thread("sessile-write", ::write)
        return from
    }

    private fun head(from: DataInputStream): List<String> {
        val bytes = ByteArrayOutputStream()
        var last = 0
        while (last != 0x0d0a0d0a) {
            val byte = from.readUnsignedByte()
            bytes.write(byte)
            last = (last shl 8) or byte
            if (bytes.size() > HEAD_BYTES_MAX) throw IOException("a head of more than $HEAD_BYTES_MAX bytes")
        }
        return bytes.toString("ISO-8859-1").trimEnd().split("\r\n")
    }

    // -- messages

    private fun read(from: DataInputStream) {
        listener.opened()
        val message = ByteArrayOutputStream()
        var kind = 0
        while (true) {
            val first = from.readUnsignedByte()
            val second = from.readUnsignedByte()
            val opcode = first and 15
            val length = when (val short = second and 127) {
                126 -> from.readUnsignedShort().toLong()
                127 -> from.readLong()
                else -> short.toLong()
            }
            val isWhole = first and 0x80 != 0
            if (first and 0x70 != 0 || second and 0x80 != 0) throw Violation(1002, "a frame that nobody agreed on")
            if (opcode >= 8) {
                if (!isWhole || length > 125) throw Violation(1002, "a control frame that is too long")
                if (!control(opcode, ByteArray(length.toInt()).also { from.readFully(it) })) return
                continue
            }
            if (opcode > 2 || (opcode == 0) != (kind != 0)) throw Violation(1002, "a frame out of order")
            if (length < 0 || message.size() + length > MESSAGE_BYTES_MAX) throw Violation(1009, "a message that is too big")
            if (opcode != 0) kind = opcode
            take(from, message, length)
            if (isWhole) {
                val bytes = message.toByteArray()
                message.reset()
                val told: Any = if (kind == 1) text(bytes) else bytes
                kind = 0
                if (!synchronized(this) { isOver }) listener.message(told)
            }
        }
    }

    /** In parts, so that a length that lies takes no memory. */
    private fun take(from: DataInputStream, into: ByteArrayOutputStream, length: Long) {
        val part = ByteArray(minOf(length, 65_536L).toInt())
        var left = length
        while (left > 0) {
            val had = from.read(part, 0, minOf(left, part.size.toLong()).toInt())
            if (had < 0) throw IOException("the connection ended in a message")
            into.write(part, 0, had)
            left -= had
        }
    }

    private fun text(bytes: ByteArray): String = try {
        Charsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString()
    } catch (_: CharacterCodingException) {
        throw Violation(1007, "a text that is not UTF-8")
    }

    /** False: the other end has closed. */
    private fun control(opcode: Int, body: ByteArray): Boolean {
        if (opcode == 9) enqueue(10, body)
        if (opcode != 8) return true
        enqueue(8, body.copyOf(minOf(2, body.size)))
        val code = if (body.size < 2) 1005 else ((body[0].toInt() and 255) shl 8) or (body[1].toInt() and 255)
        over(code, if (body.size > 2) String(body, 2, body.size - 2) else "")
        cutSoon()
        return false
    }

    // -- sending

    override fun send(message: Any) = if (message is String) enqueue(1, message.toByteArray()) else enqueue(2, message as ByteArray)

    override fun close(code: Int, reason: String) {
        if (!end()) return
        enqueue(8, byteArrayOf((code shr 8).toByte(), code.toByte()) + reason.take(40).toByteArray())
        cutSoon()
    }

    private fun enqueue(opcode: Int, body: ByteArray) {
        val frame = ByteBuffer.allocate(14 + body.size).put((0x80 or opcode).toByte())
        if (body.size < 126) frame.put((0x80 or body.size).toByte())
        else if (body.size < 65_536) frame.put(0xfe.toByte()).putShort(body.size.toShort())
        else frame.put(0xff.toByte()).putLong(body.size.toLong())
        val mask = ByteArray(4).also { chance.nextBytes(it) }
        frame.put(mask)
        for (i in body.indices) frame.put((body[i].toInt() xor mask[i and 3].toInt()).toByte())
        if (!unsent.offer(frame.array().copyOf(frame.position()))) {
            over(1006, "the connection takes nothing more")
            socket.close()
        }
    }

    private fun write() {
        try {
            val to = socket.getOutputStream()
            while (true) {
                val frame = unsent.take()
                to.write(frame)
                if (frame[0] == 0x88.toByte()) return socket.shutdownOutput() // nothing goes behind a close
            }
        } catch (error: Exception) {
            over(1006, "$error")
        }
    }

    /** The close gets its time to go out and to be answered; then the connection is cut whatever the other end does. */
    private fun cutSoon() = thread("sessile-cut") {
        TimeUnit.SECONDS.sleep(2)
        synchronized(this) { socket }.close()
    }

    private fun over(code: Int, reason: String) {
        if (end()) listener.closed(code, reason)
    }

    @Synchronized
    private fun end(): Boolean = !isOver.also { isOver = true }
}
