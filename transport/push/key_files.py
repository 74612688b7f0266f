"""Reads the files that pushes are signed with: private keys, which nobody else on the machine may read."""

from __future__ import annotations

import os
import stat
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from transport.push.settings import invalid_setting

BYTES_MAX: Final = 64 * 1024


def read_key_file(setting: str, file: str, advice: str) -> bytes:
    """Returns the content of a small file that no other user of the machine may read. Raises BadInput about `setting`,
    ending with `advice` on what to do. Blocking."""
    try:
        with open(file, "rb", opener=_without_waiting) as handle:
            about = os.fstat(handle.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise invalid_setting(setting, f"{file!r} is no file; {advice}")
            if mode := stat.S_IMODE(about.st_mode) & 0o077:
                raise invalid_setting(
                    setting,
                    f"{file!r} may be read or changed by others ({mode:03o} of its mode): `chmod 600 {file}`",
                )
            text = handle.read(BYTES_MAX + 1)
    except OSError as error:
        raise invalid_setting(setting, f"{file!r}: {error.strerror}; {advice}") from error
    if len(text) > BYTES_MAX:
        raise invalid_setting(setting, f"{file!r} has more than {BYTES_MAX} bytes; {advice}")
    return text


def _without_waiting(file: str, flags: int) -> int:
    """Opens a file without blocking, so that a pipe that nobody writes to can be refused instead of being waited
    for."""
    return os.open(file, flags | os.O_NONBLOCK)


def private_key(setting: str, file: str, pem: bytes | str, advice: str) -> Any:
    """Returns the private key in a PEM text that has no password. `setting`, `file` and `advice` are for the error.
    Raises BadInput."""
    try:
        return load_pem_private_key(pem.encode() if isinstance(pem, str) else pem, None)
    except (ValueError, TypeError, UnicodeError) as error:
        raise invalid_setting(setting, f"{file!r}: is no private key in PEM without a password; {advice}") from error


def p256_key(setting: str, file: str, advice: str) -> EllipticCurvePrivateKey:
    """Reads a file's private key on P-256. Raises BadInput. Blocking."""
    key = private_key(setting, file, read_key_file(setting, file, advice), advice)
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise invalid_setting(setting, f"{file!r} is no key on P-256; {advice}")
    return key
