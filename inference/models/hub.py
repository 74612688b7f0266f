"""Pulls a model from a hub: which files it has, their bytes, their checksums; resumed where a connection breaks off.

The hub's API, its addresses, credentials (HF_TOKEN), mirrors (HF_ENDPOINT) and the offline switch (HF_HUB_OFFLINE) are
huggingface_hub's. The bytes are fetched here, because its own download throws away what it has when it fails: here a
file that was broken off stays, in this process and in the next one, and every file's checksum is compared before it is
put in place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

from inference.models.library import ModelLibrary, PulledModel
from inference.models.reference import HubModel, Kind, RepoFile, choose_files
from sessions.model.errors import BadInput, SessileError, Unavailable

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
FAILURES_MAX: Final = 6  # tries in a row that bring no byte
CHUNK_BYTES: Final = 1 << 20
THIS_MACHINE: Final = ("localhost", "127.0.0.1", "::1")
SPARE_BYTES: Final = 64 << 20  # left free on the disk
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Progress(NamedTuple):
    """How far the download of one file is."""

    file: str
    done: int
    total: int


class Hub:
    """Pulls models from one hub into a library. Blocking."""

    def __init__(
        self,
        library: ModelLibrary,
        *,
        pause: Callable[[float], None],
        on_progress: Callable[[Progress], None] = lambda _: None,
        endpoint: str | None = None,
        free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
    ) -> None:
        """`pause` sleeps for so many seconds before another try. `endpoint` is the hub's URL; None: the one that the
        environment names. `free_bytes` returns the free space of a folder's disk."""
        self._library = library
        self._pause = pause
        self._on_progress = on_progress
        self._endpoint = endpoint
        self._free_bytes = free_bytes

    def pull(self, model: HubModel, kind: Kind) -> PulledModel:
        """Returns the pulled model; fetches it first if the library does not have the hub's current version. Raises
        BadInput if the hub has no such model, Unavailable if it cannot be fetched now."""
        with _sentences(model):
            info = self._info(model)
            files = [_file_of(sibling) for sibling in info.siblings or ()]
            chosen = choose_files(model, files, kind)
            commit = str(info.sha)
            if not _COMMIT.fullmatch(commit):  # it names a folder
                raise Unavailable(
                    "hub_unavailable", f"The hub names {commit[:64]!r} as the commit of {model}, which is no hash."
                )
            for file in chosen:
                if not file.sha256 and not file.git_sha1:
                    raise Unavailable(
                        "bad_model_bytes",
                        f"The hub names no checksum of {file.name}, so nobody could say whether its bytes are right."
                        " A mirror that leaves them out is not to be pulled from: unset HF_ENDPOINT.",
                    )
            selection = chosen[0].name.rpartition("/")[2] if kind == "gguf" else "folder"
            pulled = PulledModel(
                repo=model.repo,
                revision=model.revision,
                commit=commit,
                kind=kind,
                files=tuple(file.name for file in chosen),
                size_bytes=sum(file.size for file in chosen),
                licence=_licence(info),
            )
            there = self._library.find(HubModel(model.repo, commit, selection if kind == "gguf" else ""), kind)
            if there is not None and there.revision == model.revision:
                return there
            scratch = self._library.partial / f"{model.repo.replace('/', '--')}--{commit[:12]}--{selection}"
            with _held(scratch):
                self._check_room(scratch, chosen)
                for file in chosen:
                    self._fetch(model.repo, commit, file, scratch / file.name)
                return self._library.put(scratch, pulled, selection)

    def _info(self, model: HubModel) -> Any:
        api = HfApi(endpoint=self._endpoint)
        address = urlsplit(api.endpoint)
        if address.scheme != "https" and address.hostname not in THIS_MACHINE and get_token():
            raise BadInput(
                "invalid_setting",
                f"HF_ENDPOINT = {api.endpoint!r}: a token goes over https only, or to this machine: write https, or"
                " unset HF_TOKEN (and log out with `hf auth logout`).",
                param="model",
            )
        try:
            return api.model_info(model.repo, revision=model.revision, files_metadata=True)
        except HFValidationError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # what it makes of an answer of another kind
            raise Unavailable(
                "hub_unavailable",
                f"What answers for the hub does not speak as it does ({type(error).__name__}): check HF_ENDPOINT.",
            ) from error

    def _check_room(self, scratch: Path, files: list[RepoFile]) -> None:
        needed = sum(file.size for file in files) - sum(part.stat().st_size for part in scratch.rglob("*"))
        free = self._free_bytes(scratch)
        if needed + SPARE_BYTES > free:
            raise Unavailable(
                "disk_full",
                f"The model needs {_gb(needed)} more and {self._library.folder} has {_gb(free)} free. Make room there,"
                " remove a model (`models remove`), or name another folder with --model-folder.",
            )

    def _fetch(self, repo: str, commit: str, file: RepoFile, target: Path) -> None:
        """Fetches a file to `target` and checks it. Continues a try that was broken off."""
        if target.is_file():
            return  # it was checked before it got this name
        part = target.with_name(f"{target.name}.incomplete")
        part.parent.mkdir(parents=True, exist_ok=True)
        resumed = part.is_file() and part.stat().st_size > 0
        url = hf_hub_url(repo, file.name, revision=commit, endpoint=self._endpoint)
        self._transfer(url, file, part)
        if not _is_right(part, file):
            part.unlink()
            if not resumed:
                raise Unavailable(
                    "bad_model_bytes",
                    f"{file.name} of {repo} came with other bytes than its repository says, and nothing of it was kept."
                    " Pull it again; if it stays so, the hub or the mirror that HF_ENDPOINT names is at fault.",
                )
            self._fetch(repo, commit, file, target)  # what was left of another day may have been at fault
            return
        part.rename(target)

    def _transfer(self, url: str, file: RepoFile, part: Path) -> None:
        """Downloads the missing rest of a file and appends it to `part`, which may have its beginning. Tries again
        after failures that may pass."""
        failures = 0
        part.touch()
        while (have := part.stat().st_size) < file.size:
            try:
                self._stream(url, file, part, have)
            except (httpx2.TransportError, HfHubHTTPError) as error:
                if not _may_pass(error):
                    raise
                failures = 0 if part.stat().st_size > have else failures + 1
                if failures >= FAILURES_MAX:
                    raise
                self._pause(min(8.0, 0.1 * 2**failures))
        if part.stat().st_size > file.size:
            part.write_bytes(b"")  # not the file that its repository lists: nothing of it is any good
            raise Unavailable("bad_model_bytes", f"{file.name} is longer than its repository says. Pull it again.")

    def _stream(self, url: str, file: RepoFile, part: Path, have: int) -> None:
        headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
            if response.status_code == 416:
                part.write_bytes(b"")
                return
            if response.status_code >= 400:
                response.read()
            hf_raise_for_status(response)
            resumes = response.status_code == 206
            begin = _first_byte(response) if resumes else 0
            if resumes and begin != have:
                part.write_bytes(b"")  # another part than was requested
                return
            with part.open("ab" if resumes else "wb") as sink:
                done = begin
                for chunk in response.iter_raw():
                    sink.write(chunk)
                    done += len(chunk)
                    self._on_progress(Progress(file.name, done, file.size))
                    if done > file.size:
                        return
                sink.flush()
                os.fsync(sink.fileno())
        if done < file.size:
            raise httpx2.RemoteProtocolError("the answer ended early")


