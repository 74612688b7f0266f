package sessile.test

import sessile.Fields
import sessile.INTEGER_MAX
import sessile.fields

/** What a step leaves out. */
object Absent {
    override fun toString() = "nothing"
}

class Failure(message: String) : AssertionError(message)

fun fail(message: String): Nothing = throw Failure(message)

fun same(expected: Any?, actual: Any?, about: String = "") {
    if (expected != actual) fail("$about: expected $expected, got $actual")
}

/** The little language of the conformance cases' values (docs/protocol/README.md, "Values"). */
class Values(private val given: Fields) {
    private val names = HashMap<String, Any?>()
    private var made = 0

    private fun fresh(kind: Any?): String {
        made++
        return if (kind == "ulid") "01K7" + made.toString().padStart(22, '0') else "ses_" + made.toString().padStart(8, '0')
    }

    private fun nameIn(text: String): String? =
        text.takeIf { it.length > 1 && it[0] == '$' && it.drop(1).all { c -> c in 'A'..'Z' || c in '0'..'9' || c == '_' } }?.drop(1)

    /** The value that a step sends. */
    fun played(value: Any?): Any? = when (value) {
        is String -> text(value)
        is List<*> -> value.map(::played)
        is Map<*, *> -> record(fields(value)!!)
        else -> value
    }

    private fun text(value: String): Any? {
        if (value.startsWith("$$")) return value.drop(1)
        val name = nameIn(value) ?: return value
        if (name !in names) {
            if (name !in given) fail("$value is played before it has a value")
            val first = given[name]
            names[name] = fields(first)?.get("\$new")?.let(::fresh) ?: first
        }
        return names[name]
    }

    private fun record(value: Fields): Any? = when {
        "\$any" in value -> played(value["eg"]).also { eg -> (value["as"] as? String)?.let { names[it] = eg } }
        "\$opt" in value -> played(value["\$opt"])
        "\$absent" in value -> Absent
        "\$add" in value -> sum(value["\$add"])
        "\$range" in value -> (value["\$range"] as List<*>)[0]
        "\$one_of" in value -> played((value["\$one_of"] as List<*>)[0])
        "\$repeat" in value -> (value["\$repeat"] as String).repeat((value["times"] as Long).toInt())
        "\$nest" in value -> (1 until (value["\$nest"] as Long)).fold(emptyList<Any?>()) { nested, _ -> listOf(nested) }
        else -> value.mapValues { played(it.value) }.filterValues { it !== Absent }
    }

    private fun sum(terms: Any?): Long = (terms as List<*>).sumOf { (played(it) as Number).toLong() }

    private fun isOf(type: Any?, value: Any?): Boolean = when (type) {
        "int" -> value is Long && value in -INTEGER_MAX..INTEGER_MAX
        "number" -> value is Number
        "string" -> value is String
        "ulid" -> value is String && Regex("[0-7][0-9A-HJKMNP-TV-Z]{25}").matches(value)
        "bool" -> value is Boolean
        "object" -> value is Map<*, *>
        "array" -> value is List<*>
        "any" -> value !== Absent
        else -> fail("no such type: $type")
    }

    /** Fails unless `actual` is what `pattern` describes; names met first here take the value that arrived. */
    fun match(pattern: Any?, actual: Any?, path: String = "$") {
        when (pattern) {
            is String -> {
                val name = if (pattern.startsWith("$$")) null else nameIn(pattern)
                if (name != null && name !in names) {
                    if (actual === Absent) fail("$path: missing")
                    names[name] = actual
                } else {
                    same(played(pattern), actual, path)
                }
            }
            is List<*> -> {
                if (actual !is List<*> || actual.size != pattern.size) fail("$path: $actual is no array of ${pattern.size}")
                pattern.forEachIndexed { i, entry -> match(entry, actual[i], "$path[$i]") }
            }
            is Map<*, *> -> record(fields(pattern)!!, actual, path)
            is Number -> if (actual !is Number || actual.toDouble() != pattern.toDouble()) fail("$path: expected $pattern, got $actual")
            else -> same(pattern, actual, path)
        }
    }

    private fun record(pattern: Fields, actual: Any?, path: String) {
        when {
            "\$any" in pattern -> {
                if (actual === Absent || !isOf(pattern["\$any"], actual)) fail("$path: $actual is no ${pattern["\$any"]}")
                (pattern["as"] as? String)?.let { names[it] = actual }
            }
            "\$opt" in pattern -> if (actual !== Absent) match(pattern["\$opt"], actual, path)
            "\$absent" in pattern -> if (actual !== Absent) fail("$path: must be missing, is $actual")
            "\$add" in pattern -> same(sum(pattern["\$add"]), actual, path)
            "\$range" in pattern -> {
                val (low, high) = (pattern["\$range"] as List<*>).map { (it as Number).toLong() }
                if (actual !is Long || actual !in low..high) fail("$path: $actual not in [$low, $high]")
            }
            "\$one_of" in pattern -> {
                val kept = HashMap(names)
                val fits = (pattern["\$one_of"] as List<*>).any {
                    try {
                        match(it, actual, path)
                        true
                    } catch (_: Failure) {
                        false
                    } finally {
                        names.clear()
                        names.putAll(kept)
                    }
                }
                if (!fits) fail("$path: $actual is none of ${pattern["\$one_of"]}")
            }
            "\$repeat" in pattern || "\$nest" in pattern -> same(played(pattern), actual, path)
            else -> {
                val object_ = fields(actual) ?: fail("$path: no object: $actual")
                for ((key, entry) in pattern) match(entry, if (key in object_) object_[key] else Absent, "$path.$key")
            }
        }
    }
}
