from __future__ import annotations

from email.message import Message

import pytest

from deploy.licences import ALLOWED, DECLARED, EXCEPTIONS, canonical, is_allowed, licence


def metadata(*fields: tuple[str, str]) -> Message:
    message = Message()
    for name, value in fields:
        message[name] = value
    return message


OSI = "License :: OSI Approved :: "


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        ([("License-Expression", "MIT OR Apache-2.0"), ("License", "something else")], "MIT OR Apache-2.0"),
        ([("License", "Apache License, Version 2.0")], "Apache-2.0"),
        ([("License", "BSD-3-Clause"), ("Classifier", f"{OSI}MIT License")], "BSD-3-Clause"),
        ([("License", "MIT License\n\nCopyright (c) 2022 ...")], "MIT"),
        ([("License", "Copyright (c) 2001"), ("Classifier", f"{OSI}BSD License")], "BSD-3-Clause"),
        (
            [("Classifier", f"{OSI}Apache Software License"), ("Classifier", f"{OSI}MIT License")],
            "Apache-2.0 OR MIT",
        ),
        ([("Classifier", "License :: DFSG approved"), ("Classifier", f"{OSI}MIT License")], "MIT"),
    ],
)
def test_a_licence_is_read_where_a_package_says_it(fields: list[tuple[str, str]], expression: str) -> None:
    assert licence("some-package", metadata(*fields)) == expression


@pytest.mark.parametrize("fields", [[], [("License", "see the file")], [("Classifier", "License :: Other")]])
def test_a_package_that_does_not_say_it_is_named(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match="some-package does not say"):
        licence("some-package", metadata(*fields))
    assert licence("pysqlite3", metadata(*fields)) == "Zlib"


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("MPL-2.0 AND (GPL-2.0-only OR MIT)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("LicenseRef-Anything", False),
    ],
)
def test_what_is_allowed(expression: str, allowed: bool) -> None:
    assert is_allowed("some-package", expression) == allowed


def test_an_exception_is_one_packages() -> None:
    assert is_allowed("python-stdnum", "LGPL-2.1-or-later")
    assert not is_allowed("python-stdnum-2", "LGPL-2.1-or-later")
    assert canonical("(MIT OR CC0-1.0)") == "MIT OR CC0-1.0"
    assert set(DECLARED.values()) <= ALLOWED
    assert not set(DECLARED) & set(EXCEPTIONS)
