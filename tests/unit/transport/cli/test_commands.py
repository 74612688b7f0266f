"""The command line: each command shows its own options and accepts every setting; mistakes are one sentence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from transport.cli import commands
from transport.cli.commands import COMMANDS, PROGRAM, Parsed, command_line, parse
from transport.cli.settings import FIELDS, GROUPS, BadSetting, Settings

ROOT = Path(__file__).resolve().parents[4]
CLUSTER = ("--directory", "redis://x", "--journal", "postgresql://x/y")
OWN = {
    "doctor": {"--gateways", "--strict", "--json"},
    "sessions": {"--replica", "--tenant", "--session", "--state", "--limit", "--after", "--json"},
    "usage reconcile": {"--tenant", "--json"},
    "plan": {
        *("--answer-tokens", "--backend", "--disk-gb", "--gpu", "--gpu-hour", "--host-gb", "--json", "--kv-precision"),
        *("--of", "--opening-tokens", "--precision", "--prompt-tokens", "--sessions", "--spare", "--think-s"),
        *("--think-sigma", "--tpot-ms", "--trace", "--ttft-ms", "--turns"),
    },
    "keys create": {
        "--tenant",
        "--role",
        "--user",
        "--scopes",
        "--label",
        "--expires-in",
        "--reason",
        "--url",
        "--json",
    },
    "keys list": {"--tenant", "--url", "--json"},
    "keys show": {"--url", "--json"},
    "keys revoke": {"--url", "--json"},
    "models list": {"--json"},
    "tokens revoke": {"--subject", "--token-id", "--issuer", "--expires-in", "--url", "--json"},
    "tokens list": {"--url", "--json"},
    "audit list": {"--tenant", "--user", "--after", "--limit", "--last", "--url", "--json"},
    "audit verify": {"--tenant", "--all", "--anchor", "--url", "--json"},
    "encryption status": {"--url", "--json"},
    "encryption rotate": {"--tenant", "--url", "--json"},
    "encryption rewrap": {"--url", "--json"},
    "encryption stop": {"--url", "--json"},
    "encryption resume": {"--url", "--json"},
    "encryption destroy": {"--tenant", "--url", "--json"},
    "restore": {"--from", "--at"},
    "users export": {"--tenant", "--reason", "--url", "--out"},
    "users erase": {"--tenant", "--reason", "--url", "--wait", "--json"},
}


def parsed(*arguments: str, **environment: str) -> Parsed:
    result = parse(arguments, environment, "1.2.3")
    assert result is not None
    return result


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert parse([*words, "--help"], {}, "1.2.3") is None
    return capsys.readouterr().out


def panels(text: str) -> dict[str, str]:
    """The text of each group of options, by its title."""
    return dict(re.findall(r"^╭─ ([^─]+) ─+╮$(.*?)^╰", text, re.MULTILINE | re.DOTALL))


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"^│ [* ]* *(--[a-z][a-z-]*)", text, re.MULTILINE))


def shown_settings(name: str) -> dict[str, set[str]]:
    """The flags of the settings that a command shows, by the title of their group."""
    shown: dict[str, set[str]] = {}
    for setting, group in GROUPS.items():
        if {group, setting} & set(COMMANDS[name].settings):
            shown.setdefault(group, set()).add(f"--{setting.replace('_', '-')}")
    return shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_the_options_of_a_command_in_groups_and_no_others(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = help_of(capsys, *name.split())
    groups = {title: flags_in(body) for title, body in panels(text).items()}
    groups.pop("Arguments", None)
    assert groups == {"Options": {"--config"} | OWN.get(name, set())} | shown_settings(name)
    assert f"Example: {PROGRAM} {COMMANDS[name].example}" in " ".join(text.split())
    shown = {flag for flags in shown_settings(name).values() for flag in flags}
    for each in re.split(r"^│ [* ]* *(?=--[a-z])", text, flags=re.MULTILINE)[1:]:
        flag = each.split()[0]
        if flag in shown:
            field = FIELDS[flag.removeprefix("--").replace("-", "_")]
            value = "" if isinstance(field.default, bool) else f" {field.metadata['metavar'] or 'CHOICE'}"
            assert f"{flag}{value} " in each.replace("\n", " ")
            assert ("[default:" in each) == (field.default not in ("", ())), each


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_is_a_command_that_parses(name: str) -> None:
    result = parsed(*COMMANDS[name].example.split())
    assert type(result.options) is COMMANDS[name].options


def test_every_setting_is_shown_by_a_command() -> None:
    shown = {flag for name in COMMANDS for flags in shown_settings(name).values() for flag in flags}
    assert shown == {f"--{name.replace('_', '-')}" for name in FIELDS}
    known = {*FIELDS, *GROUPS.values()}
    assert all(set(command.settings) <= known for command in COMMANDS.values())
    assert "Listening" in COMMANDS["gateway"].settings and "Moderation" not in COMMANDS["gateway"].settings
    assert GROUPS["host"] == GROUPS["origins"] == "Listening" and GROUPS["log_format"] == "Logging"


def test_the_list_of_commands_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys)
    for name in {each.split()[0] for each in COMMANDS} | {"chat"}:
        assert re.search(rf"^│ {name} +\S", text, re.MULTILINE), name
    assert parse(["--version"], {}, "1.2.3") is None
    assert capsys.readouterr().out.strip() == "1.2.3"
    family = help_of(capsys, "keys")
    assert all(re.search(rf"^│ {action} +\S", family, re.MULTILINE) for action in ("create", "list", "show", "revoke"))


def test_every_command_accepts_every_setting_and_the_last_of_two_counts() -> None:
    """The members of a cluster are started with the same flags, and a script's flags stand behind its own."""
    gateway = parsed("gateway", *CLUSTER, "--engine", "sim", "--sim-tokens-per-s", "20", "--port", "1", "--port=2")
    assert (gateway.settings.engine, gateway.settings.sim_tokens_per_s, gateway.settings.port) == ("sim", 20.0, 2)
    assert parsed("serve", "--grpc-port", "-1", SESSILE_SLOTS="7").settings.slots == 7
    assert parsed("keys", "list", SESSILE_ENGINE="sim").settings.engine == "sim"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("bogus", 'Unknown command "bogus"'),
        ("keys bogus", 'Unknown command "bogus"'),
        ("serve --prot 1", "--prot.*--port"),
        ("serve --engine steam", 'steam.*"llama", "vllm", "remote", "chat", "sim"'),
        ("serve --port x", "port = 'x': expected a whole number"),
        ("serve extra", "extra"),
        ("drain --directory redis://x", "REPLICA requires an argument"),
        ("sessions --directory redis://x --state lost", "lost"),
        ("sessions --directory redis://x --limit 0", "limit = 0"),
        ("keys create", "--tenant"),
        ("keys create --tenant a --role king", "king"),
        ("keys create --tenant a --scopes chat,all", "scopes: 'all'"),
        ("keys create --tenant a --expires-in soon", "expires-in = 'soon'"),
        ("audit list --tenant a --limit 0", "limit, last"),
        ("audit verify --tenant a --anchor x", "anchor: "),
        ("audit verify --anchor 1:x --url http://127.0.0.1:1", "anchor: "),
        ("users erase mary", "tenant: "),
    ],
)
def test_a_mistake_is_one_sentence(arguments: str, sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence) as refused:
        parse(arguments.split(), {}, "1.2.3")
    assert "\n" not in str(refused.value)


