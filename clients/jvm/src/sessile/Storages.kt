package sessile

import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.net.URLEncoder

/**
 * A folder with a file for each key, for one process at a time: on Android `File(context.filesDir, "sessile")`. A file is written
 * beside the old one, forced to the disk and then put in its place, so that a kill leaves the old or the new, never half.
 */
class FileStorage(private val folder: File) : Storage {
    private fun file(key: String): File = File(folder, URLEncoder.encode(key, "UTF-8").replace("*", "%2A").replace(".", "%2E"))

    override fun read(key: String): String? {
        val file = file(key)
        return if (file.exists()) file.readText() else null
    }

    override fun write(key: String, value: String) {
        if (!folder.isDirectory && !folder.mkdirs() && !folder.isDirectory) throw IOException("$folder cannot be made")
        val file = file(key)
        val beside = File(folder, file.name + ".new")
        FileOutputStream(beside).use {
            it.write(value.toByteArray())
            it.fd.sync()
        }
        if (!beside.renameTo(file)) throw IOException("$beside could not be renamed to ${file.name}")
    }

    override fun remove(key: String) {
        val file = file(key)
        if (!file.delete() && file.exists()) throw IOException("$file could not be deleted")
    }
}

/**
 * Reads and writes of a storage, away from the client's lock and in order. Of several writes to one key that wait, the newest is
 * done; a read sees what waits.
 */
internal class StorageQueue(private val storage: Storage?, private val prefix: String, private val threads: Threads, private val failed: (SessileException) -> Unit) {
    private val waiting = LinkedHashMap<String, String?>()

    val isKept: Boolean get() = storage != null

    fun load(key: String, use: (String?) -> Unit) {
        if (storage == null) return use(null)
        threads.storage.execute {
            val value = try {
                storage.read(prefix + key)
            } catch (error: Exception) {
                failed(SessileException("storage", "Reading $key failed: $error", false, error))
                null
            }
            use(value)
        }
    }

    /** null removes it. */
    fun store(key: String, text: String?) {
        if (storage == null) return
        synchronized(waiting) {
            val isQueued = key in waiting
            waiting[key] = text
            if (isQueued) return
        }
        threads.storage.execute {
            val newest = synchronized(waiting) { waiting.remove(key) }
            try {
                if (newest == null) storage.remove(prefix + key) else storage.write(prefix + key, newest)
            } catch (error: Exception) {
                failed(SessileException("storage", "Writing $key failed: $error", false, error))
            }
        }
    }

    /** Calls `done` when all that was asked for before is kept. */
    fun whenStored(done: () -> Unit) = threads.storage.execute(done)
}
