package sessile

import java.util.concurrent.CompletableFuture
import java.util.concurrent.Flow
import java.util.function.BiConsumer
import java.util.function.Consumer
import kotlin.concurrent.withLock

/** What takes a reader from the text that they have to the text that stands: `delta` is appended. */
class Piece internal constructor(
    val delta: String,
    val text: String,
    /** What was shown has changed (a retraction, a reset): `delta` is the whole text and replaces it. */
    val isRestarted: Boolean,
)

/**
 * One answer, as text that can be asked for at any time, before, while and after it is written.
 *
 * It follows the view, not the frames, so replay, snapshot, reset and retraction need no care here. A reader that is slower than the
 * answer gets larger pieces. The session is open while it is read.
 */
class Answer internal constructor(
    val session: Session,
    private val client: SessileClient,
    val responseId: String,
    /** Where in the log it was accepted. */
    private val offset: Long,
) {
    /** null until its first event has come. */
    val response: ResponseRecord? get() = session.view.response(responseId)
    val text: String get() = session.view.text(responseId)

    /** Completes with how it ended: completed, incomplete or failed. */
    fun done(): CompletableFuture<ResponseRecord> {
        session.open()
        return session.until { if (isOver()) outcome() else null }.thenApply { it.getOrThrow() }.whenComplete { _, _ -> session.close() }
    }

    /** Hands every piece to `show`, on this thread, which waits for them; returns how the answer ended. */
    fun read(show: Consumer<Piece>): ResponseRecord {
        pieces().use { pieces ->
            for (piece in pieces) show.accept(piece)
            return outcome().getOrThrow()
        }
    }

    /** The pieces for a thread that waits for them. At its end it closes itself; who leaves before closes it. */
    fun pieces(): PieceReader = PieceReader(Pieces(this), client)

    /**
     * Calls `show` with every piece and then `end` with how it ended, or with why that will not be known (`SessileException`); one of its
     * two arguments is null. On the client's thread for callbacks, in order.
     */
    @JvmOverloads
    fun onPiece(show: Consumer<Piece>, end: BiConsumer<ResponseRecord?, Throwable?>? = null): Registration {
        val each = PieceListener(this, client, show, end)
        each.start()
        return each
    }

    /** The pieces as a `Flow.Publisher`, for whoever has a library for those. A subscriber that asks for few gets larger ones. */
    fun publisher(): Flow.Publisher<Piece> = Flow.Publisher { PiecePublication(this, client, it).start() }

    /** See `Session.steer`. */
    fun steer(content: Any): CompletableFuture<Sent> = session.steer(responseId, content)

    /** See `Session.cancel`. */
    fun cancel(): CompletableFuture<Boolean> = session.cancel(responseId)

    internal fun isOver(): Boolean = client.lock.withLock {
        val response = response
        if (response != null) return !response.status.isOpen
        // The log is past the point of its beginning, and it is not in the view: it ended while we were away.
        val isPast = offset > 0 && (session.position?.offset ?: 0) >= offset
        session.phase == SessionPhase.DELETED || (session.phase == SessionPhase.LIVE && isPast)
    }

    internal fun outcome(): Result<ResponseRecord> {
        val response = response ?: return Result.failure(
            SessileException("outcome_unknown", "The answer ended while nobody read; its items are in the view."),
        )
        return Result.success(response)
    }
}

/** Where one reader of an answer stands. Under the client's lock. */
internal class Pieces(val answer: Answer) {
    private var shown = ""
    private var handed: Long? = null
    private var taken = answer.session.view.version
    private var isClosed = false
    private val watcher = Watcher({ if (handed == null && answer.text == shown) Long.MAX_VALUE else taken })

    init {
        answer.session.client.lock.withLock {
            answer.session.watch(watcher)
            answer.session.open()
        }
    }

    /** The next piece; null: nothing is new. What was handed out before counts as shown. */
    fun take(): Piece? {
        handed?.let { taken = it }
        handed = null
        val text = answer.text
        if (text == shown) {
            answer.session.shown()
            return null
        }
        val piece = if (text.startsWith(shown)) Piece(text.substring(shown.length), text, false) else Piece(text, text, true)
        shown = text
        handed = answer.session.view.version
        answer.session.shown()
        return piece
    }

