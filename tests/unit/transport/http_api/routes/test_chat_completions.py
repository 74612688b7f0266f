"""Several prompts' completions are one."""

from __future__ import annotations

from typing import Any

from transport.http_api.routes.chat import merged


def whole(index: int, cost: str | None) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    usage |= {"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 0}}
    if cost is not None:
        usage["cost"] = {"amount": cost, "currency": "USD", "price_version": "v"}
    return {"id": f"cmpl-{index}", "choices": [{"index": index}], "usage": usage}


def test_choices_stand_one_behind_the_other_and_usage_is_summed() -> None:
    one = merged([whole(0, "0.5"), whole(1, "0.25")])
    assert one["id"] == "cmpl-0" and [each["index"] for each in one["choices"]] == [0, 1]
    assert one["usage"]["total_tokens"] == 6 and one["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert one["usage"]["cost"]["amount"] == "0.75"
    assert "cost" not in merged([whole(0, None), whole(1, None)])["usage"]
