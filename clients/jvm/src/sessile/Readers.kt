package sessile

import kotlin.concurrent.withLock

/** Who draws a session: says what stands on the screen, so that nothing is stored as read before. */
class Screen internal constructor(private val session: Session, seen: Long) : AutoCloseable {
    private var drawn = seen
    private val watcher = Watcher({ drawn }).also { session.watch(it) }

    /** The view of that version (`View.version`, read before drawing) is on the screen. */
    fun shown(version: Long) = session.client.lock.withLock {
        if (version > drawn) drawn = version
        session.shown()
    }

    override fun close() = session.client.lock.withLock { session.unwatch(watcher) }
}

private const val UNREAD_MAX = 4096

/**
 * Events of a session for a thread that waits for them; it ends when the session is deleted. An event counts as shown when the next one
 * is asked for. A reader that falls behind by more than 4,096 events gets those, then a `SessileException` (`overflow`).
 */
class EventReader internal constructor(private val session: Session, private val client: SessileClient) :
    Iterator<Map<String, Any?>>, Iterable<Map<String, Any?>>, AutoCloseable {
    private val queue = ArrayDeque<Pair<Fields, Long>>()
    private var handed: Long? = null
    private var hasOverflown = false
    private var isClosed = false
    private val watcher = Watcher({ (handed ?: queue.firstOrNull()?.second ?: Long.MAX_VALUE) - 1 }, { frame, version -> took(frame, version) }).also { session.watch(it) }

    private fun took(frame: Fields, version: Long) {
        if (queue.size >= UNREAD_MAX) hasOverflown = true
        if (!hasOverflown) queue.addLast(Pair(frame, version))
    }

    override fun iterator(): Iterator<Map<String, Any?>> = this

    /** Waits for the next event. False: there will be none. */
    override fun hasNext(): Boolean = client.lock.withLock {
        handed = null
        session.shown()
        while (queue.isEmpty()) {
            if (isClosed) return false
            if (hasOverflown) throw SessileException("overflow", "More than $UNREAD_MAX events were not read in time.", true).also { close() }
            if (session.phase == SessionPhase.DELETED) {
                close()
                return false
            }
            (session.error ?: client.whyStopped())?.let { throw it.also { close() } }
            client.await()
        }
        true
    }

    override fun next(): Map<String, Any?> = client.lock.withLock {
        if (!hasNext()) throw NoSuchElementException("The session was deleted, or the reader closed.")
        val (frame, version) = queue.removeFirst()
        handed = version
        frame
    }

    override fun close() = client.lock.withLock {
        if (isClosed) return@withLock
        isClosed = true
        handed = null
        queue.clear()
        session.unwatch(watcher)
        session.close()
    }
}
