"""The connector's block tables under our scheduler and vLLM's block pool: every block that a run reads is its own, or
of an opening that its session has in common with others of its tenant.

Only the device is made up: a block holds, for each of its places, a number that names the session, or the opening as
long as that goes, and every token up to there. It is written when the scheduler has a token computed, a block loaded or
a file's block brought in; it is read when a later token is computed and when a block is saved. Loads and saves take a
while, some loads fail, runs are aborted and preempted, sessions are deleted and parked, instructions change: 15,000
steps, each of which a different mixture. A seed decides all of it, how long each step lasts included.
"""

from __future__ import annotations

import os
import random
import tempfile
from array import array
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from inference.step_budget import StepBudget
from inference.vllm.async_llm import VllmCore
from inference.vllm.block_usage import BlockUsage
from inference.vllm.connector_metadata import BlockLoad, BlockSave, SessileConnectorMetadata
from inference.vllm.scheduling.step_planner import StepPlanner
from sessions.model.types import SessionId, SessionKey, TenantId
from tests.support.engines.vllm_world import BLOCK_TOKENS, vllm_options

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

STEPS = 15_000
BLOCKS = 24
STEP_TOKENS, TARGET_S = 96, 0.25
SEEDS = range(10_000, 10_000 + int(os.environ.get("SESSILE_TEST_SEEDS", "1")))
SESSIONS = 9
PROMPT_MAX, ANSWER_MAX = 7 * BLOCK_TOKENS, 2 * BLOCK_TOKENS
RUNNING_MAX = 4
OPENINGS = ([7] * 40, [7] * 32 + [6] * 45)  # tokens that sessions of every tenant begin with


