package sessile

import java.util.concurrent.Executor

/** Runs tasks one after the other, on whatever thread of `executor` is free. A task that throws hinders none behind it. */
internal class InOrder(private val executor: Executor) : Executor {
    private val tasks = ArrayDeque<Runnable>()
    private var isRunning = false

    override fun execute(task: Runnable) {
        synchronized(tasks) {
            tasks.addLast(task)
            if (isRunning) return
            isRunning = true
        }
        executor.execute(::run)
    }

    private fun run() {
        while (true) {
            val task = synchronized(tasks) {
                tasks.removeFirstOrNull() ?: run {
                    isRunning = false
                    return
                }
            }
            try {
                task.run()
            } catch (error: Throwable) {
                uncaught(error)
            }
        }
    }
}

/** Where listeners are called (`callbacks`), in order, one at a time; and where what may wait is run (`workers`). */
internal class Threads(val scheduler: Scheduler, val workers: Executor, callbacks: Executor?, private val onClose: () -> Unit) : AutoCloseable {
    val callbacks: Executor = InOrder(callbacks ?: workers)
    val storage: Executor = InOrder(workers)

    override fun close() = onClose()
}
