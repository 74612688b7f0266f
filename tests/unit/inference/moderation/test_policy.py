"""Policy files: read as a whole, refused with the place of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.moderation.policy import FILE_BYTES_MAX, BadPolicy, parse_policies, read_policies

GOOD = """
[guards.g]
url = "http://guard.example/v1"
[policies.default]
[policies.careful]
mode = "strict"
[policies.careful.input]
pii = { kinds = ["email", "person"], action = "redact" }
guard = { name = "g" }
[policies.careful.output]
toxicity = { action = "flag" }
[tenants]
acme = "careful"
"""


def test_a_rule_on_images_may_name_a_guard() -> None:
    seeing = GOOD.replace("[policies.default]", "template = 'Is it safe?{text}'\n[policies.default]")
    policies = parse_policies(seeing + "[policies.default.input.images]\nguard = 'g'\nthreshold = 0.9\n")
    assert policies.guarded == {"g"} and policies.models == {"guard", "entities", "toxicity"}
    rule = policies.of("other").input.images
    assert rule is not None and (rule.action, rule.guard, rule.threshold) == ("block", "g", 0.9)
    every = parse_policies("[policies.default.input.images]\naction = 'flag'\n")
    assert every.guarded == frozenset() and every.of("other").input.rules.keys() == {"images"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "policies"),
        ("[policies.other]\n", "`default`"),
        ("[policies.default]\nmode = 'loud'\n", "mode"),
        ("[policies.default]\nmode='async'\n[policies.default.input]\npii = { action = 'retract' }\n", "input.pii"),
        ("[policies.default.input]\ntoxicity = { threshold = 2.0 }\n", "threshold"),
        ("[policies.default.input]\nprompt_injection = {}\n", "use `guard`"),
        ("policies =", "Invalid"),
        ("[policies.default]\nmodes = 'x'\n", "modes"),
        ("[policies.default]\n[tenants]\na = 'b'\n", "tenants.a"),
        ("[policies.default.input]\npii = { kinds = ['emails'] }\n", "policies.default.input.pii.kinds"),
        ("[policies.default.output]\npii = { kinds = ['person'] }\n", "in messages only"),
        ("[policies.default.input]\nphrases = { deny = [] }\n", "`deny` is empty"),
        ("[policies.default.input]\ntoxicity = { action = 'redact' }\n", "names no span"),
        ("[policies.default.output]\nsecrets = { action = 'retract' }\n", "mode `async`"),
        ("[policies.default.input]\nguard = {}\n", "no guard named 'default'"),
        ("[policies.default.input.images]\naction = 'redact'\n", "input.images.action"),
        ("[policies.default.output.images]\n", "only messages"),
        ("[policies.default.input.images]\nguard = 'g'\n", "no guard named 'g'"),
        ("[guards.g]\nmodel_path = 'g.gguf'\n[policies.default.input.images]\nguard = 'g'\n", "sees no images"),
        ("[guards.g]\nurl = 'http://x'\n[policies.default.input.images]\nguard = 'g'\n", "asks about an image"),
        ("[policies.default", "']'"),
    ],
)
def test_a_malformed_policy_is_refused_with_its_place(text: str, why: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        parse_policies(text)
    assert why in caught.value.public_message


def test_a_file_is_toml_or_json_and_named_where_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text('{"policies": {"default": {"mode": "async"}}}')
    assert read_policies(str(path)).of("any").mode == "async"
    path.write_text("{")
    with pytest.raises(BadPolicy, match=r"p\.json"):
        read_policies(str(path))
    with pytest.raises(BadPolicy, match=r"missing\.toml"):
        read_policies(str(tmp_path / "missing.toml"))
    path.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(BadPolicy, match="larger"):
        read_policies(str(path))
