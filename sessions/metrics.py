"""The metrics of a process, all in one place: the code that sees something happen counts it in the one `Metrics`.

Counting is an addition to a number that lies in memory; names, labels and text are made at a scrape
(`transport.ops.prometheus`). Families that happen once per token or append have no labels, so that nothing is looked up
for them; those with labels are for what happens once per turn or more rarely.

    metrics.preemptions.add("priority")              one of a family that stands here
    metrics.journal_s.observe(0.0012)
    metrics.counter("limits_hit", "...", "kind")     a family of one's own: made once, the same name is the same family
    metrics.gauge("queue_depth", "...", ("priority",), read)     what is read at a scrape

Invariants: a label's values come from a fixed few (a code, a cause, a mode, a priority). No user, tenant, session or
text is ever a label or a value: metrics are read by those who may not read conversations.

Names are vLLM's where it has one, with units last (Prometheus' conventions); `sessile_` goes before each, and `_total`
behind a counter. Does not know Prometheus. One event loop: nothing here is locked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sessions.tracing import Tracer

Labels = tuple[str, ...]
Reading = Callable[[], Mapping[Labels, float]]

VALUES_MAX: Final = 200  # sets of label values in one family; more are a mistake
OTHER: Final = "other"

TTFT_TARGET_S: Final = 2.0
TPOT_TARGET_S: Final = 0.2

TOKEN_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
TURN_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
SHORT_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BATCH: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Counter:
    """A count by labels, which can only grow."""

    __slots__ = ("about", "labels", "name", "values")

    def __init__(self, name: str, about: str, labels: Labels) -> None:
        self.name = name
        self.about = about
        self.labels = labels
        self.values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, *values: str, by: float = 1) -> None:
        """Adds `by` to the count with these label values: one value for each label, in order."""
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
        if values not in self.values and len(self.values) >= VALUES_MAX:
            values = (OTHER,) * len(self.labels)
        self.values[values] = self.values.get(values, 0) + by

    @property
    def total(self) -> float:
        return sum(self.values.values())


class Histogram:
    """The distribution of a quantity: counts per bucket, and their sum. The last bucket has no upper bound."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


