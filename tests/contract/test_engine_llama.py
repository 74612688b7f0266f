"""What llama.cpp must do beyond the contract: spill and restore, refuse bad models, keep formats, leave signals be."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from inference.llama import LlamaEngine, LlamaOptions
from sessions.model.errors import BadInput
from sessions.model.generation import Chunk, KVPlace
from sessions.model.types import OPENINGS, Json, Sampling, SessionKey, TextOptions
from testbed.engine_client import Answer, ask, follow_up, key, open_stream, prompt_of, request, until
from tests.support.engines.engines import SLOTS, WINDOW, AlwaysRestores

pytestmark = pytest.mark.model

STORY = "Tell me a story about a bird that could not fly, about its friends, and about the river that they crossed."
Start = Callable[..., Any]


@pytest.fixture
async def start(model_path: Path, tmp_path: Path) -> AsyncIterator[Start]:
    engines: list[LlamaEngine] = []

    async def make(**options: Any) -> LlamaEngine:
        defaults: dict[str, Any] = {
            "model_path": model_path,
            "slots": SLOTS,
            "context_window": WINDOW,
            "spill_tokens_min": 16,
            "disk_folder": tmp_path / "kv",
            "staging_folder": tmp_path / "staging",
        }
        engine = LlamaEngine(LlamaOptions(**(defaults | options)), cost=AlwaysRestores())
        engines.append(engine)
        await engine.start()
        return engine

    yield make
    for engine in engines:
        await engine.close()


async def crowd(engine: LlamaEngine, number: int) -> None:
    """Other sessions take every slot, and are gone again."""
    for index in range(SLOTS):
        other = key(f"crowd-{number}-{index}")
        await ask(engine, other, await prompt_of(engine, f"Name river {index}."), max_tokens=1)
    for index in range(SLOTS):
        await engine.release(key(f"crowd-{number}-{index}"))


async def twins(engine: LlamaEngine) -> tuple[Answer, tuple[int, ...], Answer]:
    """The first turn of session a, its follow-up's prompt, and the answer that resident KV gives to that."""
    prompt = await prompt_of(engine, STORY)
    first = await ask(engine, key("a"), prompt, max_tokens=16)
    twin = await ask(engine, key("twin"), prompt, max_tokens=16)
    assert twin.tokens == first.tokens
    later = await follow_up(engine, prompt, first, "Go on, and say how it ended.")
    expected = await ask(engine, key("twin"), later, max_tokens=12)
    assert expected.finish.cached_tokens == len(prompt) + len(first.tokens) - 1
    await engine.release(key("twin"))
    return first, later, expected


# -- spill and restore -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_session_that_lost_its_slot_comes_back_from_memory(start: Start) -> None:
    engine = await start()
    _, later, expected = await twins(engine)
    for number in range(3):
        await crowd(engine, number)
        assert engine.place(key("a")).tier == "host"
        again = await ask(engine, key("a"), later, max_tokens=12)
        assert again.tokens == expected.tokens
        assert again.finish.cached_tokens >= expected.finish.cached_tokens
    counters = engine.stats().counters
    assert counters["restores"] == 3 and counters["reuse_misses"] == 0


async def test_a_restart_finds_every_session_on_disk(start: Start) -> None:
    engine = await start()
    _, later, expected = await twins(engine)
    covered = engine.place(key("a")).tokens
    await engine.close()
    again = await start()
    assert again.place(key("a")) == KVPlace("disk", covered)
    answer = await ask(again, key("a"), later, max_tokens=12)
    assert answer.tokens == expected.tokens
    assert answer.finish.cached_tokens == covered


