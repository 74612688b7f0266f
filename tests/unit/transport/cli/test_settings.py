"""Settings, commands and what operators are shown: bad input is refused by name, and says what is allowed."""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path

import pytest

from actors.peer.frames import ResidentSession
from sessions.model.errors import BadInput
from sessions.model.types import SessionId, SessionKey, TenantId
from transport.cli.arguments import check_role, parser, taken_sessions
from transport.cli.operator import Found, in_json, key_of, tabled
from transport.cli.settings import BadSetting, Settings, read_settings

ONE = ResidentSession(
    key=SessionKey(TenantId("acme"), SessionId("one")),
    replica="r1",
    state="idle",
    fence=3,
    epoch="e",
    top=12,
    open=(),
    kv_tier="device",
    kv_tokens=40,
    readers=2,
    idle_s=7.4,
    reason="handed off by r2; choice 1 of 2",
)


def test_flags_go_before_variables_and_variables_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('port = 1\nslots = 2\nhost = "file"\n')
    read = read_settings({"port": "3"}, {"SESSILE_PORT": "2", "SESSILE_SLOTS": "5", "OTHER": "x"}, str(config))
    assert (read.port, read.slots, read.host) == (3, 5, "file")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"port": "x"}, "port = 'x'.*a whole number, at least 0, at most 65535"),
        ({"port": "70000"}, "port = '70000'"),
        ({"engine": "steam"}, "engine = 'steam'.*llama | sim"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(flags: dict[str, str], says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        read_settings(flags, {}, None)


@pytest.mark.parametrize("text", ["nonsense = 1", "port = ", ""])
def test_a_bad_file_is_refused(text: str, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    if text:
        config.write_text(text)
    with pytest.raises(BadSetting, match=r"nonsense|--config"):
        read_settings({}, {}, str(config))


def test_an_unknown_role_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(["bogus"])
    assert ended.value.code == 2 and "invalid choice: 'bogus'" in capsys.readouterr().err


def test_a_cluster_needs_a_directory_and_one_journal() -> None:
    check_role("serve", Settings())
    check_role("replicas", Settings(directory="redis://x"))
    check_role("replica", Settings(directory="redis://x", journal="postgresql://x/y"))
    for role in ("gateway", "replica", "replicas", "sessions", "drain"):
        with pytest.raises(BadSetting, match="directory: "):
            check_role(role, Settings())
    for journal in ("sqlite", "memory"):
        with pytest.raises(BadSetting, match="the whole cluster shares"):
            check_role("gateway", Settings(directory="redis://x", journal=journal))


def test_what_sessions_is_asked_for() -> None:
    given = vars(parser().parse_args(["sessions", "--state", "idle", "--limit", "7", "--after", "a/b", "--port", "1"]))
    wanted, as_json = taken_sessions(given)
    assert (wanted.state, wanted.limit, wanted.after, as_json) == ("idle", 7, "a/b", False)
    assert given == {"role": "sessions", "config": None, "port": "1"} or given == {"role": "sessions", "port": "1"}
    for limit in ("0", "1001"):
        with pytest.raises(BadSetting, match="limit"):
            taken_sessions(vars(parser().parse_args(["sessions", "--limit", limit])))
    with pytest.raises(BadInput, match="TENANT/SESSION"):
        key_of("one")


def test_sessions_as_a_table_and_as_json() -> None:
    found = Found([ONE], 5, True, {"r3": "refused: nobody listens"})
    assert tabled(found).splitlines() == [
        "SESSION   OWNER  FENCE  STATE     KV         OPEN TURN  TOP  READERS  WHY HERE",
        "acme/one  r1     3      idle 7 s  device 40  -          12   2        handed off by r2; choice 1 of 2",
        "r3 does not answer: refused: nobody listens",
        "1 of 5 sessions in memory; parked ones belong to nobody",
        "next page: --after acme/one",
    ]
    read = json.loads(in_json(found))
    assert read["sessions"][0]["tenant"] == "acme" and read["sessions"][0]["session"] == "one"
    assert (read["total"], read["has_more"], read["silent"]) == (5, True, {"r3": "refused: nobody listens"})


OTHERS_FLAGS = {"--shm-size"}  # docker's


def flags_of(arguments: argparse.ArgumentParser) -> set[str]:
    """Of a command and of those below it."""
    found = set(arguments._option_string_actions)
    for action in arguments._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(*(flags_of(below) for below in action.choices.values()))
    return found


def flags_named_in(source: str) -> set[str]:
    """In texts, among them those that are put together; comments and docstrings are for nobody who starts us."""
    tree = ast.parse(source)
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in quiet]
    return {flag for text in texts if isinstance(text, str) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}


def test_every_flag_that_a_text_names_exists() -> None:
    assert flags_named_in('"""--no"""\nsay(f"{x} try --one or", "--two-b, not a--c")') == {"--one", "--two-b"}
    root = Path(__file__).resolve().parents[4]
    packages = ("inference", "sessions", "actors", "persistence", "transport")
    files = [root / "app.py", *(path for package in packages for path in (root / package).rglob("*.py"))]
    known = flags_of(parser()) | OTHERS_FLAGS
    unknown = {str(path): flags_named_in(path.read_text()) - known for path in files if "_pb2" not in path.name}
    assert {name: flags for name, flags in unknown.items() if flags} == {}
