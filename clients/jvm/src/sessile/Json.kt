package sessile

/**
 * JSON as the protocol has it: null, Boolean, Long, Double, String, List and Map. Integers beyond ±(2^53 - 1), numbers that are
 * not finite and nesting beyond 64 are refused, as are bytes behind the value. Source: RFC 8259.
 */
internal object Json {
    fun write(value: Any?): String = StringBuilder().also { any(it, value) }.toString()

    fun read(text: String): Any? = Reader(text, INTEGER_MAX).whole()

    private fun any(out: StringBuilder, value: Any?) {
        when (value) {
            null, is Boolean, is Long, is Double -> out.append(value)
            is String -> string(out, value)
            is List<*> -> joined(out, '[', ']', value) { any(out, it) }
            is Map<*, *> -> joined(out, '{', '}', value.entries) { (key, entry) ->
                string(out, key as String)
                out.append(':')
                any(out, entry)
            }
            else -> throw IllegalArgumentException("JSON has no ${value.javaClass.name}")
        }
    }

    private fun <T> joined(out: StringBuilder, open: Char, close: Char, entries: Collection<T>, each: (T) -> Unit) {
        out.append(open)
        var isFirst = true
        for (entry in entries) {
            if (!isFirst) out.append(',')
            isFirst = false
            each(entry)
        }
        out.append(close)
    }

    private fun string(out: StringBuilder, text: String) {
        out.append('"')
        for (i in text.indices) {
            val unit = text[i]
            when {
                unit == '"' || unit == '\\' -> out.append('\\').append(unit)
                unit < ' ' || isLone(text, i) -> out.append(String.format("\\u%04x", unit.code))
                else -> out.append(unit)
            }
        }
        out.append('"')
    }

    class Reader(private val text: String, private val integerMax: Long) {
        private var at = 0

        fun whole(): Any? {
            val value = any(0)
            blank()
            if (at != text.length) bad()
            return value
        }

        private fun bad(): Nothing = throw DecodeException("a frame that is not JSON")

        private fun blank() {
            while (at < text.length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) at++
        }

        private fun next(): Char = if (at < text.length) text[at++] else bad()

        private fun any(depth: Int): Any? {
            if (depth > DEPTH_MAX) throw DecodeException("nested too deeply")
            blank()
            return when (val first = next()) {
                '{' -> entries(depth)
                '[' -> list(depth)
                '"' -> string()
                't' -> word("rue", true)
                'f' -> word("alse", false)
                'n' -> word("ull", null)
                else -> if (first == '-' || first in '0'..'9') number() else bad()
            }
        }

        private fun word(rest: String, value: Any?): Any? {
            if (!text.startsWith(rest, at)) bad()
            at += rest.length
            return value
        }

        private fun ends(close: Char): Boolean {
            blank()
            if (at < text.length && text[at] == close) {
                at++
                return true
            }
            return false
        }

        private fun list(depth: Int): List<Any?> {
            val list = ArrayList<Any?>()
            if (ends(']')) return list
            while (true) {
                list.add(any(depth + 1))
                if (ends(']')) return list
                if (next() != ',') bad()
            }
        }

        private fun entries(depth: Int): Map<String, Any?> {
            val map = LinkedHashMap<String, Any?>()
            if (ends('}')) return map
            while (true) {
                blank()
                if (next() != '"') bad()
                val key = string()
                blank()
                if (next() != ':') bad()
                map[key] = any(depth + 1)
                if (ends('}')) return map
                if (next() != ',') bad()
            }
        }

        private fun string(): String {
            val start = at
            while (true) {
                val unit = next()
                if (unit == '"') return text.substring(start, at - 1)
                if (unit < ' ') bad()
                if (unit == '\\') break
            }
            val out = StringBuilder(text.substring(start, --at))
            while (true) {
                val unit = next()
                when {
                    unit == '"' -> return out.toString()
                    unit < ' ' -> bad()
                    unit != '\\' -> out.append(unit)
                    else -> out.append(escaped())
                }
            }
        }

        private fun escaped(): Char = when (val unit = next()) {
            '"', '\\', '/' -> unit
            'b' -> '\b'
            'f' -> '\u000c'
            'n' -> '\n'
            'r' -> '\r'
            't' -> '\t'
            'u' -> {
                var code = 0
                repeat(4) {
                    val digit = Character.digit(next(), 16)
                    if (digit < 0) bad()
                    code = code * 16 + digit
                }
                code.toChar()
            }
            else -> bad()
        }

        private fun digits() {
            if (at >= text.length || text[at] !in '0'..'9') bad()
            while (at < text.length && text[at] in '0'..'9') at++
        }

        private fun number(): Any {
            val start = --at
            if (text[at] == '-') at++
            if (at < text.length && text[at] == '0') at++ else digits()
            var isInteger = true
            if (at < text.length && text[at] == '.') {
                isInteger = false
                at++
                digits()
            }
            if (at < text.length && (text[at] == 'e' || text[at] == 'E')) {
                isInteger = false
                at++
                if (at < text.length && (text[at] == '+' || text[at] == '-')) at++
                digits()
            }
            val said = text.substring(start, at)
            if (isInteger) return safe(said.toLongOrNull(), integerMax)
            val value = said.toDouble()
            if (value.isInfinite()) throw DecodeException("a number that is not finite")
            return value
        }
    }
}