def damaged(data: bytes, kind: int, chance: random.Random) -> bytes:
    bad = bytearray(data)
    match kind:
        case 0:
            bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        case 1:
            del bad[chance.randrange(len(bad)) :]
        case 2:
            at = chance.randrange(len(bad))
            bad[at : at + 4096] = bytes(len(bad[at : at + 4096]))
        case 3:
            bad[: 1 << 16] = chance.randbytes(1 << 16)
        case _:
            bad += b"something more"
    return bytes(bad)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_fifty_damaged_snapshots_are_recomputed_with_the_right_output(start: Start, tmp_path: Path) -> None:
    chance = random.Random(50)
    engine = await start()
    _, later, _ = await twins(engine)
    expected = await ask(engine, key("a"), later, max_tokens=6)
    for round_ in range(40):  # in host memory, where a running engine keeps them
        await crowd(engine, round_)
        assert engine.place(key("a")).tier == "host"
        await engine._slot_kv.settle()
        (path,) = (tmp_path / "staging").rglob("*.slot")
        await until(lambda: all(s.manifest is not None for s in engine._slot_kv.tiers.host))
        good = path.read_bytes()
        path.write_bytes(damaged(good, round_ % 5, chance))
        answer = await ask(engine, key("a"), later, max_tokens=6)
        assert answer.tokens == expected.tokens
        assert answer.finish.cached_tokens == 0
    counters = engine.stats().counters
    assert counters["restores_refused"] == 40 and counters["restores"] == 0
    for round_ in range(10):  # and on disk, while the engine is down
        await engine.close()
        (path,) = (tmp_path / "kv").iterdir()
        path.write_bytes(damaged(path.read_bytes(), round_ % 5, chance))
        engine = await start()
        answer = await ask(engine, key("a"), later, max_tokens=6)
        assert answer.tokens == expected.tokens and answer.finish.cached_tokens == 0


