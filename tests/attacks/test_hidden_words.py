"""What hides a forbidden word without changing what is read: seen where it stands. And what is a guard's to see."""

from __future__ import annotations

import base64
import html
from urllib.parse import quote

import pytest

from inference.moderation.input_filter import redact_spans, scan_message
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Scanner

PHRASE = "project nightjar"
SCANNER = Scanner(PolicySide(phrases=PhraseRule(deny=(PHRASE, "купить паспорт")), pii=KindsRule(action="redact")))


def shifted(text: str, first: int, letters: str = "abcdefghijklmnopqrstuvwxyz") -> str:
    return "".join(chr(first + letters.index(each)) if each in letters else each for each in text)


HIDDEN = {
    "as it is": PHRASE,
    "capitals": PHRASE.upper(),
    "mixed case": "PrOjEcT NiGhTjAr",
    "white space": "project \n\t\u3000 nightjar",
    "zero width": "\u200b".join(PHRASE),
    "soft hyphens and joiners": "pro\u00adject night\u2060j\u200dar",
    "bidi controls": "pro\u202e\u202cject \u2066nightjar\u2069",
    "combining marks": "p\u0336r\u0336o\u0336j\u0336e\u0301ct nightj\u0307ar",
    "Cyrillic look-alikes": "рrоjесt nіghtjаr",
    "Greek look-alikes": "prοject nightjαr",
    "small capitals": "ᴘʀᴏᴊᴇᴄᴛ ɴɪɢʜᴛᴊᴀʀ",
    "full-width": shifted(PHRASE, 0xFF41),
    "bold": shifted(PHRASE, 0x1D41A),
    "script": shifted(PHRASE, 0x1D4EA),
    "circled": shifted(PHRASE, 0x24D0),
    "squared": shifted(PHRASE, 0x1F170),
    "variation selectors": "\ufe0f".join(PHRASE),
    "tag characters": "".join(chr(0xE0000 + ord(each)) for each in PHRASE),
    "tag characters between": "pro\U000e0078ject nightjar",
    "bytes in variation selectors": "x" + "".join(chr(0xE0100 + byte - 16) for byte in PHRASE.encode()),
    "decimal references": "".join(f"&#{ord(each)};" for each in PHRASE),
    "hexadecimal references": "".join(f"&#x{ord(each):x};" for each in PHRASE),
    "named references": html.escape("project") + "&nbsp;nightjar",
    "percent": quote(PHRASE),
    "percent throughout": "".join(f"%{byte:02x}" for byte in PHRASE.encode()),
    "base64": base64.b64encode(PHRASE.encode()).decode(),
    "base64 of a sentence": base64.urlsafe_b64encode(f"tell me of {PHRASE}, please".encode()).decode(),
    "base64 of look-alikes": base64.b64encode("рrоjесt nіghtjаr".encode()).decode(),
    "JSON escapes": "".join(f"\\u{ord(each):04x}" for each in PHRASE),
    "another script, in capitals": "КУПИТЬ ПАСПОРТ",
    "another script, in title case": "Купить Паспорт",
    "decomposed": "купить паспорт".replace("й", "и\u0306"),
}


@pytest.mark.parametrize("how", HIDDEN)
def test_a_hidden_phrase_is_seen_where_it_stands(how: str) -> None:
    text = f"We say {HIDDEN[how]} here."
    (hit, start, end), *_ = scan_message(SCANNER, text)
    assert hit.category == "phrases"
    shown = text[:start] + text[end:]
    assert shown.startswith("We say ") and shown.endswith(" here.") and len(shown) <= len("We say x here.")


@pytest.mark.parametrize(
    "address", ["ana@mail.example", "ａｎａ@mail.example", "ana&#64;mail.example", "ana%40mail.example"]
)
def test_what_is_redacted_is_what_was_found(address: str) -> None:
    text = f"Write to {address} today."
    ((hit, start, end),) = scan_message(SCANNER, text)
    assert hit.kind.removeprefix("encoded ") == "email"
    assert redact_spans(text, [(start, end, "[email]")]) == "Write to [email] today."


@pytest.mark.parametrize(
    "costume",
    [
        "cebwrpg avtugwne",
        ".--. .-. --- .--- . -.-. - / -. .. --. .... - .--- .- .-.",
        "rajthgin tcejorp",
        "papa romeo oscar juliet echo charlie tango",
        "pr0j3ct n1ghtj4r",
        "p-r-o-j-e-c-t n-i-g-h-t-j-a-r",
        base64.b64encode(base64.b64encode(PHRASE.encode())).decode(),
    ],
)
def test_a_word_in_a_costume_is_a_guards_to_see(costume: str) -> None:
    """docs/moderation.md says so: whoever mends one of these there changes the page."""
    assert scan_message(SCANNER, costume) == []


ORDINARY = [
    "What are your opening hours?", "You are right.", "Привет, как дела?", "今日はいい天気ですね。", "مرحبا، كيف حالك؟",
    "שלום, מה שלומך?", "안녕하세요, 만나서 반갑습니다.", "नमस्ते, आप कैसे हैं?", "สวัสดีครับ", "Γεια σου, τι κάνεις;",
    "if (a && b) { return x % 3; }", "<p>Fish &amp; chips</p>", "https://example.org/a%20b?c=d&amp;e=f", "👩‍👩‍👧 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ok",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "a project about a nightjar",
]  # fmt: skip


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_messages_pass(text: str) -> None:
    assert scan_message(SCANNER, text) == []
