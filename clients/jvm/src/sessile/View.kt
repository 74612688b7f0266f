package sessile

/** An index of a part beyond it is nonsense, and would take the memory that it names. */
private const val PARTS_MAX = 4096

/** An image is one character in the texts that retractions count in. */
private const val IMAGE_TEXT = "\uFFFC"

/**
 * A conversation as a reader sees it: what the events of a log, or a snapshot and its tail, add up to.
 *
 * Items form a tree, because an edit and a regenerated answer are siblings; `thread` lays one branch out for showing. An answer that
 * has no item yet stands in the tree under its response id, so that it has a place before its first word.
 *
 * Invariants: applying the events 1…n, and loading a snapshot at k and applying k+1…n, show the same. Order and exactly-once are the
 * core's. Any thread may read: what is returned is never changed afterwards.
 */
class View internal constructor() {
    private val itemsById = LinkedHashMap<String, Item>()
    private val responsesById = LinkedHashMap<String, ResponseRecord>()
    private val reviewsById = LinkedHashMap<String, ReviewRecord>()
    private val feedbackByKey = LinkedHashMap<String, FeedbackRecord>()
    private val compactionsById = LinkedHashMap<String, CompactionRecord>()
    private val pinnedIds = LinkedHashSet<String>()
    private val approvalsByCall = LinkedHashMap<String, ApprovalRecord>()
    private val children = HashMap<String?, ArrayList<String>>()

    /** Which response an item belongs to. */
    private val owner = LinkedHashMap<String, String>()
    private var headId: String? = null
    private var newest: String? = null
    private var info = HashMap<String, Any?>()
    private var isGone = false
    private var changes = 0L

    /** Goes up with every change. */
    val version: Long @Synchronized get() = changes

    /** In log order. */
    val items: List<Item> @Synchronized get() = ArrayList(itemsById.values)

    /** The newest item in log order. */
    val head: String? @Synchronized get() = headId
    val responses: List<ResponseRecord> @Synchronized get() = ArrayList(responsesById.values)

    /** Responses without an end, oldest first. */
    val open: List<ResponseRecord> @Synchronized get() = openNow()
    val reviews: List<ReviewRecord> @Synchronized get() = ArrayList(reviewsById.values)
    val feedback: List<FeedbackRecord> @Synchronized get() = ArrayList(feedbackByKey.values)

    /** Summaries in force, the oldest first. */
    val compactions: List<CompactionRecord> @Synchronized get() = ArrayList(compactionsById.values)

    /** Ids of items that the model reads word by word, whatever is summarised. */
    val pinned: Set<String> @Synchronized get() = LinkedHashSet(pinnedIds)

    /** Calls that wait for `Session.approve`, as far as this reader saw them asked for. */
    val approvals: List<ApprovalRecord> @Synchronized get() = ArrayList(approvalsByCall.values)
    val title: String? @Synchronized get() = info.text("title")
    val model: String? @Synchronized get() = info.text("model")
    val instructions: String? @Synchronized get() = info.text("instructions")
    val metadata: Map<String, Any?> @Synchronized get() = info.obj("metadata").orEmpty()
    val isDeleted: Boolean @Synchronized get() = isGone

    @Synchronized
    fun item(id: String): Item? = itemsById[id]

    @Synchronized
    fun response(id: String): ResponseRecord? = responsesById[id]

    /** Which response made an item. */
    @Synchronized
    fun responseOf(itemId: String): ResponseRecord? = owner[itemId]?.let { responsesById[it] }

    /** An answer as shown. */
    @Synchronized
    fun text(responseId: String): String = responsesById[responseId]?.output.orEmpty().joinToString("") { itemsById[it]?.text ?: "" }

    /** The items from the root to the head. */
    @Synchronized
    fun branch(): List<String> {
        val path = LinkedHashSet<String>()
        var id = headId
        while (id != null && path.add(id)) id = itemsById[id]?.parentId
        return path.toList().asReversed()
    }