async def test_an_opening_is_kept_for_its_tenant_once_a_second_session_has_it_and_for_nobody_else(start: Start) -> None:
    engine = await start(slots=1)
    opening = tuple(await engine.tokenizer.opening("You are the captain of a small ship on a wide sea.", ()))
    prompts = [await prompt_of(engine, f"{n} is my name. Who are you?", before=opening) for n in ("Ada", "Bob", "Cy")]
    shared = {"shared_prefix": len(opening), "max_tokens": 4}
    kept = SessionKey(key("a").tenant, OPENINGS)
    first = await ask(engine, key("a"), prompts[0], **shared)
    assert first.finish.cached_tokens == 0  # it had to be computed, so nothing was there
    second = await ask(engine, key("b"), prompts[1], **shared)  # in the slot that has it
    turn_opening = len(engine.tokenizer.turn_opening)
    assert len(opening) <= second.finish.cached_tokens <= len(opening) + turn_opening
    assert engine.place(kept).tier == "none", "what one session begins with may name a person"
    foreign = await ask(engine, key("c", tenant="other"), prompts[2], **shared)
    assert foreign.finish.cached_tokens == 0
    back = await ask(engine, key("d"), prompts[2], **shared)  # the slot was the other tenant's in between
    assert back.finish.cached_tokens == 0 and engine.place(kept).tokens == len(opening)
    assert back.tokens == foreign.tokens
    unasked = await ask(engine, key("e", tenant="third"), prompts[1], max_tokens=4)
    assert unasked.finish.cached_tokens == 0 and unasked.tokens == second.tokens
    laid = await ask(engine, key("f"), prompts[1], **shared)
    assert laid.finish.cached_tokens == len(opening) and laid.tokens == second.tokens
    counters = engine.stats().counters
    assert counters["openings_laid"] == 1
    computed = (*prompts, *prompts[1:], prompts[1])
    assert counters["prefilled_tokens"] + counters["reused_tokens"] == sum(len(p) for p in computed)
    assert kept not in engine.held_sessions()
    await engine.release(kept)
    assert engine.place(kept).tier == "none"


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_sessions_never_see_each_other_under_eviction_aborts_and_deletion(start: Start) -> None:
    """Canaries: every answer is compared with the one that the session gives alone."""
    chance = random.Random(300)
    engine = await start(host_bytes_max=6_000_000, waiting_max=64)
    names = [f"s{n}" for n in range(6)]
    prompts = {name: await prompt_of(engine, f"{STORY} Its secret name was {name * 3}.") for name in names}
    alone = {}
    for name in names:
        alone[name] = (await ask(engine, key(f"{name}-alone"), prompts[name], max_tokens=12)).tokens
        await engine.release(key(f"{name}-alone"))
    answers = 0

    async def one(name: str, fate: int) -> None:
        nonlocal answers
        if fate == 0:
            stream = engine.generate(request(key(name), prompts[name], max_tokens=12))
            cut = chance.randrange(3)
            async for index_chunk in stream:
                if isinstance(index_chunk, Chunk) and cut == 0:
                    break
                cut -= 1
            await stream.aclose()
        elif fate == 1:
            task = asyncio.create_task(ask(engine, key(name), prompts[name], max_tokens=12))
            for _ in range(chance.randrange(60)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        elif fate == 2:
            await engine.release(key(name))
        else:
            assert (await ask(engine, key(name), prompts[name], max_tokens=12)).tokens == alone[name]
            answers += 1

    for _ in range(75):
        await asyncio.gather(*(one(chance.choice(names), chance.randrange(8)) for _ in range(4)))
    await until(lambda: engine.stats().running == 0)
    engine._table.check_integrity()
    counters = engine.stats().counters
    assert answers > 120 and counters["restores"] > 20
    assert counters["reuse_misses"] == 0 and counters["saves_of_others"] == 0


# -- formats and sampling --------------------------------------------------------------------------------


def formatted(schema: dict[str, Any]) -> Sampling:
    return Sampling(temperature=0, text=TextOptions(format={"type": "json_schema", "name": "x", "schema": schema}))


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


async def test_json_does_not_run_in_white_space_to_the_limit(start: Start) -> None:
    """With all weight on blanks, which a small model's own weights come close to."""
    engine = await start()
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    blanks = {(await engine.tokenizer.text(blank))[0] for blank in (" ", "\n", "\t", "  ", "\n\n", " \n")}
    numbers = {"enum": [1, 2]}
    properties = {"a": numbers, "b": {"type": "array", "items": numbers, "maxItems": 2}}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": ["a", "b"]}
    schema["additionalProperties"] = False
    format = {"type": "json_schema", "name": "x", "schema": schema}
    sampling = Sampling(temperature=0, logit_bias=dict.fromkeys(map(str, blanks), 100), text=TextOptions(format=format))
    answer = await ask(engine, key("a"), prompt, max_tokens=60, sampling=sampling)
    assert msgspec.json.decode(answer.text)["a"] in (1, 2) and answer.finish.reason == "stop"
    assert "  " not in answer.text and "\n" not in answer.text


async def test_a_format_is_kept_where_all_that_it_allows_is_banned(start: Start) -> None:
    engine = await start()
    (seven,) = await engine.tokenizer.text("7")
    format = {"type": "json_schema", "name": "x", "schema": {"const": 7}}
    sampling = Sampling(temperature=0, logit_bias={str(seven): -100}, text=TextOptions(format=format))
    answer = await ask(engine, key("a"), await prompt_of(engine, "A number?"), sampling=sampling)
    assert answer.text == "7"


async def test_a_format_is_kept_and_a_schema_that_is_none_is_refused(start: Start) -> None:
    engine = await start()
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    answer = await ask(engine, key("a"), prompt, max_tokens=80, sampling=formatted(PERSON))
    person = msgspec.json.decode(answer.text, type=dict[str, Any])
    assert isinstance(person["name"], str) and isinstance(person["age"], int)
    assert answer.finish.cached_tokens == 0  # the trial of the schema is not passed off as reuse
    anything = Sampling(temperature=0, text=TextOptions(format={"type": "json_object"}))
    assert (await ask(engine, key("a"), prompt, sampling=anything, max_tokens=2)).text.lstrip().startswith("{")
    for bad in ({"type": "bogus"}, {"not": {"type": "string"}}, {"type": "string", "pattern": "("}):
        with pytest.raises(BadInput) as refused:
            await ask(engine, key("a"), prompt, sampling=formatted(bad))
        assert refused.value.code == "invalid_schema" and refused.value.param == "text.format"
    with pytest.raises(BadInput):
        await ask(engine, key("a"), prompt, sampling=Sampling(text=TextOptions(format={"type": "poem"})))
    assert engine.stats().running == 0


@pytest.mark.slow
async def test_a_constrained_answer_goes_on_from_each_of_its_tokens(start: Start) -> None:
    """As at a replica that gets the tokens so far and nothing else."""
    engine = await start()
    schema: Json = {
        "type": "object",
        "properties": {
            "größe": {"enum": ["groß 😀", 7]},
            "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/person"}]},
        },
        "required": ["größe", "id", "next"],
        "additionalProperties": False,
        "$defs": {"person": PERSON},
    }
    validator = jsonschema_rs.validator_for(schema)
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    whole = await ask(engine, key("a"), prompt, max_tokens=120, sampling=formatted(schema))
    assert whole.finish.reason == "stop"
    validator.validate(msgspec.json.decode(whole.text))
    released = ""
    emitted: tuple[int, ...] = ()
    for chunk in whole.chunks:
        released, emitted = released + chunk.text, (*emitted, *chunk.tokens)
        rest = await ask(
            engine, key("a"), (*prompt, *emitted), max_tokens=120, sampling=formatted(schema), emitted=emitted
        )
        assert rest.finish.reason == "stop"
        validator.validate(msgspec.json.decode(released + rest.text))
    assert rest.text == ""


