package sessile

import java.io.ByteArrayOutputStream
import java.io.DataOutputStream
import java.nio.BufferUnderflowException
import java.nio.ByteBuffer
import java.nio.charset.CharacterCodingException
import java.nio.charset.CodingErrorAction

/**
 * MessagePack, as much of it as the protocol needs: nil, booleans, numbers, strings, arrays and maps with string keys. A lone
 * surrogate is written as U+FFFD; extension types, other keys, deep nesting, bytes that are no UTF-8 and bytes behind the value are
 * refused. Source: the MessagePack specification.
 */
internal object MsgPack {
    fun write(value: Any?): ByteArray {
        val bytes = ByteArrayOutputStream(256)
        any(DataOutputStream(bytes), value)
        return bytes.toByteArray()
    }

    fun read(bytes: ByteArray): Any? {
        val from = ByteBuffer.wrap(bytes)
        try {
            val value = any(from, 0)
            if (from.hasRemaining()) throw DecodeException("trailing bytes")
            return value
        } catch (_: BufferUnderflowException) {
            throw DecodeException("cut off")
        }
    }

    private fun any(out: DataOutputStream, value: Any?) {
        when (value) {
            null -> out.write(0xc0)
            is Boolean -> out.write(if (value) 0xc3 else 0xc2)
            is Long -> integer(out, value)
            is Double -> {
                out.write(0xcb)
                out.writeDouble(value)
            }
            is String -> string(out, value)
            is List<*> -> {
                header(out, value.size, 0x90, 16, 0, 0xdc)
                for (entry in value) any(out, entry)
            }
            is Map<*, *> -> {
                header(out, value.size, 0x80, 16, 0, 0xde)
                for ((key, entry) in value) {
                    string(out, key as String)
                    any(out, entry)
                }
            }
            else -> throw IllegalArgumentException("MessagePack has no ${value.javaClass.name} here")
        }
    }

    /** A length: in the tag below `tagMax`, then in 8 bits (where the family has them), 16, 32. */
    private fun header(out: DataOutputStream, length: Int, tag: Int, tagMax: Int, wide8: Int, wide16: Int) {
        if (length < tagMax) {
            out.write(tag or length)
        } else if (wide8 != 0 && length < 0x100) {
            out.write(wide8)
            out.write(length)
        } else if (length < 0x10000) {
            out.write(wide16)
            out.writeShort(length)
        } else {
            out.write(wide16 + 1)
            out.writeInt(length)
        }
    }

    private fun integer(out: DataOutputStream, n: Long) {
        when {
            n in -0x20..0x7f -> out.write(n.toInt())
            n in 0..0xff -> tagged(out, 0xcc).write(n.toInt())
            n in 0..0xffff -> tagged(out, 0xcd).writeShort(n.toInt())
            n in 0..0xffffffffL -> tagged(out, 0xce).writeInt(n.toInt())
            n >= 0 -> tagged(out, 0xcf).writeLong(n)
            n >= -0x80 -> tagged(out, 0xd0).write(n.toInt())
            n >= -0x8000 -> tagged(out, 0xd1).writeShort(n.toInt())
            n >= -0x80000000L -> tagged(out, 0xd2).writeInt(n.toInt())
            else -> tagged(out, 0xd3).writeLong(n)
        }
    }

    private fun tagged(out: DataOutputStream, tag: Int): DataOutputStream = out.also { it.write(tag) }

    private fun string(out: DataOutputStream, text: String) {
        val bytes = whole(text).toByteArray(Charsets.UTF_8)
        header(out, bytes.size, 0xa0, 32, 0xd9, 0xda)
        out.write(bytes)
    }

    private fun whole(text: String): String {
        if (text.indices.none { isLone(text, it) }) return text
        return String(CharArray(text.length) { if (isLone(text, it)) '\ufffd' else text[it] })
    }

    private fun any(from: ByteBuffer, depth: Int): Any? {
        if (depth > DEPTH_MAX) throw DecodeException("nested too deeply")
        val tag = u8(from)
        return when {
            tag < 0x80 -> tag.toLong()
            tag < 0x90 -> map(from, tag and 15, depth)
            tag < 0xa0 -> list(from, tag and 15, depth)
            tag < 0xc0 -> text(from, tag and 31)
            tag >= 0xe0 -> (tag - 0x100).toLong()
            else -> wide(from, tag, depth)
        }
    }

    private fun wide(from: ByteBuffer, tag: Int, depth: Int): Any? = when (tag) {
        0xc0 -> null
        0xc2 -> false
        0xc3 -> true
        0xca -> from.getFloat().toDouble()
        0xcb -> from.getDouble()
        0xcc -> u8(from).toLong()
        0xcd -> u16(from).toLong()
        0xce -> from.getInt().toLong() and 0xffffffffL
        0xcf, 0xd3 -> {
            val value = from.getLong()
            safe(if (tag == 0xcf && value < 0) null else value, INTEGER_MAX)
        }
        0xd0 -> from.get().toLong()
        0xd1 -> from.getShort().toLong()
        0xd2 -> from.getInt().toLong()
        0xd9 -> text(from, u8(from))
        0xda -> text(from, u16(from))
        0xdb -> text(from, from.getInt())
        0xdc -> list(from, u16(from), depth)
        0xdd -> list(from, from.getInt(), depth)
        0xde -> map(from, u16(from), depth)
        0xdf -> map(from, from.getInt(), depth)
        else -> throw DecodeException("tag 0x${tag.toString(16)} is not used here")
    }

    private fun u8(from: ByteBuffer): Int = from.get().toInt() and 0xff

    private fun u16(from: ByteBuffer): Int = from.getShort().toInt() and 0xffff

    /** Each entry takes at least one byte, so a length that lies takes no memory. */
    private fun room(from: ByteBuffer, length: Int, each: Int) {
        if (length < 0 || length.toLong() * each > from.remaining()) throw DecodeException("cut off")
    }

    private fun text(from: ByteBuffer, length: Int): String {
        room(from, length, 1)
        val bytes = from.slice()
        bytes.limit(length)
        from.position(from.position() + length)
        val decoder = Charsets.UTF_8.newDecoder().onMalformedInput(CodingErrorAction.REPORT)
        try {
            return decoder.decode(bytes).toString()
        } catch (_: CharacterCodingException) {
            throw DecodeException("not UTF-8")
        }
    }

    private fun list(from: ByteBuffer, length: Int, depth: Int): List<Any?> {
        room(from, length, 1)
        val list = ArrayList<Any?>(length)
        repeat(length) { list.add(any(from, depth + 1)) }
        return list
    }

    private fun map(from: ByteBuffer, length: Int, depth: Int): Map<String, Any?> {
        room(from, length, 2)
        val map = LinkedHashMap<String, Any?>()
        repeat(length) {
            val key = any(from, depth + 1) as? String ?: throw DecodeException("a key is no string")
            map[key] = any(from, depth + 1)
        }
        return map
    }
}