def quantile_of(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Returns an estimate of the quantile `share` (0 to 1) of what was observed: the middle of its bucket, at most the
    last bound; None if nothing was observed. `counts` are those of one histogram with these bounds, or of several added
    up."""
    total = sum(counts)
    if not total:
        return None
    rank, below, low = share * total, 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if below + count >= rank:
            return (low + bound) / 2
        below, low = below + count, bound
    return bounds[-1]


class Histograms:
    """The histograms of one family, by labels."""

    __slots__ = ("about", "bounds", "labels", "name", "values")

    def __init__(self, name: str, about: str, bounds: Sequence[float], labels: Labels) -> None:
        self.name = name
        self.about = about
        self.bounds = tuple(bounds)
        self.labels = labels
        self.values: dict[Labels, Histogram] = {}

    def of(self, *values: str) -> Histogram:
        """Returns the histogram of these label values; callers that observe often keep it."""
        histogram = self.values.get(values)
        if histogram is None:
            assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}"
            if len(self.values) >= VALUES_MAX:
                values = (OTHER,) * len(self.labels)
            histogram = self.values.setdefault(values, Histogram(self.bounds))
        return histogram


class Gauge:
    """A quantity that is kept elsewhere and read at a scrape. `grows`: it is shown as a counter."""

    __slots__ = ("about", "grows", "labels", "name", "read")

    def __init__(self, name: str, about: str, labels: Labels, read: Reading, *, grows: bool) -> None:
        self.grows = grows
        self.name = name
        self.about = about
        self.labels = labels
        self.read = read


Family = Counter | Histograms | Gauge


class Metrics:
    """All metric families of one process, each an attribute."""

    def __init__(self, tracer: Tracer | None = None) -> None:
        """`tracer` records traces; None: nothing is traced."""
        self.families: dict[str, Family] = {}
        self.tracer = tracer
        self.num_decoding = 0  # answers that have begun and not ended
        # (TTFT, TPOT) in seconds that answers of a priority are to meet; replaced where a limits file names targets.
        self.targets_s: Callable[[int], tuple[float, float]] = lambda priority: (TTFT_TARGET_S, TPOT_TARGET_S)
        counter, histogram, histograms = self.counter, self.histogram, self.histograms

        # -- answers ---------------------------------------------------------------------------------------------
        self.ttft_s = histogram("time_to_first_token_seconds", "From a response's start to its first token.", TURN_S)
        self.tpot_s = histogram("time_per_output_token_seconds", "Mean time per later token of a response.", TOKEN_S)
        self.itl_s = histogram("inter_token_latency_seconds", "From one engine output to the next.", TOKEN_S)
        self.e2e_s = histogram("e2e_request_latency_seconds", "From a response's start to its end.", TURN_S)
        self.responses = counter("request_success", "Responses that ended, by how.", "finished_reason")
        self.in_target = counter("request_in_target", "Responses by whether TTFT and TPOT met their targets.", "met")
        self.prompt_tokens = counter("prompt_tokens", "Input tokens of ended responses.")
        self.cached_tokens = counter("cached_prompt_tokens", "Input tokens whose KV was there.")
        self.output_tokens = counter("generation_tokens", "Output tokens of ended responses.")
        self.recomputed_tokens = counter("recomputed_tokens", "Tokens computed again by continuations; not billed.")
        self.withheld_tokens = counter("withheld_tokens", "Output tokens that filters withheld.")
        self.aborts = counter("request_aborts", "Responses cut short, by why.", "reason")
        self.batch = histogram("batch_size", "Answers that ran at the moment another one began.", BATCH)

        # -- safety ----------------------------------------------------------------------------------------------
        self.filter_s = histograms(
            "filter_latency_seconds",
            "Time that filters of a text, and judges of an answer, took.",
            SHORT_S,
            "direction",
        )
        self.verdicts = counter("filter_verdicts", "Verdicts of filters.", "direction", "action", "category")

        self.reviews_opened = counter(
            "review_cases",
            "Review cases opened; by an appeal, again.",
            "cause",
            "direction",
            "action",
            "category",
        )
        self.reviews_decided = counter("review_decisions", "Review cases decided.", "category", "outcome")
        self.reviews_dropped = counter("review_cases_dropped", "Undecided cases let go, by why.", "why")

        # -- who is let in ---------------------------------------------------------------------------------------
        self.commands = counter("commands", "Commands that clients gave.")
        self.refused = counter("requests_refused", "Commands refused, by error code.", "code")

        # -- sessions --------------------------------------------------------------------------------------------
        self.activations = counter("activations", "Sessions that came into memory, by cause.", "cause")
        self.titles = counter("titles", "Titles that sessions were given, by what made them.", "source")
        self.compactions = counter("compactions", "Summaries of conversations, by outcome.", "outcome")
        self.compaction_tokens = counter("compaction_tokens", "Tokens of summaries' requests, unbilled.", "kind")
        self.activation_s = histograms("activation_duration_seconds", "How long coming in took.", SHORT_S, "cause")
        self.handoffs = counter("handoffs", "Hand-offs to other replicas, by outcome.", "outcome")
        self.handoff_s = histograms("handoff_duration_seconds", "How long they took, by phase.", TURN_S, "phase")
        self.fenced = counter("actors_fenced", "Actors that found that another owner has their session.")

        # -- the process -----------------------------------------------------------------------------------------
        self.loop_delay_s = histogram("loop_delay_seconds", "How late the event loop came to what was due.", SHORT_S)
        self.loop_stalls = counter("loop_stalls", "Times that the event loop stood still for longer than allowed.")
        self.schema_workers = counter("schema_workers_ended", "Schema workers that ended, by why.", "why")

        # What can be known in advance is there from the start: a rate needs a zero to begin from.
        for family, labels in (
            (self.activations, ("new", "woken", "restart", "handoff", "takeover", "orphaned")),
            (self.titles, ("model", "words")),
            (self.compactions, ("written", "failed")),
            (self.compaction_tokens, ("computed", "cached", "output")),
            (self.handoffs, ("moved", "stayed", "failed")),
            (self.schema_workers, ("limit", "killed")),
            (self.in_target, ("true", "false")),
        ):
            for label in labels:
                family.add(label, by=0)

        # -- journal ---------------------------------------------------------------------------------------------
        self.journal_s = histogram("journal_append_latency_seconds", "From an append to its durability.", SHORT_S)
        self.journal_lost = counter("journal_unavailable", "Appends that failed and were retried.")
        self.snapshots_left_out = counter("journal_snapshots_left_out", "Snapshots too large to be stored.")

    def activated(self, cause: str, seconds: float) -> None:
        self.activations.add(cause)
        self.activation_s.of(cause).observe(seconds)

    def counter(self, name: str, about: str, *labels: str) -> Counter:
        family = self.families.setdefault(name, Counter(name, about, labels))
        assert isinstance(family, Counter) and family.labels == labels, name
        return family

    def histograms(self, name: str, about: str, bounds: Sequence[float], *labels: str) -> Histograms:
        family = self.families.setdefault(name, Histograms(name, about, bounds, labels))
        assert isinstance(family, Histograms) and family.labels == labels, name
        return family

    def histogram(self, name: str, about: str, bounds: Sequence[float]) -> Histogram:
        """Returns the histogram of a family without labels, made at the first call with this name."""
        return self.histograms(name, about, bounds).of()

    def gauge(self, name: str, about: str, labels: Labels, read: Reading, *, grows: bool = False) -> None:
        """Adds a gauge. `read` (plain, quick, must not raise) is called at every scrape. A later gauge of the same name
        replaces it. `grows`: what is read is a counter."""
        self.families[name] = Gauge(name, about, labels, read, grows=grows)