async def test_spellings_of_control_tokens_in_a_string_do_not_end_a_constrained_answer(start: Start) -> None:
    engine = await start()
    prompt = await prompt_of(engine, "Describe a person as JSON.")
    released = '{"name": "<|im_end|>'
    emitted = tuple(await engine.tokenizer.text(released))
    rest = await ask(engine, key("a"), (*prompt, *emitted), max_tokens=80, sampling=formatted(PERSON), emitted=emitted)
    assert msgspec.json.decode(released + rest.text)["name"].startswith("<|im_end|>")


async def test_biases_and_log_probabilities(start: Start) -> None:
    engine = await start()
    prompt = await prompt_of(engine, "Tell me a long story about the sea.")
    free = await ask(engine, key("a"), prompt, max_tokens=1)
    banned = Sampling(temperature=0, logit_bias={str(free.tokens[0]): -100.0})
    other = await ask(engine, key("a"), prompt, max_tokens=1, sampling=banned)
    assert other.tokens != free.tokens
    wanted = Sampling(temperature=0, logit_bias={str(other.tokens[0]): 100.0})
    assert (await ask(engine, key("a"), prompt, max_tokens=1, sampling=wanted)).tokens == other.tokens
    for name in ("x", "-1", "99999999", "٣"):
        with pytest.raises(BadInput) as refused:
            await ask(engine, key("a"), prompt, sampling=Sampling(logit_bias={name: 1.0}))
        assert refused.value.param == "logit_bias"
    answer = await ask(
        engine, key("a"), prompt, max_tokens=3, sampling=Sampling(temperature=0, logprobs=True, top_logprobs=4)
    )
    for chunk in answer.chunks:
        (entry,) = chunk.logprobs
        assert entry["token"] == chunk.text and entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 4


@pytest.mark.slow
async def test_stop_tokens_end_an_answer_and_a_least_length_holds_it(start: Start) -> None:
    engine = await start()
    prompt = await prompt_of(engine, "What is the capital of France?")
    plain = await ask(engine, key("plain"), prompt, max_tokens=60)
    assert plain.finish.reason == "stop" and 3 < len(plain.tokens) < 60
    place = next(index for index, token in enumerate(plain.tokens) if index and token not in plain.tokens[:index])
    stops = Sampling(temperature=0, stop_token_ids=(plain.tokens[place],))
    ended = await ask(engine, key("ended"), prompt, max_tokens=60, sampling=stops)
    assert ended.tokens == plain.tokens[:place] and ended.finish.reason == "stop"
    assert ended.text == "".join(chunk.text for chunk in plain.chunks[:place])
    least = len(plain.tokens) + 10
    held = await ask(engine, key("held"), prompt, max_tokens=80, sampling=Sampling(temperature=0, min_tokens=least))
    assert held.tokens[: len(plain.tokens)] == plain.tokens
    assert len(held.tokens) >= least and held.finish.prompt_tokens == len(prompt)
    both = msgspec.structs.replace(stops, min_tokens=place + 5)
    without = await ask(engine, key("both"), prompt, max_tokens=80, sampling=both)
    assert plain.tokens[place] not in without.tokens[: place + 5] and len(without.tokens) >= place + 5
    limited = await ask(engine, key("limit"), prompt, max_tokens=5, sampling=Sampling(temperature=0, min_tokens=50))
    assert (len(limited.tokens), limited.finish.reason) == (5, "length")
    stats = engine.stats().counters
    assert stats["preemptions"] == 0 and not any(slot.busy for slot in engine._table)
    later = await follow_up(engine, prompt, ended, "And of Spain?")
    again = await ask(engine, key("ended"), later, max_tokens=8)
    assert again.finish.cached_tokens >= len(prompt) + len(ended.tokens) - 1
    with pytest.raises(BadInput, match="min_tokens"):
        text = TextOptions(format={"type": "json_object"})
        await ask(engine, key("x"), prompt, sampling=Sampling(min_tokens=5, text=text))