    /** The branch that `tip` is on, down to its newest end; without a tip, or with one that is unknown, that of what came last. */
    @JvmOverloads
    @Synchronized
    fun thread(tip: String? = null): List<Entry> {
        val from = if (tip != null && isPlaced(tip)) tip else newest
        val path = LinkedHashSet<String>()
        var up = from
        while (up != null && path.add(up)) up = parentOf(up)
        val ids = LinkedHashSet(path.toList().asReversed())
        var below = children[from]?.lastOrNull()
        while (below != null && ids.add(below)) below = children[below]?.lastOrNull()
        return ids.map { entry(it) }
    }

    // -- states

    /** Begin anew from a snapshot. What is known of responses that ended meanwhile is kept as far as their items are there. */
    @Synchronized
    internal fun load(state: Fields) {
        val earlier = LinkedHashMap(responsesById)
        for (each in listOf(itemsById, responsesById, reviewsById, feedbackByKey, compactionsById, approvalsByCall, children, owner)) each.clear()
        pinnedIds.clear()
        headId = null
        newest = null
        settings(state)
        for (told in state.objects("feedback")) rated(told)
        for (told in state.objects("reviews")) review(told, told["appealed"] == true, told.text("outcome"))
        val open = state.objects("open")
        val drafts = open.flatMap { each -> each.objects("output").map { it to each.text("response_id") } }
        for (each in open) {
            val output = each.objects("output")
            val parentId = if ("parent_id" in each) each.text("parent_id") else output.firstOrNull()?.text("parent_id") ?: state.text("head")
            respond(each.text("response_id") ?: continue) { it.with(parentId = parentId, output = output.mapNotNull { item -> item.text("id") }) }
        }
        // The state has what is still being written apart; the time of making puts it back into the order of the log.
        val known = drafts.mapTo(HashSet()) { it.first["id"] }
        val finished = state.objects("items").filter { it["id"] !in known }.map { it to null }
        for ((item, by) in (finished + drafts).sortedWith { a, b -> madeAt(a.first).compareTo(madeAt(b.first)) }) put(item, by)
        for (stored in state.objects("responses").map { recordOf(it) }) earlier[stored.id] = stored
        for (each in state.objects("queued")) enqueue(each.text("response_id") ?: continue, each.obj("item"))
        state.text("head")?.let { if (it in itemsById) headId = it }
        loadEnded(earlier, state)
        for (told in state.objects("compactions")) compact(told)
        (state["pinned"] as? List<*>).orEmpty().filterIsInstanceTo(pinnedIds)
        for (told in state.objects("approvals")) approval(told)
        // An answer without words has just begun, so it is younger than any item.
        val begun = openNow().lastOrNull { it.status != ResponseStatus.QUEUED && it.output.isEmpty() }?.id
        newest = state.text("newest")?.takeIf { isPlaced(it) } ?: begun ?: headId
        changes++
    }

    private fun madeAt(item: Fields): Long = item.number("created_at") ?: 0

    /** Responses that have ended: what their items tell, and what was known of them before (usage, reason, error). */
    private fun loadEnded(earlier: Map<String, ResponseRecord>, state: Fields) {
        val outputs = LinkedHashMap<String, List<String>>()
        val madeBy = state.obj("made_by").orEmpty()
        for (id in itemsById.keys) {
            val made = madeBy.text(id)
            if (made != null && made !in responsesById) outputs[made] = outputs[made].orEmpty() + id
        }
        for (record in earlier.values) {
            if (record.id in responsesById || record.id in outputs) continue
            val output = record.output.filter { it in itemsById }
            val isNowhere = record.parentId != null && record.parentId !in itemsById
            if (isNowhere || (output.isEmpty() && (record.status.isOpen || record.output.isNotEmpty()))) continue
            outputs[record.id] = output
        }
        for ((id, output) in outputs) {
            val known = earlier[id]
            val answer = state.obj("answers")?.obj(id).orEmpty()
            val told = state.obj("incomplete")?.text(id)
            val last = itemsById[output.lastOrNull()]
            val guess = statusOf(answer.text("status"))
                ?: if (last?.status == "completed") ResponseStatus.COMPLETED else ResponseStatus.INCOMPLETE
            val status = if (told != null) ResponseStatus.INCOMPLETE else known?.status?.takeIf { !it.isOpen } ?: guess
            val parentId = if (output.isEmpty()) known?.parentId else itemsById[output[0]]?.parentId ?: known?.parentId
            respond(id, known) { it.with(status = status, parentId = parentId, output = output, reason = told ?: it.reason, told = answer) }
            for (itemId in output) owner[itemId] = id
        }
    }

