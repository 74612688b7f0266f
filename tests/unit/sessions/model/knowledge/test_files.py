"""Files: who may see them, their names, their quotas."""

from __future__ import annotations

import pytest

from sessions.model.knowledge.files import (
    FILENAME_MAX,
    FileQuota,
    FileTotals,
    file_not_found,
    may_see_file,
    owner_of,
    safe_filename,
    safe_media_type,
)
from sessions.model.types import Principal, TenantId
from tests.support.stores.file_rows import a_file

ACME, BETA = TenantId("acme"), TenantId("beta")


def test_who_may_see_a_file() -> None:
    mine, nobodys = a_file(b"", blob="b"), a_file(b"", blob="b", user=None)

    def sees(user: str | None, role: str = "user", tenant: TenantId = ACME) -> tuple[bool, bool]:
        principal = Principal(tenant=tenant, key_id="k", user=user, role=role)  # type: ignore[arg-type]
        return may_see_file(principal, mine), may_see_file(principal, nobodys)

    assert sees("ü") == (True, False) and sees("x") == sees(None) == (False, False)
    assert sees(None, "service") == sees(None, "operator") == (True, True)
    assert sees("ü", tenant=BETA) == sees(None, "service", BETA) == (False, False)
    assert owner_of(Principal(tenant=ACME, key_id="k", user="ü")) == "ü"


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("a.pdf", "a.pdf"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\Über.docx", "Über.docx"),
        ("a\r\nSet-Cookie: x\0.txt", "aSet-Cookie: x.txt"),
        ("exe\u202efdp.txt", "exefdp.txt"),
        ("..", "file"),
        ("", "file"),
        ("/", "file"),
        (" .hidden. ", "hidden"),
    ],
)
def test_names_are_the_last_part_without_signs_of_control(given: str, safe: str) -> None:
    assert safe_filename(given) == safe


def test_long_names_keep_their_ending() -> None:
    short = safe_filename("x" * 999 + ".pdf")
    assert len(short) == FILENAME_MAX and short.endswith("x.pdf")
    assert len(safe_filename("x" * 999)) == len(safe_filename("a." + "x" * 999)) == FILENAME_MAX


@pytest.mark.parametrize(
    ("given", "safe"),
    [
        ("Text/HTML; charset=utf-8", "text/html"),
        ("application/pdf", "application/pdf"),
        ("text/html\r\nx: y", "application/octet-stream"),
        ("", "application/octet-stream"),
        ("a/b/c", "application/octet-stream"),
    ],
)
def test_media_types(given: str, safe: str) -> None:
    assert safe_media_type(given) == safe


def test_quotas_say_what_is_missing() -> None:
    quota = FileQuota(files=2, size=10)
    assert quota.refusal(FileTotals(1, 5), 5, "You") is None
    assert FileQuota().refusal(FileTotals(10**9, 10**15), 10**15, "You") is None
    for have in (FileTotals(2, 0), FileTotals(1, 6)):
        refusal = quota.refusal(have, 5, "You")
        assert refusal is not None and refusal.code == "file_quota_exceeded" and "You" in refusal.public_message


def test_one_that_is_not_there_is_named_shortly() -> None:
    error = file_not_found("x" * 999, "file_id")
    assert error.code == "file_not_found" and len(error.public_message) < 100 and error.param == "file_id"
