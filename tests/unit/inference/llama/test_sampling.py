"""Sampling parameters in llama-server's words, and its log-probabilities in OpenAI's."""

from __future__ import annotations

import pytest

from inference.llama.sampling import check_stop_tokens, completion_parameters, tokens_until_end
from inference.llama.vocabulary import read_vocabulary
from sessions.model.errors import BadInput
from sessions.model.types import Sampling, TextOptions
from tests.support.engines.engines import key, request


def test_a_seed_fits_the_server_and_never_means_draw_one() -> None:
    for seed in (0, 5, 0xFFFF_FFFF, 2**53 - 1):
        parameters = completion_parameters(request(key("a"), (1,), sampling=Sampling(), seed=seed), 100)
        assert 0 <= parameters["seed"] <= 0x7FFF_FFFF


def test_a_format_has_one_blank_between_values_whatever_the_client_says_of_it() -> None:
    for given in ({"type": "object"}, {"x-guidance": {"whitespace_flexible": True, "lenient": True}}):
        text = TextOptions(format={"type": "json_schema", "name": "x", "schema": given})
        schema = completion_parameters(request(key("a"), (1,), sampling=Sampling(text=text)), 100)["json_schema"]
        assert schema["x-guidance"] == {
            "whitespace_flexible": False,
            "item_separator": ", ",
            "key_separator": ": ",
        }


def test_until_the_least_length_nothing_ends_the_answer() -> None:
    sampling = Sampling(min_tokens=3, stop_token_ids=(4, 6), logit_bias={"4": 2.0, "5": 2.0})
    held = request(key("a"), (1, 2, 3), sampling=sampling, emitted=(2, 3))
    assert tokens_until_end(held) == 1
    parameters = completion_parameters(held, 100)
    assert parameters["ignore_eos"] is True and "stop_token_ids" not in parameters
    assert parameters["logit_bias"] == [[5, 2.0], [4, False], [6, False]]
    free = request(key("a"), (1, 2, 3, 4), sampling=sampling, emitted=(2, 3, 4))
    assert tokens_until_end(free) == 0
    parameters = completion_parameters(free, 100)
    assert "ignore_eos" not in parameters and parameters["stop_token_ids"] == [4, 6]
    assert parameters["logit_bias"] == [[4, 2.0], [5, 2.0]]
    whole = Sampling(min_tokens=3, text=TextOptions(format={"type": "json_object"}))
    with pytest.raises(BadInput, match="min_tokens"):
        completion_parameters(request(key("a"), (1,), sampling=whole), 100)


def test_stop_tokens_at_which_nothing_could_be_seen_to_end_are_refused() -> None:
    tokens, kinds = ["<end>", "a", "Ã"], (3, 1, 1)
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds}
    vocabulary = read_vocabulary(metadata)
    check_stop_tokens(Sampling(stop_token_ids=(0, 1)), vocabulary)
    check_stop_tokens(Sampling(stop_token_ids=(1,), ignore_eos=True), vocabulary)
    for sampling, why in (
        (Sampling(stop_token_ids=(1, 3)), "3 is no token id"),
        (Sampling(stop_token_ids=(2,)), "part of a character"),
        (Sampling(stop_token_ids=(0,), ignore_eos=True), "'ignore_eos' rules out"),
    ):
        with pytest.raises(BadInput, match=why) as refused:
            check_stop_tokens(sampling, vocabulary)
        assert refused.value.param == "stop_token_ids"


def test_special_tokens_that_are_marks_of_thoughts_and_calls_are_shown() -> None:
    assert "preserved_tokens" not in completion_parameters(request(key("a"), (1,)), 100)
    parameters = completion_parameters(request(key("a"), (1,)), 100, ("<|channel|>", "<|end|>"))
    assert parameters["preserved_tokens"] == ["<|channel|>", "<|end|>"]