    /** What `load` takes: as a server's snapshot, and besides what that leaves out (how responses ended, what came last). */
    @Synchronized
    internal fun state(): Fields {
        val (queued, begun) = openNow().partition { it.status == ResponseStatus.QUEUED }
        return info + mapOf(
            "items" to itemsById.values.map { it.raw },
            "open" to begun.map { each ->
                mapOf("response_id" to each.id, "parent_id" to each.parentId, "output" to each.output.mapNotNull { itemsById[it]?.raw })
            },
            "queued" to queued.map { mapOf("response_id" to it.id, "item" to it.waiting?.raw) },
            "made_by" to LinkedHashMap(owner),
            "head" to headId,
            "newest" to newest,
            "responses" to responsesById.values.filter { !it.status.isOpen }.map { it.stored() },
            "pinned" to pinnedIds.toList(),
            "approvals" to approvalsByCall.values.map { it.raw },
            "feedback" to feedbackByKey.values.map { it.raw },
            "reviews" to reviewsById.values.map { it.raw },
            "compactions" to compactionsById.values.map { it.raw },
        )
    }

    // -- events

    /** `at`: when it happened, in ms, as the frame says. */
    @Synchronized
    internal fun apply(event: Fields, at: Long?) {
        changes++
        when (val type = event.text("type")) {
            "session.created", "session.updated" -> settings(event.obj("info") ?: event)
            "session.deleted" -> isGone = true
            "item.created" -> event.obj("item")?.let { put(it, null) }
            "context.compacted" -> compact(event)
            "context.compaction_undone" -> uncompact(event.text("compaction_id"))
            "item.pinned" -> event.text("item_id")?.let { if (event["pinned"] == true) pinnedIds.add(it) else pinnedIds.remove(it) }
            "content.retracted" -> when (event["category"]) {
                "compaction_voided" -> uncompact(event.text("item_id"))
                "item_deleted" -> remove(event.text("item_id"))
                else -> retract(event)
            }
            "review.appealed" -> review(event, true, null)
            "review.decided" -> review(event, null, event.text("outcome"))
            "feedback.updated" -> rated(event)
            "tool_call.approval_requested" -> approval(event)
            "tool_call.approval_decided" -> approvalsByCall.remove(event.text("call_id"))
            else -> event.text("response_id")?.let { ofResponse(type, it, event, at) }
        }
    }

    private fun ofResponse(type: String?, id: String, event: Fields, at: Long?) {
        val body = event.obj("response").orEmpty()
        when (type) {
            "response.queued" -> enqueue(id, event.obj("item"))
            "response.created" -> {
                val parentId = if ("parent_id" in body) body.text("parent_id") else headId
                respond(id) { it.with(status = ResponseStatus.IN_PROGRESS, parentId = parentId, told = body) }
            }
            "response.output_item.added", "response.output_item.done" -> event.obj("item")?.let { put(it, id) }
            "response.content_part.added", "response.content_part.done" -> part(event) { event.obj("part").orEmpty() }
            "response.output_text.delta" -> words(event, "output_text", "text") { it + event.text("delta") }
            "response.output_text.done" -> words(event, "output_text", "text") { event.text("text") ?: it }
            "response.refusal.delta" -> words(event, "refusal", "refusal") { it + event.text("delta") }
            "response.refusal.done" -> words(event, "refusal", "refusal") { event.text("refusal") ?: it }
            "response.function_call_arguments.delta" -> arguments(event) { it + event.text("delta") }
            "response.function_call_arguments.done" -> arguments(event) { event.text("arguments") ?: it }
            "response.completed", "response.incomplete", "response.failed" ->
                end(id, statusOf(type.removePrefix("response."))!!, body, at)
            "context.fitted" -> respond(id) { it.with(dropped = event.number("dropped")) }
        }
    }

