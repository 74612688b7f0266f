package sessile

/**
 * Everything that can go wrong, as types:
 *
 *     SessileException      code, isRetryable
 *     ├── CommandException  the server refused a command (type, param, retryAfterMs)
 *     │   ├── GoneException … because the session is unknown, forbidden or deleted
 *     │   └── BusyException … because the branch already has an open answer or waits for tools
 *     ├── StoppedException  the connection ended for good (closeCode, httpStatus); trying again would not help
 *     ├── AnswerTimeoutException  no answer in the time that the caller gave; whether it took effect is unknown
 *     ├── ClosedException   the client was closed by its owner
 *     └── DecodeException   bytes that are no frame of this protocol
 *
 * The other codes have no type of their own: `expired` (a command waited for longer than the server remembers ids), `overflow` (a bound of
 * this client was reached), `storage` (the storage failed; the conversation goes on without it), `auth` (the key could not be had),
 * `interrupted`, `outcome_unknown`.
 */
open class SessileException(
    val code: String,
    message: String,
    val isRetryable: Boolean = false,
    cause: Throwable? = null,
) : RuntimeException(message, cause)

/** What the server says of an error (protocol, 7.1). */
class ErrorObject(
    /** As it came: fields that this version does not know are in it. */
    val raw: Map<String, Any?>,
) {
    val code: String get() = raw.text("code") ?: "unknown"
    val message: String get() = raw.text("message") ?: code
    val type: String? get() = raw.text("type")
    val param: String? get() = raw.text("param")
    val isRetryable: Boolean get() = raw["retryable"] == true
    val retryAfterMs: Long? get() = raw.number("retry_after_ms")

    override fun toString(): String = "$code: $message"
}

open class CommandException(val error: ErrorObject) : SessileException(error.code, error.message, error.isRetryable) {
    val type: String? get() = error.type
    val param: String? get() = error.param
    val retryAfterMs: Long? get() = error.retryAfterMs
}

class GoneException(error: ErrorObject) : CommandException(error)

class BusyException(error: ErrorObject) : CommandException(error)

class StoppedException(message: String, val closeCode: Int?, val httpStatus: Int?) : SessileException("stopped", message)

class AnswerTimeoutException(message: String) : SessileException("timeout", message, true)

class ClosedException : SessileException("closed", "The client was closed.")

/** `closeCode` is what the connection is closed with: 1007 for bytes that are not the encoding, 1002 for anything else. */
class DecodeException(message: String, val closeCode: Int = 1007) : SessileException("bad_frame", message)