@pytest.mark.slow
async def test_penalties_count_what_was_emitted_before_a_failure(start: Start) -> None:
    engine = await start()
    prompt = await prompt_of(engine, "Say la la la la la la.")
    harsh = Sampling(temperature=0, frequency_penalty=1.5, presence_penalty=1.0, repeat_penalty=1.3)
    whole = await ask(engine, key("a"), prompt, max_tokens=24, sampling=harsh)
    emitted = whole.tokens[:10]
    rest = await ask(engine, key("b"), (*prompt, *emitted), emitted=emitted, max_tokens=14, sampling=harsh)
    assert emitted + rest.tokens == whole.tokens
    assert whole.tokens != (await ask(engine, key("c"), prompt, max_tokens=24)).tokens


# -- the tokenizer ---------------------------------------------------------------------------------------


# -- starting --------------------------------------------------------------------------------------------


async def test_other_things_that_cannot_be_are_refused_at_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for options, code in (
        ({"chat_template": "{{ eos_token }}"}, "bad_chat_template"),
        ({"disk_folder": tmp_path / "file"}, "bad_kv_folder"),
    ):
        with pytest.raises(BadInput) as refused:
            await start(**options)
        assert refused.value.code == code
    assert list((tmp_path / "staging").iterdir()) == []  # nothing stays behind
    for name, value in (("slots", 0), ("context_window", 10), ("threads", 0), ("disk_bytes_max", -1)):
        with pytest.raises(BadInput) as refused:
            await start(**{name: value})
        assert refused.value.param == name


@pytest.fixture
def handled() -> Iterator[list[int]]:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, before)


async def test_the_processs_own_signal_handlers_stay(start: Start, handled: list[int]) -> None:
    engine = await start()
    os.kill(os.getpid(), signal.SIGTERM)
    await until(lambda: handled == [signal.SIGTERM])
    assert len((await ask(engine, key("a"), await prompt_of(engine, "Hi."), max_tokens=1)).tokens) == 1


@pytest.mark.slow
async def test_closing_in_mid_answer_still_saves_what_is_idle(start: Start) -> None:
    engine = await start()
    _, later, expected = await twins(engine)
    stream = await open_stream(engine, key("busy"), await prompt_of(engine, STORY))
    await engine.close()
    await stream.abort()
    again = await start()
    assert again.place(key("a")).tier == "disk"
    assert (await ask(again, key("a"), later, max_tokens=12)).tokens == expected.tokens


# -- beside another tenant ---------------------------------------------------------------------------------