    private fun settings(told: Fields) {
        for (key in listOf("title", "metadata", "model", "instructions", "tools")) if (key in told) info[key] = told[key]
        // Absent: the session has none of its own any more.
        for (key in listOf("temperature", "max_output_tokens", "context_policy", "compact_threshold", "knowledge")) info[key] = told[key]
    }

    private fun rated(told: Fields) {
        val responseId = told.text("response_id") ?: return
        val key = "$responseId ${told.text("by")}"
        feedbackByKey.remove(key) // the newest stands last
        if (told.text("rating") != null) feedbackByKey[key] = FeedbackRecord(told)
    }

    private fun compact(told: Fields) {
        compactionsById[told.obj("summary")?.text("id") ?: return] = CompactionRecord(told)
    }

    private fun uncompact(id: String?) {
        compactionsById.remove(id)
    }

    private fun approval(told: Fields) {
        val callId = told.text("call_id") ?: return
        approvalsByCall[callId] = ApprovalRecord(told)
    }

    private fun enqueue(responseId: String, item: Fields?) =
        respond(responseId) { it.with(status = ResponseStatus.QUEUED, waiting = item?.let { itemOf(it) } ?: it.waiting) }

    private fun end(id: String, status: ResponseStatus, body: Fields, at: Long?) {
        for (item in body.objects("output")) put(item, id)
        val known = responsesById[id]
        val parentId = if (known != null) known.parentId else body.text("parent_id") ?: headId
        respond(id) {
            it.with(
                status = status,
                parentId = parentId,
                reason = body.obj("incomplete_details")?.text("reason") ?: it.reason,
                error = body.obj("error")?.let { ErrorObject(it) } ?: it.error,
                told = if (at == null) body else body + ("completed_at" to at),
            )
        }
        val left = if (status == ResponseStatus.COMPLETED) "completed" else "incomplete"
        for (itemId in responsesById[id]!!.output) change(itemId) { if (it.status == "in_progress") it.with("status" to left) else it }
        for (call in approvalsByCall.values.filter { it.responseId == id && status != ResponseStatus.COMPLETED }) approvalsByCall.remove(call.callId)
        // Cancelled while it waited: it never had a place in the tree.
        if (known?.status == ResponseStatus.QUEUED) unplace(id)
    }

    private fun retract(event: Fields) {
        val left = fun(text: String): String {
            val points = text.codePointCount(0, text.length)
            val start = (event.number("start") ?: 0).coerceIn(0, points.toLong()).toInt()
            val end = (event.number("end") ?: 0).coerceIn(start.toLong(), points.toLong()).toInt()
            val from = text.offsetByCodePoints(0, start)
            return text.substring(0, from) + (event.text("replacement") ?: "") + text.substring(text.offsetByCodePoints(from, end - start))
        }
        if (itemsById[event.text("item_id")]?.type == "function_call") return arguments(event, left)
        part(event) {
            val key = if (it["type"] == "refusal") "refusal" else "text"
            when {
                it["type"] != "input_image" -> it + (key to left(it.text(key) ?: ""))
                left(IMAGE_TEXT) == IMAGE_TEXT -> it
                else -> mapOf("type" to "input_image")
            }
        }
    }

    /** `isAppealed` null: as it was. */
    private fun review(told: Fields, isAppealed: Boolean?, outcome: String?) {
        val id = told.text("review_id") ?: return
        val appealed = isAppealed ?: reviewsById[id]?.isAppealed ?: false
        reviewsById[id] = ReviewRecord(told + mapOf("appealed" to appealed, "outcome" to outcome))
    }

    // -- the tree

    private fun openNow(): List<ResponseRecord> = responsesById.values.filter { it.status.isOpen }

