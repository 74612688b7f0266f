"""Taken ports and a data folder that cannot be written to are refused before the model is loaded."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from sessions.model.errors import BadInput
from transport.cli.settings import BadSetting, Settings
from transport.cli.start.preflight import (
    check_data_folder,
    check_files,
    check_journal_complete,
    check_journal_exists,
    check_model,
    check_ports,
    checked_start,
    new_data_folder,
)

PORTS = ("port", "grpc_port", "metrics_port")


def test_a_taken_port_is_refused_by_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name in (*PORTS, "peer_port"):
            with pytest.raises(BadSetting, match=rf"{name} = {port}: .*taken.*--{name.replace('_', '-')}"):
                check_ports(Settings(**{name: port}), (name,))
    check_ports(Settings(port=port), PORTS)


def test_a_model_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(BadSetting, match=r"model\.gguf': this file does not exist\. .* --model"):
        check_model(Settings(model=str(path)))
    check_model(Settings(model=str(path), engine="sim"))
    path.touch()
    check_model(Settings(model=str(path)))
    with pytest.raises(BadSetting, match="is a folder"):
        check_model(Settings(model=str(tmp_path)))
    with pytest.raises(BadSetting, match="does not exist"):
        check_model(Settings(model=str(tmp_path / "without-ending")))


@pytest.mark.parametrize("name", ["limits", "retention", "keys", "issuers"])
def test_a_file_that_is_wrong_is_refused_before_anything_is_made(name: str, tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("nonsense = [")
    settings = Settings(**{name: str(path)})  # type: ignore[arg-type]
    with pytest.raises((BadSetting, BadInput), match=name), new_data_folder(Settings(data=str(tmp_path / "data"))):
        check_files(settings)
    assert list(tmp_path.iterdir()) == [path]
    check_files(Settings())


def test_a_folder_without_a_journal_is_not_answered_for(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    with pytest.raises(BadSetting, match="there is no journal in this folder"):
        check_journal_exists(settings)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "journal.db").touch()
    check_journal_exists(settings)
    check_journal_exists(Settings(data=str(tmp_path / "none"), journal="memory"))


def test_a_start_that_fails_leaves_no_folder_but_what_there_was(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"

    def fail(*files: str) -> None:
        with pytest.raises(BadSetting, match="wrong"), new_data_folder(Settings(data=str(folder))):
            for name in files:
                (folder / name).touch()
            raise BadSetting("wrong")

    fail("master.key")
    assert list(tmp_path.iterdir()) == []
    fail("master.key", "journal.db")  # there may be something in it
    assert (folder / "master.key").exists() and (folder / "journal.db").exists()
    (folder / "journal.db").unlink()
    fail()
    assert (folder / "master.key").exists()  # of an earlier start
    with new_data_folder(Settings(data=str(tmp_path / "kept"))):
        pass
    assert (tmp_path / "kept").is_dir()


def test_keys_without_their_journal_are_no_new_beginning(tmp_path: Path) -> None:
    (tmp_path / "keys.db").touch()
    with pytest.raises(BadSetting, match=r"keys\.db is there and journal\.db is not; put the journal back"):
        check_journal_complete(Settings(data=str(tmp_path)))
    with pytest.raises(BadSetting, match="put the journal back"), new_data_folder(Settings(data=str(tmp_path))):
        raise AssertionError("it was started")
    check_journal_complete(Settings(data=str(tmp_path), journal="memory"))
    (tmp_path / "journal.db").touch()
    (tmp_path / "master.key").touch()
    check_journal_complete(Settings(data=str(tmp_path)))


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (("journal.db", "keys.db"), r"master\.key is missing: .*put it back .*--master-key"),
        (("journal.db", "master.key"), r"keys\.db is missing: .*put it back"),
        (("journal.db",), r"keys\.db is missing: .*put it back"),
    ],
)
def test_a_folder_that_lost_a_file_is_refused_as_it_is(tmp_path: Path, files: tuple[str, ...], sentence: str) -> None:
    for name in files:
        (tmp_path / name).write_text("rows")
    with pytest.raises(BadSetting, match=sentence), checked_start(Settings(data=str(tmp_path)), ()):
        raise AssertionError("it was started")
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(files)


def test_a_master_key_that_is_elsewhere_is_not_missed(tmp_path: Path) -> None:
    for name in ("journal.db", "keys.db"):
        (tmp_path / name).write_text("rows")
    check_journal_complete(Settings(data=str(tmp_path), master_key="elsewhere"))
    check_journal_complete(Settings(data=str(tmp_path), key_service="http://127.0.0.1/transit/k"))


def test_a_data_folder_that_cannot_be_written_to_is_called_that(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        with pytest.raises(BadSetting, match=r"the data folder cannot be written to .*--data"):
            check_data_folder(Settings(data=str(folder)))


def test_a_data_folder_of_a_second_account_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    folder = Path("/proc/self") if os.geteuid() == 0 else tmp_path  # root may write everywhere else
    with pytest.raises(BadSetting, match=r"the data folder cannot be written to \("):
        check_data_folder(Settings(data=str(folder)))