    /** Why no more will come, though the answer has not ended. */
    fun trouble(): SessileException? = answer.session.error ?: answer.session.client.whyStopped()

    fun close() {
        if (isClosed) return
        isClosed = true
        answer.session.unwatch(watcher)
        answer.session.close()
    }
}

/** Pieces of an answer, read by a thread that waits. A piece counts as shown when the next one is asked for. */
class PieceReader internal constructor(private val pieces: Pieces, private val client: SessileClient) :
    Iterator<Piece>, Iterable<Piece>, AutoCloseable {
    private var ready: Piece? = null
    private var isEnded = false

    override fun iterator(): Iterator<Piece> = this

    /** Waits. False: the answer has ended, and `Answer.response` says how. */
    override fun hasNext(): Boolean = client.lock.withLock {
        while (ready == null) {
            if (isEnded) return false
            ready = pieces.take()
            if (ready != null) break
            if (pieces.answer.isOver()) {
                close()
                return false
            }
            pieces.trouble()?.let { throw it.also { close() } }
            client.await()
        }
        true
    }

    override fun next(): Piece {
        if (!hasNext()) throw NoSuchElementException("The answer has ended.")
        return ready!!.also { ready = null }
    }

    override fun close() = client.lock.withLock {
        isEnded = true
        pieces.close()
    }
}

/** Looks for pieces whenever the session has changed, on the client's thread for callbacks. */
internal abstract class PieceLoop(protected val answer: Answer, protected val client: SessileClient) : Registration {
    protected val pieces = Pieces(answer)
    private var changes: Registration? = null
    private var isOver = false

    open fun start() {
        changes = answer.session.onChange { look() }
        client.threads.callbacks.execute(::look)
    }

    protected open fun mayShow(): Boolean = true

    protected abstract fun show(piece: Piece)

    protected abstract fun end(record: ResponseRecord?, error: Throwable?)

    protected fun look() {
        while (true) {
            val (piece, outcome) = client.lock.withLock {
                if (isOver) return
                val piece = if (mayShow()) pieces.take() else return
                val trouble = pieces.trouble()
                val outcome = when {
                    piece != null -> null
                    answer.isOver() -> answer.outcome()
                    trouble != null -> Result.failure(trouble)
                    else -> return
                }
                Pair(piece, outcome)
            }
            if (piece != null) {
                show(piece)
            } else {
                close()
                return end(outcome!!.getOrNull(), outcome.exceptionOrNull())
            }
        }
    }

    override fun close() {
        client.lock.withLock {
            isOver = true
            changes?.close()
            pieces.close()
        }
    }
}

private class PieceListener(
    answer: Answer,
    client: SessileClient,
    private val shown: Consumer<Piece>,
    private val ended: BiConsumer<ResponseRecord?, Throwable?>?,
) : PieceLoop(answer, client) {
    override fun show(piece: Piece) = shown.accept(piece)

    override fun end(record: ResponseRecord?, error: Throwable?) {
        ended?.accept(record, error)
    }
}

private class PiecePublication(answer: Answer, client: SessileClient, private val subscriber: Flow.Subscriber<in Piece>) :
    PieceLoop(answer, client), Flow.Subscription {
    private var demand = 0L
    private var lastText = ""

    override fun start() {
        subscriber.onSubscribe(this)
        super.start()
    }

    override fun request(n: Long) {
        if (n <= 0) {
            close()
            return client.threads.callbacks.execute { subscriber.onError(IllegalArgumentException("request($n): must be above 0")) }
        }
        client.lock.withLock { demand = if (Long.MAX_VALUE - demand < n) Long.MAX_VALUE else demand + n }
        client.threads.callbacks.execute(::look)
    }

    override fun cancel() = close()

    override fun mayShow(): Boolean = demand > 0 || answer.isOver() && answer.text == lastText

    override fun show(piece: Piece) {
        client.lock.withLock {
            demand--
            lastText = piece.text
        }
        subscriber.onNext(piece)
    }

    override fun end(record: ResponseRecord?, error: Throwable?) = if (error == null) subscriber.onComplete() else subscriber.onError(error)
}
