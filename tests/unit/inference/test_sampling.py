"""What a request's sampling parameters mean for every engine: schemas and biases, or a refusal that names the field."""

from __future__ import annotations

from typing import Any

import pytest

from inference.sampling import output_schema
from sessions.model.errors import BadInput
from sessions.model.types import Json, Sampling, TextOptions
from tests.support.engines.engines import key, request

SCHEMA = {"type": "array"}


def schema_of(format_: Json, **more: Any) -> Json | None:
    return output_schema(request(key("a"), (1, 2), sampling=Sampling(text=TextOptions(format=format_)), **more))


def test_a_format_is_text_any_object_or_a_schema_in_either_spelling() -> None:
    assert output_schema(request(key("a"), (1,))) is None
    assert schema_of({"type": "text"}) is None and schema_of({"type": "text"}, emitted=(2,)) is None
    assert schema_of({"type": "json_object"}) == {"type": "object"} == schema_of({"type": "json_object"}, emitted=(2,))
    assert schema_of({"type": "json_schema", "schema": SCHEMA}) == SCHEMA
    assert schema_of({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}) == SCHEMA


def test_an_unknown_format_is_refused() -> None:
    for format_ in ({"type": "yaml"}, {"type": "json_schema"}):
        with pytest.raises(BadInput) as refused:
            schema_of(format_)
        assert refused.value.code == "invalid_format"
