"""What vLLM must do beyond the contract: write KV through, restore it, refuse what is damaged, never mix sessions."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from inference.tokens import as_tokens
from inference.vllm import async_llm
from inference.vllm.connector import SessileConnector, contain_errors
from inference.vllm.engine import VllmEngine
from sessions.model.generation import Chunk
from sessions.model.types import OPENINGS, Sampling
from testbed.engine_client import Opened, ask, follow_up, key, open_stream, prompt_of, until
from tests.support.engines.vllm_world import BLOCK_TOKENS, FEW, STEP_TOKENS, VllmWorld, offload_of, settled, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

STORY = "Tell me a story about a bird that could not fly, and about its friends in the wood by the lake. " * 4


async def crowd(engine: VllmEngine, round_: int) -> None:
    """Other sessions fill the device, so that nothing of anybody else's is left there."""
    filler = tuple(await engine.tokenizer.text(f" stone{round_} river" * 1024))[:900]
    who = [key(f"crowd{round_}-{n}") for n in range(2)]
    for n in range(2):
        await ask(engine, who[n], (*filler[n:], *await prompt_of(engine, "Go on.")), max_tokens=1)
    await settled(engine)
    for each in who:
        await engine.release(each)


def payloads(world: VllmWorld) -> list[Path]:
    return sorted(world.staging.glob("*/*.slot"))


# -- restoring ---------------------------------------------------------------------------------------------


async def test_cold_resident_and_restored_answers_are_the_same(world: VllmWorld) -> None:
    engine = await start(world, device_blocks=FEW)
    first = await prompt_of(engine, STORY)
    answer = await ask(engine, key("a"), first, max_tokens=40)
    later = await follow_up(engine, first, answer, "What became of them?")
    resident = await ask(engine, key("a"), later, max_tokens=30)
    reusable = world.whole(len(first) + 39)
    assert resident.finish.cached_tokens == reusable
    await settled(engine)
    await crowd(engine, 0)
    restored = await ask(engine, key("a"), later, max_tokens=30)
    assert restored.finish.cached_tokens == world.whole(len(later) - 1) >= reusable
    assert engine.stats().counters["restores"] == 1
    cold = await ask(engine, key("b"), later, max_tokens=30)
    assert cold.finish.cached_tokens == 0
    assert cold.tokens == resident.tokens == restored.tokens


async def test_a_session_comes_back_from_disk_after_a_restart(world: VllmWorld) -> None:
    engine = await start(world)
    first = await prompt_of(engine, STORY)
    answer = await ask(engine, key("a"), first, max_tokens=20)
    later = await follow_up(engine, first, answer, "What became of them?")
    resident = await ask(engine, key("a"), later, max_tokens=20)
    await engine.close()
    again = await start(world)
    assert again.place(key("a")).tier == "disk"
    restored = await ask(again, key("a"), later, max_tokens=20)
    assert restored.tokens == resident.tokens
    assert restored.finish.cached_tokens == world.whole(len(later) - 1)


async def said(stream: Opened, tokens: list[int], enough: int) -> None:
    """Reads on until `tokens` has that many."""
    async for item in stream.stream:
        assert isinstance(item, Chunk)
        tokens.extend(item.tokens)
        if len(tokens) >= enough:
            return