def test_a_cluster_needs_a_directory_and_one_journal() -> None:
    assert parsed("serve").settings == Settings()
    for words in (("gateway",), ("replica",), ("replicas",), ("sessions",), ("drain", "r1")):
        with pytest.raises(BadSetting, match="directory: "):
            parse(words, {}, "1.2.3")
    for role in ("gateway", "replica"):
        assert type(parsed(role, *CLUSTER).options).__name__.lower() == f"run{role}"
        for journal in ("sqlite", "memory"):
            with pytest.raises(BadSetting, match="all its members share"):
                parse([role, "--directory", "redis://x", "--journal", journal], {}, "1.2.3")


FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
FOREIGN_FLAGS = {"--shm-size"}  # docker's
CALLS_OTHERS = {ROOT / "inference/tools/code/supervisor.py"}  # bubblewrap's command line


def known_flags() -> set[str]:
    """Of all commands."""
    top = command_line({}, "1.2.3")
    flags = {"--help", "--version"}
    for name in COMMANDS:
        app = top
        for word in name.split():
            app = app[word]
        flags |= {flag for argument in app.assemble_argument_collection() for flag in argument.names}
    return flags


def flags_named_in(source: str) -> set[str]:
    """In texts, among them those that are put together; comments and docstrings are for nobody who starts us."""
    tree = ast.parse(source)
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in quiet]
    return {flag for text in texts if isinstance(text, str) for flag in FLAG.findall(text)}


