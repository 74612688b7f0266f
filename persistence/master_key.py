"""The master key: 32 bytes in a file that only its owner may read. It wraps data keys and nothing else.

Wrapping is AES-256-GCM under a fresh nonce, bound to whose key it is, so that rows of a key store cannot be swapped.
`id` is a fingerprint: a store tells by it which master wrapped a key, and one that was replaced finds none of the old.

Whoever has the file and a copy of the key store can read what was encrypted until the data keys are destroyed, so
the two do not belong into one backup. This module knows no sessions and no store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
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
        """None when it was wrapped by another master or for something else."""
        try:
            return self._cipher.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], about)
        except (InvalidTag, ValueError):  # ValueError: too short to be one
            return None


def read_master_key(path: Path, *, make: bool = False) -> MasterKey:
    """Reads the file: 64 hexadecimal digits. `make`: where there is none, a new one is made. Blocking.

    Raises BadInput that says what to do."""
    if make:
        with contextlib.suppress(FileExistsError):
            _create(path)
    return MasterKey(read_secret(path, "master_key"))


def read_secret(path: Path, setting: str) -> bytes:
    """32 bytes of a file that nobody else may read. `setting` is the one that names it. Blocking. Raises BadInput."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text("ascii").strip()
        secret = bytes.fromhex(text)
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
    if len(secret) != KEY_BYTES:
        raise _invalid_file(
            path, setting, "is not one", "It holds 64 hexadecimal digits: `openssl rand -hex 32` makes them"
        )
    return secret


def _create(path: Path) -> None:
    """Appears whole or not at all: a crash in between must not leave a file that is no key."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        fd = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            os.write(fd, os.urandom(KEY_BYTES).hex().encode() + b"\n")
            os.fsync(fd)
        finally:
            os.close(fd)
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


def _invalid_file(path: Path, setting: str, what: str, advice: str) -> BadInput:
    return BadInput("bad_master_key", f"The {setting.replace('_', ' ')} file {path} {what}. {advice}.", param=setting)
