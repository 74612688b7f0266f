package sessile

/** How frames are written: one for the life of a connection. */
enum class Encoding(internal val subprotocol: String) {
    JSON("sessile.v1+json"),
    MSGPACK("sessile.v1+msgpack"),
}

/**
 * Frames to messages and back. What is no object with a `type`, or lacks a field that the core relies on, is refused here, so that
 * nothing behind this file meets it.
 */
internal object Codec {
    fun body(frames: List<Fields>): Any = if (frames.size == 1) frames[0] else frames

    /** The frames of a message, and its bytes. */
    fun text(text: String): Pair<List<Fields>, Int> = checked(Json.read(text), utf8Length(text))

    fun binary(bytes: ByteArray): Pair<List<Fields>, Int> = checked(MsgPack.read(bytes), bytes.size)

    private fun checked(value: Any?, bytes: Int): Pair<List<Fields>, Int> {
        val frames = if (value is List<*>) value else listOf(value)
        return Pair(frames.map { check(it) }, bytes)
    }

    private fun check(value: Any?): Fields {
        val frame = fields(value)
        val type = frame?.text("type") ?: throw DecodeException("a frame without a type", 1002)
        if (!isWhole(type, frame)) throw DecodeException("a malformed $type", 1002)
        return frame
    }

    private fun isOffset(value: Any?): Boolean = value is Long && value >= 0

    /** Unknown types pass: they are ignored. */
    private fun isWhole(type: String, frame: Fields): Boolean = when (type) {
        "event" -> isOf(frame, "session", "epoch") && isOffset(frame["offset"]) &&
            ("first_offset" !in frame || isOffset(frame["first_offset"])) && frame.obj("event")?.text("type") != null
        "resumed" -> isOf(frame, "session") && isResumed(frame)
        "caught_up" -> isOf(frame, "session") && isOffset(frame["offset"])
        "ok" -> isOf(frame, "id")
        "error" -> frame.obj("error") != null
        else -> true
    }

    private fun isOf(frame: Fields, vararg strings: String): Boolean = strings.all { frame[it] is String }

    private fun isResumed(frame: Fields): Boolean = when (frame["mode"]) {
        "gone" -> true
        "replay" -> isOf(frame, "epoch") && isOffset(frame["from"]) && isOffset(frame["top"])
        else -> isOf(frame, "epoch") && isOffset(frame["at"]) && frame.obj("state")?.get("items") is List<*>
    }
}