    private fun put(raw: Fields, responseId: String?) {
        val id = raw.text("id") ?: return
        val before = itemsById[id]
        val response = responseId?.let { responsesById[it] }
        var item = itemOf(raw)
        if ("parent_id" !in raw) {
            item = item.with("parent_id" to if (before != null) before.parentId else response?.output?.lastOrNull() ?: response?.parentId ?: headId)
        }
        itemsById[id] = item
        if (before == null) {
            headId = id
            newest = id
            if (responseId != null) unplace(responseId)
            val below = below(item.parentId)
            val young = below.indexOfFirst { it !in itemsById && responsesById[it]?.status?.isOpen == true }
            below.add(if (young < 0) below.size else young, id)
        }
        (responseId ?: raw.text("response_id"))?.let { owner[id] = it }
        if (responseId != null && response?.output?.contains(id) != true) respond(responseId) { it.with(output = it.output + id) }
    }

    /** Takes an item out; what stood below it stands below its parent. */
    private fun remove(id: String?) {
        val item = itemsById.remove(id) ?: return
        val parentId = item.parentId
        val below = children.remove(item.id).orEmpty()
        val beside = below(parentId)
        val at = beside.indexOf(item.id)
        if (at >= 0) beside.removeAt(at)
        beside.addAll(if (at < 0) beside.size else at, below)
        for (each in below) change(each) { it.with("parent_id" to parentId) }
        for (response in responses) {
            if (response.parentId == id) respond(response.id) { it.with(parentId = parentId) }
            if (item.id in response.output) respond(response.id) { it.with(output = it.output - item.id) }
        }
        owner.remove(id)
        pinnedIds.remove(id)
        if (headId == id) headId = parentId
        if (newest == id) newest = parentId
    }

    private fun respond(id: String, known: ResponseRecord? = null, how: (ResponseRecord) -> ResponseRecord) {
        val before = responsesById[id]
        val after = how(before ?: known ?: ResponseRecord(id))
        responsesById[id] = after
        val isStarted = after.status != ResponseStatus.QUEUED && (before == null || before.status == ResponseStatus.QUEUED)
        if (isStarted && after.output.isEmpty()) {
            below(after.parentId).add(id)
            newest = id
        }
    }

    /** Takes the stand-in of a response without items out of the tree. */
    private fun unplace(responseId: String) {
        children[responsesById[responseId]?.parentId]?.remove(responseId)
        if (newest == responseId) newest = headId
    }

    private fun below(parentId: String?): ArrayList<String> = children.getOrPut(parentId) { ArrayList() }

    private fun isPlaced(id: String): Boolean = id in itemsById || responsesById[id].let { it != null && it.status != ResponseStatus.QUEUED }

    private fun parentOf(id: String): String? = (itemsById[id] ?: return responsesById[id]?.parentId).parentId

    private fun entry(id: String): Entry {
        val item = itemsById[id]
        val response = if (item == null) responsesById[id] else owner[id]?.let { responsesById[it] }
        val siblings = ArrayList(children[parentOf(id)] ?: listOf(id))
        return Entry(id, parentOf(id), item, response, siblings, siblings.indexOf(id))
    }

    private fun change(id: String?, how: (Item) -> Item) {
        val item = itemsById[id] ?: return
        itemsById[item.id] = how(item)
    }

    private fun arguments(event: Fields, how: (String) -> String) =
        change(event.text("item_id")) { it.with("arguments" to how(it.arguments ?: "")) }

    private fun words(event: Fields, type: String, key: String, how: (String) -> String) =
        part(event) { it + mapOf("type" to type, key to how(it.text(key) ?: "")) }

    private fun part(event: Fields, how: (Fields) -> Fields) = change(event.text("item_id")) { item ->
        val index = (event.number("content_index") ?: 0).toInt()
        if (index !in 0..PARTS_MAX) return@change item
        val content = ArrayList(item.content)
        while (content.size <= index) content.add(mapOf("type" to "output_text", "text" to ""))
        content[index] = how(content[index])
        item.with("content" to content)
    }
}