class Session:
    """A conversation as the front knows it: its tokens, and its newest snapshot."""

    def __init__(self, number: int) -> None:
        self.key = SessionKey(TenantId(f"t{number % 2}"), SessionId(f"s{number}"))
        self.opening = OPENINGS[number // 2 % 2]
        self.tokens: list[int] = []
        self.stay = 0
        self.snapshot: list[tuple[int, ...]] = []  # what its blocks hold


class Salts(NamedTuple):
    """Of a run: its session's tag, and that of its opening with its length in blocks."""

    tag: str
    opening: str
    opening_blocks: int

    def places(self, tokens: list[int]) -> list[int]:
        """What each place of the device must hold for such tokens."""
        places, last = [], hash(self.opening or self.tag)
        for at, token in enumerate(tokens):
            if self.opening and at == self.opening_blocks * BLOCK_TOKENS:
                last = hash((last, self.tag))
            last = hash((last, token))
            places.append(last)
        return places


class Run:
    def __init__(self, session: Session, request: Request, base: list[tuple[int, ...]], salts: Salts) -> None:
        self.session = session
        self.request = request
        self.base = base
        self.salts = salts
        self.file: dict[int, tuple[int, ...]] = {}
        self.stay = session.stay


class World:
    """The scheduler, a device, and what is on its way between the device and files."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        options = vllm_options(Path(tempfile.gettempdir()), device_blocks=BLOCKS, slots=RUNNING_MAX)
        core = VllmCore(options)
        arguments = core._arguments(PROMPT_MAX + ANSWER_MAX + BLOCK_TOKENS, tempfile.gettempdir())
        config = AsyncEngineArgs(**(arguments | {"max_num_batched_tokens": STEP_TOKENS})).create_engine_config()
        config.cache_config.num_gpu_blocks = BLOCKS
        spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=1, head_size=1, dtype=torch.float32)
        self.scheduler: Any = config.scheduler_config.get_scheduler_cls()(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_TOKENS,
        )
        self.now_s = 0.0
        budget = StepBudget(TARGET_S, STEP_TOKENS)
        self.scheduler._planner = StepPlanner(budget, STEP_TOKENS, clock=lambda: self.now_s)
        algorithm = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        init_none_hash(algorithm)
        self.hasher = get_request_block_hasher(BLOCK_TOKENS, algorithm)
        self.sessions = [Session(number) for number in range(SESSIONS)]
        self.device: list[list[int]] = [[0] * BLOCK_TOKENS for _ in range(BLOCKS)]
        self.writers: list[Session | None] = [None] * BLOCKS
        self.usage = BlockUsage(BLOCK_TOKENS, lambda _: False, device_tokens=BLOCKS * BLOCK_TOKENS)
        self.runs: dict[str, Run] = {}
        self.loads: list[BlockLoad] = []
        self.saves: list[BlockSave] = []
        self.seen: Counter[str] = Counter()

    # -- what the front does -------------------------------------------------------------------------------------

    def ask(self, session: Session) -> None:
        """A run of a session: it goes on where it was, or somewhere before that, or with other instructions."""
        chance = self.chance
        if chance.random() < 0.05:
            session.opening = chance.choice(OPENINGS)
        same = session.tokens[: len(session.opening)] == session.opening
        session.tokens = session.tokens if same else list(session.opening)
        keep = len(session.tokens) if chance.random() < 0.7 else chance.randrange(len(session.tokens) + 1)
        keep = max(min(keep, PROMPT_MAX - 8), len(session.opening))
        count = chance.randrange(1, 60)  # what several sessions say, or one alone
        prompt = session.tokens[:keep] + (
            [5] * count if chance.random() < 0.5 else [chance.randrange(1, 9) for _ in range(count)]
        )
        prompt = prompt[:PROMPT_MAX]
        session.tokens = list(prompt)
        tag = self.usage.tag(session.key)
        knows = 0 if chance.random() < 0.1 else len(session.opening)  # it may be brought up alone
        salts = Salts(tag, *self.usage.share(session.key, array("I", prompt), knows))
        places = salts.places(prompt)
        whole = [tuple(places[at : at + BLOCK_TOKENS]) for at in range(0, len(places) - BLOCK_TOKENS + 1, BLOCK_TOKENS)]
        shared = 0
        while shared < min(len(whole), len(session.snapshot)) and whole[shared] == session.snapshot[shared]:
            shared += 1
        shared = min(shared, (len(prompt) - 1) // BLOCK_TOKENS)
        name = f"r{self.seen['asked']}"
        self.seen["asked"] += 1
        forget, retire = self.usage.take_notices(tag)
        transfer: dict[str, Any] = {**salts._asdict(), "name": name, "forget": forget, "retire": retire}
        if shared and chance.random() < 0.9:
            transfer["source"] = {
                "path": name,
                "num_blocks": shared,
                "snapshot_id": b"",
                "payload_bytes": 0,
                "tags": b"",
            }
        else:
            shared = 0
        if chance.random() < 0.9:
            transfer |= {"path": name, "first_block": shared, "limit_blocks": shared + chance.randrange(1, 9)}
        answer = chance.randrange(1, ANSWER_MAX)
        params = SamplingParams(max_tokens=answer, ignore_eos=True, extra_args={"kv_transfer_params": transfer})
        request = Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            cache_salt=tag,
            priority=chance.randrange(3),
            block_hasher=self.hasher,
        )
        self.runs[name] = Run(session, request, session.snapshot[:shared], salts)
        self.scheduler.add_request(request)

    def delete(self, session: Session) -> None:
        self.usage.forget(session.key)
        session.stay += 1
        session.tokens, session.snapshot = [], []
        self.seen["deleted"] += 1

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self.seen["aborted"] += 1

    # -- what the workers do -------------------------------------------------------------------------------------

    def step(self) -> None:
        scheduled = self.scheduler.schedule()
        orders = scheduled.kv_connector_metadata
        assert isinstance(orders, SessileConnectorMetadata)
        self.seen["preempted"] += len(scheduled.preempted_req_ids or ())
        for save in [each for each in self.saves if each.request in orders.preempted]:
            self._save(save)  # their blocks are about to be written by others
        self.loads += orders.loads
        ids = list(scheduled.num_scheduled_tokens)
        sampled = [self._compute(name, count) for name, count in scheduled.num_scheduled_tokens.items()]
        self.now_s += scheduled.total_num_scheduled_tokens * TARGET_S / self.chance.randrange(20, 2 * STEP_TOKENS)
        self.saves += orders.saves
        sent, received, bad = dict[str, None](), dict[str, None](), set[int]()  # a set's order is another each time
        patient = orders.idle
        for load in list(self.loads):
            if patient or self.chance.random() < 0.3:
                self.loads.remove(load)
                received[load.request] = None
                if self.chance.random() < 0.2:
                    bad.update(load.block_ids)
                    self.seen["loads_failed"] += 1
                else:
                    self._load(load)
        for save in list(self.saves):
            if (patient or self.chance.random() < 0.3) and save in self.saves and self._save(save):
                sent[save.request] = None
        told = KVConnectorOutput(
            finished_sending=sent.keys() or None, finished_recving=received.keys() or None, invalid_block_ids=bad
        )
        self.scheduler.update_from_output(
            scheduled,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={name: number for number, name in enumerate(ids)},
                sampled_token_ids=sampled,
                kv_connector_output=told,
            ),
        )

    def _compute(self, name: str, count: int) -> list[int]:
        """Reads what stands before the tokens of this step, as attention does, and writes what comes from them."""
        run = self.runs[name]
        request, blocks = run.request, self.scheduler.kv_cache_manager.get_block_ids(name)[0]
        end = request.num_computed_tokens
        tokens = list(request.all_token_ids)
        places = run.salts.places(tokens[:end])
        begin = end - count
        for at in range(0, begin, BLOCK_TOKENS):
            own = places[at : min(at + BLOCK_TOKENS, begin)]
            found = self.device[blocks[at // BLOCK_TOKENS]][: len(own)]
            assert found == own, f"{name} reads what is not its own, at {at} of {begin}"
            writer = self.writers[blocks[at // BLOCK_TOKENS]]
            if writer is not None and writer is not run.session:
                assert writer.key.tenant == run.session.key.tenant
                self.seen["shared"] += 1
        self.seen["read"] += begin
        for at in range(begin, end):
            self.device[blocks[at // BLOCK_TOKENS]][at % BLOCK_TOKENS] = places[at]
            self.writers[blocks[at // BLOCK_TOKENS]] = run.session
        return [self.chance.randrange(1, 9)] if end == len(tokens) else []

    def _load(self, load: BlockLoad) -> None:
        base = self.runs[load.request].base
        for number, block in enumerate(load.block_ids):
            self.device[block] = list(base[load.first_block + number])
            self.writers[block] = self.runs[load.request].session
        self.seen["loaded"] += 1

    def _save(self, save: BlockSave) -> bool:
        """Writes it into its file, after what was told before; True when the scheduler waits to hear of it."""
        earlier = [each for each in self.saves[: self.saves.index(save)] if each.request == save.request]
        for each in earlier:
            self._save(each)
        self.saves.remove(save)
        run = self.runs[save.request]
        places = run.salts.places(list(run.request.all_token_ids)) if save.block_ids else []
        for number, block in enumerate(save.block_ids):
            index = save.first_block + number
            held = tuple(self.device[block])
            assert held == tuple(places[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]), (
                f"{save.request} saves others'"
            )
            run.file[index] = held
            self.seen["saved"] += 1
        if save.close:
            self._close(run)
        return save.held

    def _close(self, run: Run) -> None:
        blocks = list(run.base)
        while len(blocks) in run.file:
            blocks.append(run.file[len(blocks)])
        if run.stay == run.session.stay and len(blocks) > len(run.session.snapshot):
            run.session.snapshot = blocks
        run.session.tokens = list(run.request.all_token_ids)[:PROMPT_MAX] if run.stay == run.session.stay else []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_run_reads_and_saves_is_its_own_whatever_happens_beside_it(seed: int) -> None:
    chance = random.Random(seed)
    world = World(chance)
    pool = world.scheduler.kv_cache_manager.block_pool
    for _ in range(STEPS):
        alive = [name for name, run in world.runs.items() if not run.request.is_finished()]
        busy = {world.runs[name].session for name in alive}
        if len(alive) < RUNNING_MAX + 2 and chance.random() < 0.5:
            world.ask(chance.choice(world.sessions))
        if alive and chance.random() < 0.03:
            world.abort(chance.choice(alive))
        if chance.random() < 0.02:
            world.delete(chance.choice(world.sessions))
        if chance.random() < 0.05:
            for each in world.sessions:
                if each not in busy and chance.random() < 0.3:
                    world.usage.park(each.key)
        world.step()
    for name, run in world.runs.items():
        if not run.request.is_finished():
            world.abort(name)
    for _ in range(50):
        world.step()
    assert not world.loads and not world.saves
    assert pool.get_num_free_blocks() == BLOCKS - 1, "a block was kept by nobody"
    floors = {
        "asked": 1000,
        "loaded": 300,
        "loads_failed": 30,
        "saved": 2000,
        "preempted": 30,
        "aborted": 100,
        "shared": 500,
    }
    assert all(world.seen[what] >= floor for what, floor in floors.items()), dict(world.seen)