def _first_byte(response: httpx2.Response) -> int:
    first = response.headers.get("content-range", "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else -1


def _file_of(sibling: Any) -> RepoFile:
    lfs = sibling.lfs
    return RepoFile(
        sibling.rfilename, sibling.size or 0, lfs.sha256 if lfs else "", "" if lfs else (sibling.blob_id or "")
    )


def _licence(info: Any) -> str:
    card = info.card_data
    licence = (card.get("license_name") or card.get("license")) if card is not None else None
    return licence if isinstance(licence, str) else ""


def _is_right(part: Path, file: RepoFile) -> bool:
    with part.open("rb") as data:
        if file.sha256:
            return hashlib.file_digest(data, "sha256").hexdigest() == file.sha256
        if file.git_sha1:
            digest = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
            while chunk := data.read(CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest() == file.git_sha1
    return False  # nothing to hold it against


def _may_pass(error: Exception) -> bool:
    """Returns whether the request may succeed at another try."""
    if isinstance(error, HfHubHTTPError):
        return error.response is not None and error.response.status_code in (408, 425, 429, 500, 502, 503, 504)
    return not isinstance(error, httpx2.UnsupportedProtocol)


@contextlib.contextmanager
def _held(scratch: Path) -> Iterator[None]:
    """Locks the scratch folder for this process; another that pulls the same model waits until it is done."""
    scratch.mkdir(parents=True, exist_ok=True)
    with scratch.with_name(f"{scratch.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch.mkdir(parents=True, exist_ok=True)  # who had the lock before has put it in place
        yield


@contextlib.contextmanager
def _sentences(model: HubModel) -> Iterator[None]:
    """Turns errors of the hub and the disk, inside the block, into a SessileError whose message says what to do."""
    try:
        yield
    except SessileError:
        raise
    except OfflineModeIsEnabled as error:
        raise Unavailable(
            "hub_offline", f"{model} is not pulled yet, and HF_HUB_OFFLINE forbids to. Unset it, or pull elsewhere."
        ) from error
    except GatedRepoError as error:
        raise BadInput(
            "model_gated",
            f"{model} is given out only to who has accepted its terms: accept them on its page and set HF_TOKEN.",
            param="model",
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise BadInput(
            "model_unknown", f"The hub has no {model}; a private one needs HF_TOKEN. Check its name.", param="model"
        ) from error
    except RevisionNotFoundError as error:
        raise BadInput(
            "model_unknown", f"hf:{model.repo} has no revision {model.revision!r}.", param="model"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        raise Unavailable("hub_unavailable", f"The hub answered {status} for {model}. Try again later.") from error
    except httpx2.HTTPError as error:
        raise Unavailable(
            "hub_unavailable",
            f"The hub cannot be reached ({str(error) or type(error).__name__}); what was pulled is kept, and the next"
            " try goes on there. Behind a proxy set HTTPS_PROXY; for a mirror HF_ENDPOINT.",
        ) from error
    except OSError as error:
        if error.errno not in _FULL:
            what = f"{error.filename or 'the folder of models'}: {error.strerror or error}"
            raise BadInput(
                "invalid_setting", f"{what}. Name another folder with --model-folder.", param="model_folder"
            ) from error
        raise Unavailable(
            "disk_full", f"The disk is full: {model} was pulled in part. Make room and pull again: it goes on there."
        ) from error


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
