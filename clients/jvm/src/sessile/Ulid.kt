package sessile

/**
 * ULIDs: 48 bits of milliseconds and 80 of chance, 26 digits of Crockford's base 32, so that the order of names is the order of
 * making. Within one millisecond, or when the clock steps back, the last one is counted up. Source: the ULID specification.
 */
internal class Ulids(private val random: () -> Double) {
    private var lastMs = -1L
    private val chance = IntArray(16)

    fun next(nowMs: Long): String {
        if (nowMs > lastMs) {
            lastMs = nowMs
            for (i in chance.indices) chance[i] = (random() * 32).toInt() and 31
        } else {
            var i = chance.size - 1
            while (i >= 0 && chance[i] == 31) chance[i--] = 0
            if (i >= 0) chance[i]++ else lastMs++ // 2^80 ids in one millisecond: borrow from the next one
        }
        val out = StringBuilder(26)
        for (shift in 45 downTo 0 step 5) out.append(ULID_DIGITS[(lastMs shr shift).toInt() and 31])
        for (digit in chance) out.append(ULID_DIGITS[digit])
        return out.toString()
    }
}
