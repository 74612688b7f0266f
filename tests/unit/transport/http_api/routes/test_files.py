"""The forms that make a file; the doors as a whole are in `tests/integration/transport/test_files.py`."""

from __future__ import annotations

import pytest

from sessions.model.errors import BadInput
from tests.support.stores.file_rows import a_file
from transport.files.multipart import FormFile, UploadForm
from transport.http_api.routes.files import _checked, shown


def a_form(**fields: str) -> UploadForm:
    form = UploadForm("multipart/form-data; boundary=x")
    form.file = FormFile("a.txt", "text/plain")
    form.fields.update({name.replace("__", "[") + ("]" if "__" in name else ""): text for name, text in fields.items()})
    return form


def test_what_a_form_says() -> None:
    assert _checked(a_form(purpose="user_data")) == ("user_data", None)
    given = {"expires_after__anchor": "created_at", "expires_after__seconds": "3600"}
    assert _checked(a_form(purpose="batch", **given)) == ("batch", 3600)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"purpose": "x"},
        {"purpose": "batch", "more": "x"},
        {"purpose": "batch", "expires_after__seconds": "3600"},
        {"purpose": "batch", "expires_after__anchor": "now", "expires_after__seconds": "3600"},
        *(
            {"purpose": "batch", "expires_after__anchor": "created_at", "expires_after__seconds": seconds}
            for seconds in ("3599", "2592001", "-1", "1e4", "", "9" * 400, "٣٦٠٠")
        ),
    ],
)
def test_what_it_may_not_say(fields: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        _checked(a_form(**fields))


def test_times_are_in_seconds() -> None:
    made = shown(a_file(b"abc", blob="b", at=5_999, expires_at=9_000))
    assert (made.bytes, made.created_at, made.expires_at) == (3, 5, 9)