@pytest.mark.parametrize("turns", [1, 2])
async def test_an_answer_moves_with_its_kv_while_it_is_written(world: VllmWorld, turns: int) -> None:
    source = await start(world)
    prompt = await prompt_of(source, STORY)
    if turns == 2:
        prompt = await follow_up(source, prompt, await ask(source, key("a"), prompt, max_tokens=20), STORY)
        await settled(source)
    stream = await open_stream(source, key("a"), prompt, max_tokens=300)
    tokens = list(stream.first.tokens)
    await said(stream, tokens, 2 * BLOCK_TOKENS)
    (run,) = source._runs.values()
    blocks = (len(prompt) + len(tokens) - 1) // BLOCK_TOKENS
    plan = run.plan
    assert plan is not None
    await until(lambda: plan.written[0] >= blocks)
    ledger = as_tokens((*prompt, *tokens))
    export = await source.export_kv(key("a"), ledger)
    assert export is not None and export.ledger == ledger[: blocks * BLOCK_TOKENS]
    target = await start(world, disk_folder=world.folder / "elsewhere")
    assert await target.import_kv(key("a"), export.chunks) == len(export.ledger)
    moved = await ask(target, key("a"), ledger, max_tokens=20)
    assert moved.finish.cached_tokens == len(export.ledger)
    assert target.stats().counters["restores"] == 1
    await said(stream, tokens, len(ledger) - len(prompt) + 20)  # here it goes on as if nothing had been
    assert list(moved.tokens) == tokens[len(ledger) - len(prompt) :][:20]
    await stream.abort()
    await settled(source)
    (snapshot,) = offload_of(source).tiers.host.of(key("a"))
    assert snapshot.tokens[: len(export.ledger)] == export.ledger and len(snapshot.tokens) >= len(export.ledger)


async def test_warming_loads_what_was_saved_and_the_turn_loads_nothing(world: VllmWorld) -> None:
    engine = await start(world)
    first = await prompt_of(engine, STORY)
    answer = await ask(engine, key("a"), first, max_tokens=20)
    later = await follow_up(engine, first, answer, "What became of them?")
    await settled(engine)
    assert await engine._core.reset()  # nothing is on the device
    await engine.warm(key("a"), later)
    assert engine.stats().counters["restores"] == 1
    warmed = await ask(engine, key("a"), later, max_tokens=20)
    assert warmed.finish.cached_tokens == world.whole(len(later) - 1)
    assert engine.stats().counters["restores"] == 1
    assert warmed.tokens == (await ask(engine, key("b"), later, max_tokens=20)).tokens


async def test_a_deleted_session_is_gone_from_every_tier_at_once(world: VllmWorld) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, STORY)
    await ask(engine, key("a"), prompt, max_tokens=4)
    await settled(engine)
    stored = [path for path in (world.folder / "kv").rglob("*") if path.stat().st_size > offload_of(engine).block_bytes]
    assert payloads(world) and stored
    await engine.release(key("a"))
    assert payloads(world) == [] and not any(path.exists() for path in stored)
    assert engine.place(key("a")).tier == "none"
    await engine.close()
    again = await start(world)
    assert again.place(key("a")).tier == "none"
    assert (await ask(again, key("a"), prompt, max_tokens=4)).finish.cached_tokens == 0


async def test_a_tenants_bound_counts_the_device_and_spares_others(world: VllmWorld) -> None:
    engine = await start(world, write_through=False)  # what there is lies on the device alone
    prompt = await prompt_of(engine, STORY)
    for session, tenant in (("s0", "small"), ("o0", "other"), ("s1", "small")):
        await ask(engine, key(session, tenant), prompt, max_tokens=4)
    await settled(engine)
    small = key("", "small").tenant
    held = engine.holdings.bytes_of(small)
    assert held == 2 * world.whole(len(prompt) + 3) // BLOCK_TOKENS * offload_of(engine).block_bytes
    engine.holdings.ceiling = {small: held}.get
    await ask(engine, key("s2", "small"), prompt, max_tokens=4)
    await settled(engine)
    await until(lambda: engine.holdings.bytes_of(small) <= held)
    assert engine.place(key("s0", "small")).tier == "none", "the one that was used longest ago"
    for kept in (key("s1", "small"), key("s2", "small"), key("o0", "other")):
        assert engine.place(kept).tier == "device"
    assert (await ask(engine, key("s0", "small"), prompt, max_tokens=4)).finish.cached_tokens == 0


