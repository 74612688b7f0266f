"""The master key: 32 bytes in a file that only its owner may read. It wraps data keys and nothing else.

Wrapping is AES-256-GCM under a fresh nonce, bound to the owner of the wrapped key, so that rows of a key store cannot
be swapped. `id` is a fingerprint by which a store knows which master wrapped a key; with another master it does not
find the old keys. While masters are rotated the file has several, one a line.

Whoever has the file and a copy of the key store can read what was encrypted until the data keys are destroyed, so the
two do not belong into one backup. This module knows no sessions and no store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sessions.model.errors import BadInput

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class MasterKey:
    def __init__(self, secret: bytes) -> None:
        assert len(secret) == KEY_BYTES
        self.id = hashlib.blake2b(secret, digest_size=8, person=b"sessile-master").hexdigest()
        self._cipher = AESGCM(secret)

    def wrap(self, secret: bytes, about: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, secret, about)

    def unwrap(self, wrapped: bytes, about: bytes) -> bytes | None:
        """Returns the secret; None if another master wrapped it, or it was wrapped for another purpose than `about`."""
        try:
            return self._cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], about)
        except (InvalidTag, ValueError):  # ValueError: too short to be one
            return None


class MasterKeyRing:
    """The master keys of a file, the newest first. The newest wraps; all of them unwrap.

    `reload` reads the file again, so that a key may be put in front while servers run.
    """

    def __init__(self, masters: Sequence[MasterKey], path: Path | None = None) -> None:
        assert masters
        self._masters = tuple(masters)
        self._path = path

    @property
    def newest(self) -> MasterKey:
        return self._masters[0]

    @property
    def older(self) -> tuple[MasterKey, ...]:
        return self._masters[1:]

    def __iter__(self) -> Iterator[MasterKey]:
        return iter(self._masters)

    def find(self, master_id: str) -> MasterKey | None:
        return next((master for master in self._masters if master.id == master_id), None)

    def reload(self) -> None:
        """Reads the file again. Raises BadInput, and then the keys that were read before stay in force. Blocking."""
        if self._path is not None:
            self._masters = tuple(_read_masters(self._path))


def read_master_keys(path: Path, *, make: bool = False) -> MasterKeyRing:
    """Reads the keys of a file: 64 hexadecimal digits a line, the newest first. If there is no file and `make` is set,
    one with a new key is made.

    Blocking. Raises a BadInput that says what to do.
    """
    if make:
        with contextlib.suppress(FileExistsError):
            _create(path)
    return MasterKeyRing(_read_masters(path), path)


def add_master_key(path: Path) -> MasterKey:
    """Puts a new key in front of those in the file, and returns it. Blocking. Raises BadInput."""
    lines = [secret.hex() for secret in _read_secrets(path, "master_key")]
    new = os.urandom(KEY_BYTES)
    _replace(path, [new.hex(), *lines])
    return MasterKey(new)


def drop_older_master_keys(path: Path) -> int:
    """Leaves only the newest key in the file; returns how many were removed. Blocking. Raises BadInput."""
    newest, *older = [secret.hex() for secret in _read_secrets(path, "master_key")]
    if older:
        _replace(path, [newest])
    return len(older)


def _read_masters(path: Path) -> list[MasterKey]:
    return [MasterKey(secret) for secret in _read_secrets(path, "master_key")]


def read_secret(path: Path, setting: str) -> bytes:
    """Returns the 32 bytes of a file that only its owner may read. Errors name `setting`, the setting that names the
    file. Blocking. Raises BadInput."""
    secrets = _read_secrets(path, setting)
    if len(secrets) > 1:
        raise _invalid_file(path, setting, "has more than one line", "It holds one key")
    return secrets[0]


def _read_secrets(path: Path, setting: str) -> list[bytes]:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        secrets = [bytes.fromhex(line) for line in path.read_text("ascii").strip().splitlines()]
    except OSError as exc:
        raise _invalid_file(
            path, setting, f"cannot be read ({exc.strerror})", "Make it readable for this user, or name another"
        ) from exc
    except ValueError as exc:
        raise _invalid_file(
            path, setting, "is not one", "It holds 64 hexadecimal digits: `openssl rand -hex 32` makes them"
        ) from exc
    if mode & 0o077:
        raise _invalid_file(path, setting, f"may be read by others (mode {mode:04o})", f"Run `chmod 600 {path}`")
    if not secrets or any(len(secret) != KEY_BYTES for secret in secrets):
        raise _invalid_file(
            path, setting, "is not one", "It holds 64 hexadecimal digits: `openssl rand -hex 32` makes them"
        )
    return secrets


def _create(path: Path) -> None:
    """Writes a new key file, whole or not at all: a crash meanwhile must not leave a file without a complete key."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = _written_beside(path, [os.urandom(KEY_BYTES).hex()])
        try:
            os.link(part, path)  # unlike a rename, it never replaces a key that another process has just made
        finally:
            part.unlink()
    except FileExistsError:
        raise
    except OSError as exc:
        raise _invalid_file(
            path, "master_key", f"cannot be made ({exc.strerror})", "Make its folder writable, or name another"
        ) from exc


def _replace(path: Path, lines: Sequence[str]) -> None:
    try:
        _written_beside(path, lines).replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as exc:
        raise _invalid_file(
            path, "master_key", f"cannot be written ({exc.strerror})", "Make its folder writable"
        ) from exc


def _written_beside(path: Path, lines: Sequence[str]) -> Path:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    fd = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        os.write(fd, "".join(f"{line}\n" for line in lines).encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    return part


def _invalid_file(path: Path, setting: str, what: str, advice: str) -> BadInput:
    return BadInput("bad_master_key", f"The {setting.replace('_', ' ')} file {path} {what}. {advice}.", param=setting)
