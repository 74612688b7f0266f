"""Who waits for what: fair shares of slots, the gate before vLLM, hints, steps of a size."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.brownout_engine import CombinedHoldings, check_compatible
from inference.concurrency_gate import ConcurrencyGate, GatedRun
from inference.fair_queue import ANSWER_COST, MARGIN, FairQueue, SlotClaim
from inference.forecast import EXPECTED_S, LoadForecast
from inference.kv.tenant_quota import KvHoldings
from inference.simulated import SimulatedEngine, SimulatedOptions
from inference.step_budget import LEAST_ALONE, StepBudget
from inference.tokens import as_tokens
from inference.warming import Warmings
from sessions.limits import Share
from sessions.model.errors import BadInput, Overloaded
from sessions.model.types import ResponseId, TenantId
from tests.support.effort import effort
from tests.support.engines.kv import key
from tests.support.virtual_time import settled, virtual

# -- fair queue
Q = FairQueue[str]


def claim(tenant: str, *, priority: int = 5, weight: float = 1.0, tokens: int = 10, name: str = "") -> SlotClaim[str]:
    return SlotClaim(name or tenant, tenant=TenantId(tenant), priority=priority, weight=weight, prompt_tokens=tokens)


def joined(queue: Q, *claims: SlotClaim[str]) -> None:
    for each in claims:
        queue.join(each)


def serve(queue: Q, rounds: int, answer: int = 50) -> dict[str, int]:
    """Runs whoever is next to its end, one after the other; tokens per tenant."""
    got: dict[str, int] = {}
    for _ in range(rounds):
        first = queue.first()
        if first is None:
            break
        queue.start(first)
        queue.served(first, answer)
        queue.leave(first)
        got[first.tenant] = got.get(first.tenant, 0) + first.prompt_tokens + answer
    return got


@pytest.mark.parametrize(("weights", "ratio"), [((1.0, 1.0), 1.0), ((1.0, 3.0), 3.0)])
def test_tenants_that_always_have_work_get_their_shares(weights: tuple[float, float], ratio: float) -> None:
    queue = Q(1, 10_000)
    for number in range(400):
        joined(queue, claim("flood", weight=weights[0], name=f"f{number}"))
    for number in range(400):
        joined(queue, claim("other", weight=weights[1], name=f"o{number}"))
    got = serve(queue, 200)
    assert got["other"] / got["flood"] == pytest.approx(ratio, rel=0.05)


def test_a_claim_that_left_holds_nobody() -> None:
    queue = Q(1, 10)
    runs, gives_up = claim("a"), claim("b")
    joined(queue, runs, gives_up)
    queue.start(runs)
    for each in (runs, gives_up):
        queue.leave(each)
        assert not hasattr(each, "holder"), "it and its holder would hold each other"


def test_who_has_more_than_its_share_makes_room_for_who_has_less_and_no_further() -> None:
    queue = Q(4, 100)
    flood = [claim("flood", name=f"f{number}") for number in range(4)]
    joined(queue, *flood)
    for each in flood:
        queue.start(each)
        queue.served(each, 100)
    others = [claim("other", name=f"o{number}") for number in range(3)]
    joined(queue, *others)
    for each in others[:2]:
        victim = queue.victim(each)
        assert victim is not None and victim.tenant == "flood"
        queue.make_room(victim)
        queue.start(each)
    assert queue.victim(others[2]) is None, "two each: that is its share"
    assert queue.victim(flood[3]) is None
    flood[0].may_yield = flood[1].may_yield = False
    queue.leave(others[0])
    joined(queue, claim("third"))
    assert queue.victim(others[2]) is None, "what cannot pause is left alone"
    queue.check_integrity()


def running(queue: Q, tenant: str, count: int, *, served: int = 0) -> list[SlotClaim[str]]:
    """So many of a tenant that have slots."""
    made = [claim(tenant, name=f"{tenant}{number}") for number in range(count)]
    joined(queue, *made)
    for each in made:
        queue.start(each)
        queue.served(each, served)
    return made


def test_a_burst_of_one_that_takes_less_than_its_share_gets_more_slots_than_its_share() -> None:
    queue = Q(4, 100)
    running(queue, "flood", 4, served=10)
    joined(queue, *(claim("flood", name=f"w{number}") for number in range(20)))
    burst = [claim("other", name=f"o{number}") for number in range(3)]
    joined(queue, *burst)
    for each in burst:  # its share is two slots
        assert queue.first() is each
        victim = queue.victim(each)
        assert victim is not None and victim.tenant == "flood"
        queue.make_room(victim)
        queue.start(each)
    queue.check_integrity()


def test_a_flood_has_no_credit_beside_another_flood() -> None:
    queue = Q(2, 1_000)
    running(queue, "flood", 2, served=100)
    joined(queue, *(claim("flood", name=f"w{number}") for number in range(50)))
    joined(queue, *(claim("other", name=f"o{number}") for number in range(50)))
    first = queue.first()
    assert first is not None and first.tenant == "other", "it was served less"
    victim = queue.victim(first)
    assert victim is not None
    queue.make_room(victim)
    queue.start(first)
    queue.served(first, 200)
    assert queue.victim(claim("other")) is None and queue.first() is not first


# -- room that is kept ----------------------------------------------------------------------------------------


def test_beside_somebody_who_has_less_a_slot_is_kept_idle_for_as_long_as_it_is_around() -> None:
    queue = Q(4, 100, reserve=1)
    flood = running(queue, "flood", 3, served=10)
    (once,) = running(queue, "other", 1)
    assert queue.keeper() in flood, "none is idle, and it has more than its share"
    queue.leave(once)
    assert queue.num_idle_for(TenantId("flood"), 5, 1.0) == 0
    assert queue.num_idle_for(TenantId("other"), 5, 1.0) == 1
    assert queue.num_idle_for(TenantId("flood"), 1, 1.0) == 1, "a better priority leaves nothing for a worse one"
    assert queue.keeper() is None
    queue.served(flood[0], int(queue.credit))
    assert queue.num_idle_for(TenantId("flood"), 5, 1.0) == 1, "it has been away for too long"
    queue.check_integrity()


def test_one_tenant_never_fills_the_whole_queue() -> None:
    queue = Q(1, 100)
    while not queue.is_full(TenantId("flood")):
        joined(queue, claim("flood", name=str(queue.num_waiting)))
    assert 70 < queue.num_waiting < 90
    assert not queue.is_full(TenantId("other"))


def test_an_answer_that_was_stopped_is_charged_for_its_prompt_once() -> None:
    queue = Q(1, 10)
    one = claim("a", tokens=100)
    joined(queue, one)
    queue.start(one)
    queue.served(one, 10)
    queue.make_room(one)
    queue.start(one)
    assert queue.counter(TenantId("a")) == 100 + 10 * ANSWER_COST


class Books(RuleBasedStateMachine):
    """Claims come, start, pause and leave in any order."""

    RESERVE = 0

    def __init__(self) -> None:
        super().__init__()
        self.queue = Q(3, 1000, reserve=self.RESERVE)
        self.claims: list[SlotClaim[str]] = []
        self.before: dict[str, float] = {}

    @rule(tenant=st.sampled_from("abc"), priority=st.integers(0, 2), weight=st.sampled_from([0.5, 1.0, 4.0]))
    def come(self, tenant: str, priority: int, weight: float) -> None:
        made = claim(tenant, priority=priority, weight=weight)
        self.queue.join(made)
        self.claims.append(made)

    @rule()
    def begin(self) -> None:
        first = self.queue.first()
        if first is None:
            assert not self.queue.num_waiting
            return
        if self.queue.num_running >= 3:
            victim = self.queue.victim(first)
            if victim is None:
                return
            assert victim.started and victim.priority >= first.priority
            self.queue.make_room(victim)
            assert self.queue.first() is first, "it is for this one that somebody made room"
        self.queue.start(first)

    @precondition(lambda self: self.claims)
    @rule(seed=st.integers(0, 2**16))
    def go(self, seed: int) -> None:
        gone = self.claims.pop(random.Random(seed).randrange(len(self.claims)))
        if gone.started:
            self.queue.served(gone, 7)
        self.queue.leave(gone)

    @invariant()
    def books_agree(self) -> None:
        self.queue.check_integrity()
        assert self.queue.num_waiting + self.queue.num_running == len(self.claims)
        assert self.queue.num_running <= 3
        for tenant in "abc":
            now = self.queue.counter(TenantId(tenant))
            assert now >= self.before.get(tenant, 0.0)
            self.before[tenant] = now

    @invariant()
    def nobody_makes_room_for_ever(self) -> None:
        """Making room again and again comes to an end: claims do not chase each other in circles."""
        for _ in range(50):
            first = self.queue.first()
            victim = self.queue.victim(first) if first is not None and self.queue.num_running >= 3 else None
            if first is None or victim is None:
                return
            self.queue.make_room(victim)
            again = self.queue.first()
            assert again is not None
            self.queue.start(again)
        raise AssertionError("fifty claims gave way to each other")

    @invariant()
    def keeping_room_comes_to_an_end(self) -> None:
        for _ in range(20):
            giver = self.queue.keeper()
            if giver is None:
                return
            self.queue.make_room(giver)
        raise AssertionError("twenty claims made room for nobody")


class Kept(Books):
    """The same where a slot is kept."""

    RESERVE = 1


TestBooks = Books.TestCase
TestKept = Kept.TestCase
TestBooks.settings = TestKept.settings = settings(max_examples=effort(30, 100))


# -- concurrency gate
def gated(tenant: str = "t", priority: int = 0, *, pauses: bool = True, prompt_tokens: int = 8) -> GatedRun:
    return GatedRun(TenantId(tenant), priority, 1.0, prompt_tokens, pauses=pauses)


async def let_in(gate: ConcurrencyGate, tenant: str = "t", priority: int = 0, *, pauses: bool = True) -> GatedRun:
    run = gated(tenant, priority, pauses=pauses)
    await gate.acquire(run)
    return run


async def test_a_cancelled_waiter_leaves_nothing_even_when_its_turn_has_come() -> None:
    gate = ConcurrencyGate(1, 1)
    for handed_over in (False, True):
        running = await let_in(gate)
        waiter = asyncio.create_task(let_in(gate))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await let_in(gate)
        if handed_over:
            gate.leave(running)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        assert gate.waiting == 0
        gate.leave(running)
    assert gate.running == 0 and gate.num_shed == 2
    gate.queue.check_integrity()


async def test_a_tenant_that_floods_lets_another_one_in_at_once() -> None:
    gate = ConcurrencyGate(2, 16)
    flood = [asyncio.create_task(let_in(gate, "flood")) for _ in range(8)]
    await asyncio.sleep(0)
    runs = [task.result() for task in flood if task.done()]
    assert len(runs) == 2
    for run in runs:
        gate.on_output(run, 2 * int(MARGIN))
    other = asyncio.create_task(let_in(gate, "other"))
    await asyncio.sleep(0)
    (victim,) = [run for run in runs if run.yields]
    gate.give_way(victim)
    again = asyncio.create_task(gate.acquire(victim))
    gate.on_output(await other, 1)
    assert gate.num_preempted == 1 and not again.done() and gate.running == 2
    gate.leave(other.result())
    await asyncio.wait_for(again, 1.0)  # it keeps its place before its tenant's others
    assert sum(task.done() for task in flood) == 2
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)


# -- forecast
class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_queue_is_full_with_those_that_are_on_the_way() -> None:
    queue, clock, tenant = FairQueue[str](2, 10), Clock(), TenantId("t")
    load = LoadForecast(queue, clock)
    let_in = 0
    while not load.forecast(tenant, Share(), 10, room=True).full:
        load.expect(ResponseId(f"r{let_in}"), tenant)
        let_in += 1
    assert let_in == 2 + 8, "two slots, and of ten places the part that one tenant may have"
    assert not load.forecast(TenantId("other"), Share(), 10, room=True).full
    clock.now += EXPECTED_S
    assert not load.forecast(tenant, Share(), 10, room=True).full, "they never came"
    for number in range(let_in):
        queue.join(SlotClaim(f"x{number}", tenant=tenant, priority=5, weight=1.0, prompt_tokens=10))
    for _ in range(2):
        queue.start(queue.first())  # type: ignore[arg-type]
    assert load.forecast(tenant, Share(), 10, room=True).full


# -- warming
PROMPT = as_tokens(range(100))


@virtual
async def test_one_that_fails_keeps_nobody_waiting() -> None:
    warmings = Warmings()
    with pytest.raises(OSError, match="away"), warmings.of(key("a"), PROMPT):
        waiting = asyncio.ensure_future(warmings.settled(key("a"), PROMPT))
        await settled()
        raise OSError("away")
    await waiting


# -- step budget
def step_s(tokens: int, token_s: float, fixed_s: float = 0.0) -> float:
    return fixed_s + tokens * token_s


@pytest.mark.parametrize(("token_s", "expected"), [(0.001, 250), (0.0025, 100), (0.000_01, 2048)])
def test_a_step_holds_what_is_computed_in_the_target_time(token_s: float, expected: int) -> None:
    budget = StepBudget(0.25, 2048)
    assert budget.tokens(decoding=False) == budget.tokens(decoding=True) == LEAST_ALONE, "nothing was measured yet"
    for _ in range(60):
        tokens = budget.tokens(decoding=True)
        budget.measured(tokens, step_s(tokens, token_s))
    assert budget.tokens(decoding=True) == pytest.approx(expected, abs=1)


def test_on_a_machine_that_gets_ten_times_slower_steps_get_smaller_and_larger_again_later() -> None:
    budget = StepBudget(0.25, 2048)
    sizes = []
    for token_s in (0.001, 0.01, 0.001):
        for _ in range(60):
            tokens = budget.tokens(decoding=True)
            budget.measured(tokens, step_s(tokens, token_s))
        sizes.append(budget.tokens(decoding=True))
    assert sizes == pytest.approx([250, 25, 250], abs=1)


def test_a_small_step_says_nothing_of_the_rate() -> None:
    budget = StepBudget(0.25, 2048)
    budget.measured(400, 0.4)
    for _ in range(50):
        budget.measured(5, 0.2)
    assert budget.tokens(decoding=True) == 250


# -- brownout engine
LARGE = SimulatedOptions(model="large", context_window=1024, kv_tokens_max=8192)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"weights": 0}, "is the same model"),
        ({"model": "large"}, "has the same name"),
        ({"context_window": 512}, "512"),
    ],
)
async def test_a_pair_whose_ledgers_do_not_fit_is_refused(changed: dict[str, Any], reason: str) -> None:
    smaller = SimulatedEngine(msgspec.structs.replace(LARGE, **({"model": "small", "weights": 1} | changed)))
    with pytest.raises(BadInput) as refused:
        check_compatible(SimulatedEngine(LARGE), smaller)
    assert refused.value.code == "bad_brownout_model" and reason in refused.value.public_message


def test_what_is_left_of_a_ceiling_is_what_the_other_does_not_hold() -> None:
    held = {"main": 30, "smaller": 5}
    main, smaller = KvHoldings(lambda tenant: held["main"]), KvHoldings(lambda tenant: held["smaller"])
    together, tenant = CombinedHoldings(main, smaller), TenantId("t")
    assert together.bytes_of(tenant) == 35 and main.ceiling(tenant) is None
    together.ceiling = lambda _: 40
    assert (main.ceiling(tenant), smaller.ceiling(tenant)) == (35, 10)
    held["main"] = 90
    assert smaller.ceiling(tenant) == 0