async def test_an_opening_lies_on_the_device_once_a_tenant(world: VllmWorld) -> None:
    engine = await start(world)
    opening = tuple(await engine.tokenizer.opening("You are the captain of a small ship on a wide sea. " * 6, ()))
    whole = world.whole(len(opening))
    prompts = [await prompt_of(engine, f"{n} is my name. Who are you?", before=opening) for n in ("Ada", "Bob")]
    shared = {"shared_prefix": len(opening), "max_tokens": 4}
    first = await ask(engine, key("a"), prompts[0], **shared)
    assert first.finish.cached_tokens == 0
    second = await ask(engine, key("b"), prompts[1], **shared)
    assert second.finish.cached_tokens == whole > 0
    same = await ask(engine, key("c"), prompts[0], **shared)
    assert same.finish.cached_tokens == whole, "what stands behind the opening is each session's own"
    assert same.tokens == first.tokens
    foreign = await ask(engine, key("a", tenant="other"), prompts[0], **shared)
    assert foreign.finish.cached_tokens == 0 and foreign.tokens == first.tokens
    again = await ask(engine, key("a"), prompts[0], **shared)
    assert again.finish.cached_tokens == world.whole(len(prompts[0]) - 1)
    await engine.warm(key("w"), prompts[1])  # which does not know what of its prompt is an opening
    warmed = await ask(engine, key("w"), prompts[1], **shared)
    assert warmed.finish.cached_tokens == world.whole(len(prompts[1]) - 1)
    await settled(engine)
    for name in ("a", "b", "c"):
        await engine.release(key(name))
    assert (await ask(engine, key("d"), prompts[0], **shared)).finish.cached_tokens == whole, "w has it still"
    assert engine.stats().counters.get("restores", 0) == 0, "no tier was needed"
    await settled(engine)
    await engine.release(key(OPENINGS))  # where somebody is erased
    erased = await ask(engine, key("d"), prompts[0], **shared)
    assert erased.finish.cached_tokens == world.whole(len(prompts[0]) - 1), "from its own snapshot"
    assert engine.stats().counters["restores"] == 1
    await settled(engine)
    for name in ("d", "w"):
        await engine.release(key(name))
    await engine.release(key(OPENINGS))
    gone = await ask(engine, key("e"), prompts[0], **shared)
    assert gone.finish.cached_tokens == 0 and gone.tokens == first.tokens


async def test_an_opening_is_kept_for_its_tenant_once_a_second_session_has_it_and_for_nobody_else(
    world: VllmWorld,
) -> None:
    engine = await start(world)
    opening = tuple(await engine.tokenizer.opening("You are the captain of a small ship on a wide sea. " * 6, ()))
    whole = world.whole(len(opening))
    prompts = [await prompt_of(engine, f"{n} is my name. Who are you?", before=opening) for n in ("Ada", "Bob", "Cy")]
    shared = {"shared_prefix": len(opening), "max_tokens": 4}
    first = await ask(engine, key("a"), prompts[0], **shared)
    assert first.finish.cached_tokens == 0
    await settled(engine)
    assert engine.stats().counters.get("openings_kept") is None, "what one session begins with may name a person"
    await engine._core.reset()  # nothing of it is on the device
    second = await ask(engine, key("b"), prompts[1], **shared)
    assert second.finish.cached_tokens == 0 < whole
    await settled(engine)
    await engine._core.reset()
    third = await ask(engine, key("c"), prompts[2], **shared)
    assert third.finish.cached_tokens == whole
    foreign = await ask(engine, key("c", tenant="other"), prompts[1], **shared)
    assert foreign.finish.cached_tokens == 0 and foreign.tokens == second.tokens
    await settled(engine)
    assert engine.stats().counters["openings_kept"] == 1
    await engine.release(key(OPENINGS))
    await engine._core.reset()
    fourth = await ask(engine, key("d"), prompts[0], **shared)
    assert fourth.finish.cached_tokens == 0 and fourth.tokens == first.tokens


async def test_a_prompt_that_takes_several_steps_draws_as_one_that_takes_one(world: VllmWorld) -> None:
    engine = await start(world)
    prompts = [await prompt_of(engine, f"{name}. " + STORY * 7) for name in ("Ada", "Bob")]
    assert all(len(prompt) > STEP_TOKENS for prompt in prompts)
    warm = Sampling(temperature=1.2)
    cold = await asyncio.gather(
        *(ask(engine, key(f"s{n}"), prompt, sampling=warm, seed=9, max_tokens=20) for n, prompt in enumerate(prompts))
    )
    for number, prompt in enumerate(prompts):
        resident = await ask(engine, key(f"s{number}"), prompt, sampling=warm, seed=9, max_tokens=20)
        assert len(prompt) - resident.finish.cached_tokens <= BLOCK_TOKENS
        assert resident.tokens == cold[number].tokens


