package sessile

/** How an answer stands. */
enum class ResponseStatus {
    QUEUED, IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED;

    /** Without an end yet. */
    val isOpen: Boolean get() = this == QUEUED || this == IN_PROGRESS
}

/** What one side contributed. Never changed in place: another object stands for it after a change. */
class Item internal constructor(
    /** As it came: fields that this version does not know are in it. */
    val raw: Map<String, Any?>,
) {
    val id: String get() = raw.text("id") ?: ""
    val parentId: String? get() = raw.text("parent_id")

    /** `message`, `function_call` or `function_call_output`. */
    val type: String get() = raw.text("type") ?: "message"
    val role: String? get() = raw.text("role")
    val status: String? get() = raw.text("status")
    val createdAt: Long get() = raw.number("created_at") ?: 0

    /** The parts of a message. */
    val content: List<Map<String, Any?>> get() = raw.objects("content")

    /** The words of a message, refusals included. */
    val text: String
        get() = content.filter { it.text("type") != "input_passage" }.joinToString("") { it.text("text") ?: it.text("refusal") ?: "" }

    /** Of a `function_call`: what is called, with what (JSON), and the id that its output names. */
    val name: String? get() = raw.text("name")
    val arguments: String? get() = raw.text("arguments")
    val callId: String? get() = raw.text("call_id")

    internal fun with(vararg changed: Pair<String, Any?>): Item = Item(raw + changed)
}

/** One answer. */
class ResponseRecord internal constructor(
    val id: String,
    val status: ResponseStatus = ResponseStatus.IN_PROGRESS,
    val parentId: String? = null,
    /** Ids of its items, in order. */
    val output: List<String> = emptyList(),
    val model: String? = null,
    val createdAt: Long? = null,
    val completedAt: Long? = null,
    /** `input_tokens`, `output_tokens` and so on, once it has ended. */
    val usage: Map<String, Any?>? = null,
    /** Why it is incomplete: `cancelled`, `max_output_tokens`, `content_filter`, … */
    val reason: String? = null,
    val error: ErrorObject? = null,
    /** How many of the oldest items the model no longer saw. */
    val dropped: Long? = null,
    /** While queued: the message that waits with it. */
    val waiting: Item? = null,
) {
    internal fun with(
        status: ResponseStatus = this.status,
        parentId: String? = this.parentId,
        output: List<String> = this.output,
        reason: String? = this.reason,
        error: ErrorObject? = this.error,
        dropped: Long? = this.dropped,
        waiting: Item? = this.waiting,
        told: Fields = emptyMap(),
    ) = ResponseRecord(
        id, status, parentId, output,
        told.text("model") ?: model,
        told.number("created_at") ?: createdAt,
        told.number("completed_at") ?: completedAt,
        told.obj("usage") ?: usage,
        reason, error, dropped,
        if (status == ResponseStatus.QUEUED) waiting else null,
    )

    internal fun stored(): Fields = mapOf(
        "id" to id, "status" to status.name.lowercase(), "parent_id" to parentId, "output" to output, "model" to model,
        "created_at" to createdAt, "completed_at" to completedAt, "usage" to usage, "reason" to reason, "error" to error?.raw,
        "dropped" to dropped,
    )
}

/** A case in which a person looks at what was withheld, as far as its user is told. */
class ReviewRecord internal constructor(internal val raw: Map<String, Any?>) {
    val id: String get() = raw.text("review_id") ?: ""
    val category: String get() = raw.text("category") ?: ""

    /** null: it is about a message that was refused. */
    val responseId: String? get() = raw.text("response_id")
    val isAppealed: Boolean get() = raw["appealed"] == true

    /** `upheld` or `overturned`, once it is decided. */
    val outcome: String? get() = raw.text("outcome")
}

/** What somebody thinks of an answer: `up` or `down`. */
class FeedbackRecord internal constructor(internal val raw: Map<String, Any?>) {
    val responseId: String get() = raw.text("response_id") ?: ""
    val by: String get() = raw.text("by") ?: ""
    val rating: String get() = raw.text("rating") ?: ""
    val reason: String get() = raw.text("reason") ?: ""
}

/** A summary that the model reads in the place of the first `items` items of the branches that go on from `readItemId`. */
class CompactionRecord internal constructor(internal val raw: Map<String, Any?>) {
    val id: String get() = raw.obj("summary")?.text("id") ?: ""
    val text: String get() = raw.obj("summary")?.let { itemOf(it).text } ?: ""
    val model: String get() = raw.text("model") ?: ""
    val items: Long get() = raw.number("items") ?: 0
    val readItemId: String get() = raw.text("read_item_id") ?: ""
}

/** A call of one of the server's own tools that waits until somebody agrees (`Session.approve`). */
class ApprovalRecord internal constructor(internal val raw: Map<String, Any?>) {
    val callId: String get() = raw.text("call_id") ?: ""
    val name: String get() = raw.text("name") ?: ""
    val responseId: String get() = raw.text("response_id") ?: ""
}

/** One step of a branch. `id` is an item's, or a response's that has no item yet. */
class Entry internal constructor(
    val id: String,
    val parentId: String?,
    val item: Item?,
    val response: ResponseRecord?,
    /** All children of the parent, this one at `index`: items in log order, then answers that have no item yet. */
    val siblings: List<String>,
    val index: Int,
)
