"""The packaged model: vectors that mean something, tokens that are counted, what it cannot take."""

from __future__ import annotations

import pytest

from inference.embedding.packaged import BadInputs, PackagedModel, installed, package_folder


@pytest.fixture(scope="module")
def model() -> PackagedModel:
    return PackagedModel()


def test_it_is_installed_for_tests_and_what_is_not_there_says_how_to_get_it() -> None:
    assert installed()
    with pytest.raises(FileNotFoundError, match="make setup-retrieval"):
        package_folder("no_such_package_here")


def test_token_ids_are_the_text_that_they_stand_for(model: PackagedModel) -> None:
    ids = tuple(model._tokenizer.encode("hello world", add_special_tokens=False).ids)
    assert model.embed((ids,)) == model.embed(("hello world",))
    assert model.embed(((101, *ids, 102),)) == model.embed(("hello world",))
    assert model.decode((ids,)) == ["hello world"]


@pytest.mark.parametrize(("given", "too_long"), [("word " * 600, True), ((99_999_999,), False), ((7,) * 600, True)])
def test_what_it_cannot_take_is_named(model: PackagedModel, given: str | tuple[int, ...], too_long: bool) -> None:
    with pytest.raises(BadInputs) as refused:
        model.embed(("fine", given))
    assert (refused.value.index, refused.value.too_long) == (1, too_long)


def test_documents_are_ranked_by_what_of_the_query_they_have(model: PackagedModel) -> None:
    long = "Nothing of note happened on the farm that year. " * 60 + "The capital of France is Paris."
    documents = ("Bananas are yellow.", "Paris is the capital of France.", long, "")
    scores, tokens = model.rank("What is the capital of France?", documents)
    assert max(range(4), key=scores.__getitem__) == 1 and scores[2] > scores[0] > scores[3] == -1
    assert tokens > 600


def test_tokens_are_where_they_stand(model: PackagedModel) -> None:
    text = "Straße, naïve — 漢字"
    starts, ends = model.split(text)
    assert len(starts) == len(ends) and list(starts) == sorted(starts)
    assert {text[begin:end] for begin, end in zip(starts, ends, strict=True)} >= {",", "—", "漢", "字"}
    assert model.split("") == ([], [])
