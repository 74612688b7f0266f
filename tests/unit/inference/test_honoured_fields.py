"""Each engine lists exactly the fields of `Sampling` that it reads: one more is dropped in silence, one less refused.

vLLM's own list is tested where vLLM is installed (`tests/vllm/test_parameters.py`).
"""

from __future__ import annotations

from pathlib import Path

from inference.llama.sampling import completion_parameters
from inference.remote.llama_dialect import LlamaDialect
from inference.remote.options import RemoteOptions
from inference.remote.vllm_dialect import VllmDialect
from inference.sampling import HONOURED
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.types import Sampling
from tests.support.engines.engines import ask, key
from tests.support.engines.sampling_fields import each_field, fields_read

URL = "http://127.0.0.1:1/v1"


def test_llama_reads_what_it_lists_here_and_on_a_server() -> None:
    read = fields_read(lambda request: completion_parameters(request, 100))
    assert read == HONOURED == LlamaDialect.sampling


def test_vllms_server_gets_the_fields_that_are_listed() -> None:
    dialect = VllmDialect(RemoteOptions(urls=(URL,), tokenizer=Path("folder")))

    class Tokenizer:
        vocabulary_size = 100
        shows_specials = False

    dialect._tokenizer = Tokenizer()  # type: ignore[assignment]
    assert fields_read(lambda request: dialect._body("m", request)) == VllmDialect.sampling


async def test_the_simulated_engine_answers_otherwise_by_what_it_lists_and_by_nothing_else() -> None:
    engine = SimulatedEngine(SimulatedOptions(answer_tokens_mean=4, step_base_s=0.0001, temperature=1))
    await engine.start()
    try:

        async def answer(sampling: Sampling, seed: int) -> str:
            return (await ask(engine, key("a"), (9, 10, 11), sampling=sampling, seed=seed, max_tokens=40)).text

        plain, read = await answer(Sampling(), 7), set()
        for name, sampling in each_field().items():
            changed = await answer(sampling, 7 if sampling.seed is None else sampling.seed)
            read |= {name} if changed != plain else set()
        assert read == engine.info.sampling
    finally:
        await engine.close()
