"""Settings: flags, variables and a file become one; what is no setting, or not allowed, is refused by name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from transport.cli.settings import BadSetting, Settings, allowed, exposed_files, read_settings, secrets_in


def test_flags_go_before_variables_and_variables_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('port = 1\nslots = 2\nhost = "file"\n')
    read = read_settings({"port": "3"}, {"SESSILE_PORT": "2", "SESSILE_SLOTS": "5", "OTHER": "x"}, str(config))
    assert (read.port, read.slots, read.host) == (3, 5, "file")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"port": "x"}, "port = 'x'.*a whole number, at least 0, at most 65535"),
        ({"port": "70000"}, "port = '70000'"),
        ({"port": "1.5"}, "port = '1.5'"),
        ({"idle_s": "nan"}, "idle_s = 'nan'.*a number, above 0"),
        ({"data": ""}, "data = ''.*length at least 1"),
        ({"engine": "steam"}, r"engine = 'steam': expected llama \| vllm \| remote \| chat \| sim"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadSetting, match=sentence):
        read_settings(flags, {}, None)


def test_a_bad_value_is_called_what_its_writer_calls_it(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('port = "abc"\n')
    with pytest.raises(BadSetting, match=r"^SESSILE_PORT = 'abc': expected a whole number"):
        read_settings({}, {"SESSILE_PORT": "abc"}, None)
    with pytest.raises(BadSetting, match=rf"^port = 'abc' \(in {config}\): expected a whole number"):
        read_settings({}, {}, str(config))
    with pytest.raises(BadSetting, match=r"^port = 'x': expected"):
        read_settings({"port": "x"}, {"SESSILE_PORT": "abc"}, str(config))


def test_files_of_secrets_that_other_users_may_read_are_listed(tmp_path: Path) -> None:
    config, token, plain, service = (tmp_path / name for name in ("settings.toml", "token", "address", "service"))
    config.write_text('api_key = "sk-sessile-a-b"\n')
    token.write_text("a-token-of-the-cluster\n")
    plain.write_text("redis://127.0.0.1:6379\n")
    service.write_text("a token that is read again for each use\n")
    flags = {"peer_token_file": str(token), "directory_file": str(plain), "key_service_token_file": str(service)}
    settings = read_settings(flags, {}, str(config))
    for mode, exposed in ((0o600, []), (0o640, [token, service, config]), (0o644, [token, service, config])):
        for each in (config, token, plain, service):
            each.chmod(mode)
        assert sorted(exposed_files(settings, str(config))) == sorted(map(str, exposed))
    config.write_text("port = 0\n")
    assert exposed_files(read_settings({}, {}, str(config)), str(config)) == []
    assert exposed_files(Settings(), None) == []


@pytest.mark.parametrize("text", ["nonsense = 1", "port = ", "host = 5", "origins = [5]", ""])
def test_a_bad_file_is_refused(text: str, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    if text:
        config.write_text(text)
    with pytest.raises(BadSetting, match=r"nonsense|--config|host = 5|origins"):
        read_settings({}, {}, str(config))


def test_a_list_is_a_list_in_the_file_and_has_commas_elsewhere(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text('input_keywords = ["one, two", "three"]\n')
    read = read_settings({"origins": "http://a, http://b"}, {"SESSILE_OUTPUT_KEYWORDS": "four,five"}, str(config))
    assert read.input_keywords == ("one, two", "three") and read.output_keywords == ("four", "five")
    assert read.origins == ("http://a", "http://b")


def test_a_variable_that_is_no_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadSetting, match="SESSILE_PROT is not a setting; the nearest is SESSILE_PORT"):
        read_settings({}, {"SESSILE_PROT": "1"}, None)
    with pytest.raises(BadSetting, match="SESSILE_QQQQ is not a setting; unset it"):
        read_settings({}, {"SESSILE_QQQQ": "1"}, None)
    assert read_settings({}, {"SESSILE_TEST_CHROMIUM": "x", "SESSILE_BENCH_NOTES": "y"}, None) == Settings()


def test_a_key_that_is_no_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("kv_disk = 1\n")
    with pytest.raises(BadSetting, match=r"kv_disk .*is not a setting; the nearest is kv_disk_mb"):
        read_settings({}, {}, str(config))


def test_every_default_is_allowed() -> None:
    for each in fields(Settings):
        default = each.default
        text = ",".join(default) if isinstance(default, tuple) else str(default)
        assert getattr(read_settings({each.name: text}, {}, None), each.name) == default, allowed(each.name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("peer_token", "a-token-of-the-cluster"),
        ("api_key", "sk-sessile-a-b"),
        ("journal", "postgresql://ana:secret@db/sessile"),
        ("journal", "postgresql://db/sessile?user=ana&password=secret"),
        ("directory", "redis://:secret@h:6379"),
        ("kv_redis", "rediss://u:secret@h/0"),
        ("usage_stream", "redis://:secret@h/0?stream=s"),
        ("otlp", "https://u:secret@h"),
    ],
)
def test_a_secret_is_taken_from_anywhere_but_the_command_line(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"--.*-file FILE.*SESSILE_") as refused:
        read_settings({name: value}, {}, None)
    assert "secret" not in str(refused.value).replace("no secret", "") and value not in str(refused.value)
    file = tmp_path / "secret"
    file.write_text(f"{value}\n")
    for read in (
        read_settings({f"{name}_file": str(file)}, {}, None),
        read_settings({}, {f"SESSILE_{name.upper()}": value}, None),
        read_settings({}, {f"SESSILE_{name.upper()}_FILE": str(file)}, None),
    ):
        assert getattr(read, name) == value and secrets_in(read)


@pytest.mark.parametrize(
    ("text", "variables", "sentence"),
    [(None, {}, "No such file"), (" \n", {}, "nothing in it"), ("a", {"SESSILE_PEER_TOKEN": "b"}, "one of the two")],
)
def test_a_file_without_a_secret_is_refused(
    text: str | None, variables: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "token").write_text(text)
    with pytest.raises(BadSetting, match=f"peer_token.*{sentence}"):
        read_settings({"peer_token_file": str(tmp_path / "token")}, variables, None)


@pytest.mark.parametrize("value", [True, "true", "1", "True"])
def test_a_switch_is_a_flag_without_a_value_and_a_word_elsewhere(value: bool | str) -> None:
    assert read_settings({"peer_insecure": value}, {}, None).peer_insecure
    assert not Settings().peer_insecure
    with pytest.raises(BadSetting, match=r"SESSILE_PEER_INSECURE = 'perhaps': expected true \| false"):
        read_settings({}, {"SESSILE_PEER_INSECURE": "perhaps"}, None)


@pytest.mark.parametrize("name", ["journal", "usage_stream", "kv_redis", "otlp"])
@pytest.mark.parametrize("password", ["se/cret", "sec@ret", "sec?ret", "sec#ret", "[secret", "12/34@secret"])
@pytest.mark.parametrize("written", ["file", "variable"])
def test_a_password_that_could_be_something_else_is_refused_and_not_repeated(
    name: str, password: str, written: str, tmp_path: Path
) -> None:
    schemes = {"journal": "postgresql", "usage_stream": "redis", "kv_redis": "redis", "otlp": "http"}
    url = f"{schemes[name]}://sessile:{password}@db.example:1234/x"
    file = tmp_path / "address"
    file.write_text(url)
    given = {f"SESSILE_{name.upper()}_FILE": str(file)} if written == "file" else {f"SESSILE_{name.upper()}": url}
    with pytest.raises(BadSetting, match=rf"^{name}: .*'/' is written %2F.*'@' %40") as refused:
        read_settings({}, given, None)
    for part in ("ret", "cret", "secret", "sec", "12"):
        assert part not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "sqlite",
        "postgresql://u:a%2Fb%40c@h:5432/db?sslmode=require",
        "postgresql:///db?host=/run/postgresql&user=u&password=a@b",
        "postgresql://u@h1:1,h2:2/db",
    ],
)
def test_an_address_that_can_be_read_one_way_only_is_taken(url: str) -> None:
    assert read_settings({}, {"SESSILE_JOURNAL": url}, None).journal == url


@pytest.mark.parametrize("content", ["sk-sessile-a-b\n", "\ufeffsk-sessile-a-b\r\n", "  sk-sessile-a-b "])
def test_a_mounted_secret_is_its_line_alone(content: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(content, encoding="utf-8")
    assert read_settings({"api_key_file": str(file)}, {}, None).api_key == "sk-sessile-a-b"
    assert read_settings({}, {"SESSILE_API_KEY": content}, None).api_key == "sk-sessile-a-b"


def test_a_secret_that_is_none_is_refused_and_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes("sk-sessile-a-b".encode("utf-16"))
    with pytest.raises(BadSetting, match="not UTF-8") as utf16:
        read_settings({"api_key_file": str(file)}, {}, None)
    with pytest.raises(BadSetting, match="one line") as two_lines:
        read_settings({}, {"SESSILE_API_KEY": "sk-sessile-a\nb"}, None)
    assert "sk-sessile" not in f"{utf16.value}{two_lines.value}"


def test_a_settings_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    config = tmp_path / "sessile.toml"
    config.write_text("\ufeffport = 9000\n", encoding="utf-8")
    assert read_settings({}, {}, str(config)).port == 9000
    config.write_bytes("port = 9000".encode("utf-16"))
    with pytest.raises(BadSetting, match="not UTF-8"):
        read_settings({}, {}, str(config))
