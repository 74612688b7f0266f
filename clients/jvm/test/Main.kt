package sessile.test

import java.io.File
import java.util.logging.Level
import java.util.logging.Logger
import kotlin.system.exitProcess

/** Runs tests one after the other and counts; a name that has none of the words that were asked for is left out. */
class Suite(private val words: List<String>) {
    private var passed = 0
    private val failed = ArrayList<String>()

    fun test(name: String, body: () -> Unit) {
        if (words.isNotEmpty() && words.none { it in name }) return
        try {
            body()
            passed++
        } catch (error: Throwable) {
            failed.add(name)
            System.err.println("not ok: $name\n  $error")
            generateSequence(error) { it.cause }.last().stackTrace.take(8).forEach { System.err.println("    at $it") }
        }
    }

    fun end() {
        println("[jvm] $passed passed, ${failed.size} failed")
        if (failed.isNotEmpty() || passed == 0) exitProcess(1)
    }
}

/** Held here: the JDK forgets loggers that nobody holds. */
private val LOGGER = Logger.getLogger("sessile")

/** `Main.kt CASES [WORD…]`: the protocol's cases, then what is this client's own. */
fun main(args: Array<String>) {
    LOGGER.level = Level.OFF // the cases go wrong on purpose
    val suite = Suite(args.drop(1))
    cases(File(args[0]), suite)
    own(suite)
    suite.end()
}