def test_every_flag_that_a_text_names_exists() -> None:
    assert flags_named_in('"""--no"""\nsay(f"{x} try --one or", "--two-b, not a--c")') == {"--one", "--two-b"}
    packages = ("inference", "sessions", "actors", "persistence", "transport")
    files = [ROOT / "app.py", *(path for package in packages for path in (ROOT / package).rglob("*.py"))]
    known = known_flags() | FOREIGN_FLAGS
    assert {"--port", "--json", "--tenant", "--config"} <= known
    files = [path for path in files if "_pb2" not in path.name and path not in CALLS_OTHERS]
    texts = {str(path): path.read_text() for path in files}
    unknown = {name: flags_named_in(text) - known for name, text in texts.items() if FLAG.search(text)}
    assert {name: flags for name, flags in unknown.items() if flags} == {}


def test_a_program_has_one_version() -> None:
    assert f'\nversion = "{commands.VERSION}"\n' in (ROOT / "pyproject.toml").read_text()
    assert commands.PROGRAM == "./sessile"


def test_a_switch_takes_no_value() -> None:
    """What follows it on the command line is the next option."""
    directory = ("--directory", "redis://127.0.0.1:6379")
    parsed = parse(["replicas", "--peer-insecure", *directory], {}, "0")
    assert parsed is not None and parsed.settings.peer_insecure and parsed.settings.directory == directory[1]
    parsed = parse(["replicas", *directory], {}, "0")
    assert parsed is not None and not parsed.settings.peer_insecure


def test_a_variable_names_the_file_of_settings_where_no_flag_does(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.toml" for name in ("variable", "flag")}
    for port, file in enumerate(files.values(), 1001):
        file.write_text(f"port = {port}\n")
    environment = {"SESSILE_CONFIG": str(files["variable"])}
    by_variable = parse(["serve"], environment, "1.2.3")
    by_flag = parse(["serve", "--config", str(files["flag"])], environment, "1.2.3")
    assert by_variable is not None and (by_variable.settings.port, by_variable.config) == (1001, str(files["variable"]))
    assert by_flag is not None and by_flag.settings.port == 1002


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sim", ("--model", "smollm2-135m")),
        ("sim", ("--gpu-memory", "0.5")),
        ("sim", ("--vllm-standby",)),
        ("llama", ("--sim-tokens-per-s", "4")),
        ("llama", ("--engine-url", "http://127.0.0.1:1")),
        ("vllm", ("--sim-tools",)),
        ("chat", ("--threads", "4")),
        ("remote", ("--vllm-args", "{}")),
        ("sim", ("--kv-disk-mb", "10")),
    ],
)
def test_a_flag_of_another_engine_is_refused(engine: str, flags: tuple[str, ...]) -> None:
    with pytest.raises(BadSetting, match=rf"^{flags[0]} is for --engine .*--engine {engine} does not read it"):
        parsed("serve", "--engine", engine, *flags)
    variable = f"SESSILE_{flags[0][2:].replace('-', '_').upper()}"
    value = flags[1] if len(flags) > 1 else "true"
    assert parsed("serve", "--engine", engine, **{variable: value}).settings.engine == engine  # shared by several
    assert parsed("gateway", *CLUSTER, "--engine", engine, *flags).settings.engine == engine  # which has none


def test_settings_of_one_engine_alone_say_so() -> None:
    assert {name for name in FIELDS if name.startswith(("sim_", "vllm_"))} > {"sim_tools", "vllm_args"}
    assert commands.READERS.keys() <= FIELDS.keys()
