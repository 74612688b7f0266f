package sessile

import java.net.URI
import java.time.Duration
import java.util.concurrent.CompletableFuture
import java.util.concurrent.CompletionException
import java.util.concurrent.ExecutionException
import java.util.concurrent.TimeUnit
import java.util.concurrent.TimeoutException
import java.util.logging.Level
import java.util.logging.Logger

/** Where to begin: `Sessile.builder("https://chat.example").auth(…).build()` is a client. */
object Sessile {
    /** `url`: where the server is, `https://host`, or the full `wss://host/v1/ws`. */
    @JvmStatic
    fun builder(url: String): SessileClient.Builder = SessileClient.Builder(url)

    /** Waits for a future, at most so long (null: however long); throws what it failed with, as it is. */
    @JvmStatic
    @JvmOverloads
    fun <T> await(future: CompletableFuture<T>, limit: Duration? = null): T {
        try {
            return if (limit == null) future.get() else future.get(limit.toMillis(), TimeUnit.MILLISECONDS)
        } catch (error: ExecutionException) {
            var cause = error.cause
            while (cause is CompletionException && cause.cause != null) cause = cause.cause
            throw cause ?: error
        } catch (_: TimeoutException) {
            throw AnswerTimeoutException("Not done in ${limit?.toMillis()} ms.")
        } catch (error: InterruptedException) {
            throw interrupted(error)
        }
    }

    internal fun interrupted(error: InterruptedException): SessileException {
        Thread.currentThread().interrupt()
        return SessileException("interrupted", "The thread was interrupted while it waited.", true, error)
    }

    internal fun waitFor(future: CompletableFuture<*>, limit: Duration) {
        try {
            await(future, limit)
        } catch (error: SessileException) {
            Logger.getLogger("sessile").log(Level.WARNING, "The storage was not written in time: {0}", error.message)
        }
    }

    internal fun webSocketUrl(url: String): URI {
        val (scheme, rest) = Regex("^(https?|wss?)://(.+)$").find(url)?.destructured
            ?: throw SessileException("bad_url", "Not a URL of a server (https://host or wss://host/v1/ws): $url")
        val secure = scheme == "https" || scheme == "wss"
        val path = if (scheme.startsWith("http")) rest.trimEnd('/') + "/v1/ws" else rest
        return URI.create((if (secure) "wss://" else "ws://") + path)
    }
}