# -- faults --------------------------------------------------------------------------------------------------


def damaged(data: bytes, kind: int, other: bytes, chance: random.Random) -> bytes:
    bad = bytearray(data)
    match kind:
        case 0:
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        case 1:
            del bad[chance.randrange(1, len(bad)) :]
        case 2:
            at = chance.randrange(len(bad) - 4096)
            bad[at : at + 4096] = chance.randbytes(4096)
        case 3:
            return other
        case _:
            bad += b"something more"
    return bytes(bad)


async def test_fifty_damaged_payloads_are_recomputed_with_the_right_output(world: VllmWorld) -> None:
    chance = random.Random(50)
    engine = await start(world)
    prompt = await prompt_of(engine, STORY)
    elsewhere = await prompt_of(engine, STORY.replace("bird", "fish"))
    expected = await ask(engine, key("a"), prompt, max_tokens=6)
    await ask(engine, key("b"), elsewhere, max_tokens=6)
    await settled(engine)
    tiers = offload_of(engine).tiers
    other = tiers.host.of(key("b"))[0].path.read_bytes()
    for round_ in range(50):
        (snapshot,) = tiers.host.of(key("a"))
        path = snapshot.path
        path.write_bytes(damaged(path.read_bytes(), round_ % 5, other, chance))
        assert await engine._core.reset()  # nothing is on the device
        answer = await ask(engine, key("a"), prompt, max_tokens=6)
        assert answer.tokens == expected.tokens
        assert answer.finish.cached_tokens == 0
        await settled(engine)
        again = await ask(engine, key("a"), prompt, max_tokens=6)  # what was computed anew is kept with the next turn
        assert again.tokens == expected.tokens and again.finish.cached_tokens == world.whole(len(prompt) - 1)
        await settled(engine)
    counters = engine.stats().counters
    assert counters["restores_refused"] == 50 and counters["restores_failed"] == 50


def test_what_fails_inside_the_connector_stays_there() -> None:
    connector = SessileConnector.__new__(SessileConnector)  # nothing of it is there: every method fails
    assert connector.get_num_new_matched_tokens(object(), 0) == (0, False)
    assert connector.request_finished(object(), []) == (False, None)
    assert connector.build_connector_meta(object()).saves == []
    assert connector.get_finished(set()) == (None, None)
    connector.on_new_request(object())
    connector.update_state_after_alloc(object(), object(), 32)
    with pytest.raises(KeyboardInterrupt):  # and only what is an error

        @contain_errors(lambda: None)
        def interrupted() -> None:
            raise KeyboardInterrupt

        interrupted()


async def test_an_unknown_version_serves_without_spill(world: VllmWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    known = await start(world)
    await known.close()  # and its core is lent on
    monkeypatch.setattr(async_llm, "CONNECTOR_KNOWS", ("0.1.",))
    engine = await start(world)
    prompt = await prompt_of(engine, STORY)
    await ask(engine, key("a"), prompt, max_tokens=4)
    answer = await ask(engine, key("a"), prompt, max_tokens=4)
    assert answer.finish.cached_tokens == world.whole(len(prompt) - 1)
    assert await engine.export_kv(key("a"), as_tokens(prompt)) is None


async def test_an_answer_that_nobody_reads_any_more_stops_within_a_step(world: VllmWorld) -> None:
    engine = await start(world)
    prompt = await prompt_of(engine, STORY)
    stream = await open_stream(engine, key("a"), prompt, max_tokens=500)
    await stream.abort()
    await settled(engine)  # vLLM has given the blocks back: the file could be closed
    assert engine.stats().running == 0
    assert await engine._core.reset()  # which it can do only when no block is in use
