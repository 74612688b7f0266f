"""The grammar of an answer that goes on, at every place where the answer may have been cut, over tokens of one byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.llama import grammar_guide
from inference.llama.grammar_guide import LIFT, GrammarGuide, GrammarGuides, make_guide, make_vocabulary
from sessions.model.errors import BadInput
from sessions.model.types import Json
from tests.support.engines.byte_vocabulary import METADATA, encoded

VOCABULARY = make_vocabulary(METADATA)
LAYOUT: Json = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
TREE: Json = {
    "type": "object",
    "properties": {
        "größe": {"enum": ["groß 😀", 7, None]},
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
        "n": {"type": "integer", "minimum": -20, "maximum": 300},
        "text": {"type": "string", "maxLength": 12},
        "next": {
            "anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}, {"type": "array", "items": {"type": "boolean"}}]
        },
    },
    "required": ["größe", "id", "n", "text", "next"],
    "additionalProperties": False,
}
SCHEMA: Json = {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}, **LAYOUT}

leaves = st.fixed_dictionaries(
    {
        "größe": st.sampled_from(["groß 😀", 7, None]),
        "id": st.from_regex(r"[A-Z]{2}-[0-9]{1,3}", fullmatch=True),
        "n": st.integers(-20, 300),
        "text": st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12),
        "next": st.none() | st.lists(st.booleans(), max_size=3),
    }
)
trees = st.recursive(leaves, lambda inner: st.builds(lambda tree, next_: {**tree, "next": next_}, leaves, inner))


def written(tree: Any) -> list[int]:
    """As a model held to the schema writes it: in its order."""
    return encoded(json.dumps(_ordered(tree), ensure_ascii=False))


def _ordered(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    return {name: _ordered(tree[name]) for name in TREE["properties"]}


def guide_at(emitted: list[int], schema: Json = SCHEMA, **parameters: Json) -> GrammarGuide:
    return make_guide(VOCABULARY, {"json_schema": schema, **parameters}, emitted)


def allowed(guide: GrammarGuide) -> set[int]:
    biases = guide.biases()
    lifted = {token for token, bias in biases if bias is not False and bias >= LIFT / 2}
    banned = {token for token, bias in biases if bias is False}
    return lifted or set(range(len(VOCABULARY.pieces))) - banned


@settings(max_examples=20, deadline=None)
@given(trees, st.data())
def test_what_is_left_of_a_valid_answer_fits_behind_any_cut(tree: Any, data: st.DataObject) -> None:
    tokens = written(tree)
    cut = data.draw(st.integers(0, len(tokens)))
    guide = guide_at(tokens[:cut])
    text = b""
    for token in tokens[cut:]:
        assert token in allowed(guide)
        text += guide.accept(token).encode()
    assert text.endswith(bytes(tokens[cut:])[-1:])
    assert guide.complete


@settings(max_examples=20, deadline=None)
@given(trees, st.data())
def test_what_fits_behind_a_cut_leads_to_a_valid_answer(tree: Any, data: st.DataObject) -> None:
    """Tokens drawn among those that fit, the ones that end things first, whatever the cut."""
    tokens = written(tree)
    answer = tokens[: data.draw(st.integers(0, len(tokens)))]
    guide = guide_at(answer)
    while not guide.complete and len(answer) < 1_000:
        fitting = allowed(guide)
        ends = fitting & set(b'"}],')
        answer.append(data.draw(st.sampled_from(sorted(ends or fitting))))
        guide.accept(answer[-1])
    again = guide_at([])
    for token in answer:
        again.accept(token)
    whole = json.loads(bytes(answer).decode())
    assert set(whole) == set(tree) and again.complete


def test_a_cut_inside_a_character_is_no_other_place() -> None:
    for character in ("ß", "😀"):
        begun, end = encoded(character)[:-1], encoded(character)[-1]
        guide = guide_at(encoded('"' + character) + begun, {"enum": [2 * character]})
        assert allowed(guide) == {end}
        assert guide.accept(end) == character, "what it begins with was released without text"


def test_the_requests_own_biases_hold_among_what_fits() -> None:
    before = encoded('{"größe": ')
    own = [[ord("7"), 3.0], [ord("n"), False], [ord("x"), 9.0]]
    biases = guide_at(before, logit_bias=own).biases()
    assert sorted(biases) == [[ord('"'), LIFT], [ord("7"), LIFT + 3.0]]
    in_text = guide_at(encoded('{"größe": 7, "id": "AB-1", "n": 1, "text": "'), logit_bias=own).biases()
    assert [ord("x"), 9.0] in in_text and [ord("n"), False] in in_text and [ord("\n"), False] in in_text
    only = guide_at(encoded('{"größe": 7'), logit_bias=[[ord(","), False]]).biases()
    assert only == [[ord(","), LIFT]], "a ban of all that fits would leave the choice to what does not"


def test_what_does_not_fit_is_refused_and_so_is_what_is_no_schema() -> None:
    for text in ("Once", '{"grosse', '{"größe": 7, "id": "ab'):
        with pytest.raises(BadInput, match=r"^recovery_incompatible: "):
            guide_at(encoded(text))
    with pytest.raises(BadInput, match=r"^recovery_incompatible: "):
        guide_at(encoded('{"')).accept(ord("{"))
    for bad in ({"type": "bogus"}, {"type": "string", "pattern": "("}):
        with pytest.raises(BadInput, match=r"^invalid_schema: "):
            guide_at([], bad)


async def test_the_vocabulary_is_read_once_and_again_where_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[Path] = []

    def load(path: Path) -> grammar_guide.GuideVocabulary:
        paths.append(path)
        if len(paths) == 1:
            raise OSError("not there")
        return VOCABULARY

    monkeypatch.setattr(grammar_guide, "load_vocabulary", load)
    guides = GrammarGuides(Path("m.gguf"))
    with pytest.raises(OSError, match="not there"):
        await guides.guide({"json_schema": SCHEMA}, encoded("{"))
    for _ in range(2):
        guide = await guides.guide({"json_schema": SCHEMA}, encoded("{"))
        assert isinstance(guide, GrammarGuide) and allowed(guide) == {ord('"')}
    assert len(paths) == 2