async def test_a_tenants_kv_stays_below_its_bound_and_anothers_is_left_alone(start: Start) -> None:
    engine = await start(slots=4, disk_folder=None)
    prompt = await prompt_of(engine, STORY)
    for number in range(2):
        await ask(engine, key(f"o{number}", "other"), prompt, max_tokens=4)
    await ask(engine, key("s0", "small"), prompt, max_tokens=4)
    one = engine.holdings.bytes_of(key("s0", "small").tenant)
    assert one > 0
    engine.holdings.ceiling = {key("", "small").tenant: one + one // 2}.get
    await ask(engine, key("s1", "small"), prompt, max_tokens=4)
    await asyncio.wait_for(engine._slot_kv.tiers.host.settle(), 60)
    assert engine.holdings.bytes_of(key("", "small").tenant) <= one + one // 2
    assert engine.place(key("s0", "small")).tier == "none", "the one that was used longest ago"
    assert engine.place(key("s1", "small")).tokens > 0
    for number in range(2):
        assert engine.place(key(f"o{number}", "other")).tier == "device"

    engine.holdings.ceiling = lambda tenant: None
    (slot,) = engine._table.of(key("s1", "small"))
    await engine._slot_kv.save(slot)
    saved = engine.holdings.bytes_of(key("", "small").tenant)
    assert saved < 1.5 * one, "what a snapshot covers counts once"
    (snapshot,) = engine._slot_kv.tiers.host.of(key("s1", "small"))
    await engine._slot_kv.tiers.catalog.drop(snapshot)
    assert engine.holdings.bytes_of(key("", "small").tenant) > one // 2, "and on the device again when that is gone"


# -- speculation, and KV in 8 bits: the same text, KV that takes the tiers, half the bytes

LIST = "Repeat this list exactly, and write nothing else:\n" + "\n".join(
    f"{number}. item number {number} has the colour {colour} and the price {number * 7} euros"
    for number, colour in enumerate(["red", "green", "blue", "white", "black"], 1)
)


@pytest.mark.slow
async def test_repeated_text_is_drafted_and_the_answer_is_the_same(start: Start) -> None:
    plain = await start()
    prompt = await prompt_of(plain, LIST)
    expected = await ask(plain, key("a"), prompt, max_tokens=90)
    assert not plain.stats().counters["drafted_tokens"]
    await plain.close()
    engine = await start(speculation="ngram")
    answer = await ask(engine, key("b"), prompt, max_tokens=90)
    assert (answer.tokens, answer.text) == (expected.tokens, expected.text)
    counters = engine.stats().counters
    assert 0 < counters["accepted_tokens"] <= counters["drafted_tokens"]
    for cut in (20, 43, 71):  # as another replica goes on after a failure, in the middle of what was drafted
        emitted = expected.tokens[:cut]
        rest = await ask(engine, key(f"cut{cut}"), (*prompt, *emitted), max_tokens=90 - cut, emitted=emitted)
        assert emitted + rest.tokens == expected.tokens


@pytest.mark.slow
async def test_an_answer_that_ends_among_drafts_leaves_its_own_tokens_and_no_others(start: Start) -> None:
    engine = await start(speculation="ngram")
    prompt = await prompt_of(engine, LIST)
    for number, tokens in enumerate((37, 50, 64)):
        who = key(f"s{number}")
        first = await ask(engine, who, prompt, max_tokens=tokens)
        later = await follow_up(engine, prompt, first, "Once more.")
        resident = await ask(engine, who, later, max_tokens=24)
        assert resident.finish.cached_tokens == len(prompt) + len(first.tokens) - 1
        cold = await ask(engine, key(f"cold{number}"), later, max_tokens=24)
        assert cold.tokens == resident.tokens
        for each in (who, key(f"cold{number}")):
            await engine.release(each)
    assert engine.stats().counters["reuse_misses"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"speculation": "ngram"}, {"kv_dtype": "8bit"}], ids=["speculation", "8bit"])
async def test_a_session_comes_back_from_the_tiers(start: Start, options: dict[str, str]) -> None:
    engine = await start(**options)
    prompt = await prompt_of(engine, LIST)
    first = await ask(engine, key("a"), prompt, max_tokens=60)
    later = await follow_up(engine, prompt, first, "Once more.")
    await engine.close()  # which saves it
    engine = await start(**options)
    assert engine.place(key("a")).tier == "disk"
    again = await ask(engine, key("a"), later, max_tokens=24)
    assert again.finish.cached_tokens >= len(prompt)
    cold = await ask(engine, key("cold"), later, max_tokens=24)
    assert cold.tokens == again.tokens


@pytest.mark.slow
async def test_8_bits_take_half_the_bytes_and_are_no_kv_of_the_other_kind(start: Start) -> None:
    held = {}
    for dtype in ("auto", "8bit"):
        engine = await start(kv_dtype=dtype)
        assert engine.place(key("of another kind")).tier == "none", "what has another shape is not found"
        prompt = await prompt_of(engine, LIST)
        who = key("mine" if dtype == "8bit" else "of another kind")
        await ask(engine, who, prompt, max_tokens=40, sampling=Sampling(temperature=0))
        await engine.park(who)
        for number in range(SLOTS):
            await ask(engine, key(f"{dtype}{number}"), await prompt_of(engine, f"Name river {number}."), max_tokens=1)
        await until(lambda engine=engine, who=who: engine.place(who).tier == "host")  # type: ignore[misc]
        held[dtype] = engine._slot_kv.tiers.host.bytes
        await engine.close()
    assert held["8bit"] <= 0.55 * held["auto"]
