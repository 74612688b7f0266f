"""Letters by what stands for them."""

from __future__ import annotations

import time

import pytest

from inference.moderation.disguise.letter_names import numbered_letters
from inference.moderation.policy import PhraseRule, PolicySide
from inference.moderation.scan import Scanner
from tests.support.judged import is_seen

SCANNER = Scanner(PolicySide(phrases=PhraseRule(deny=("project nightjar", "тайный проект", "κρυφό σχέδιο"))))


@pytest.mark.parametrize(
    "text",
    [
        "Paula Richard Otto Julius Emil Cäsar Theodor (space) Nordpol Ida Gustav Heinrich Theodor Julius Anton Richard",
        "Татьяна, Анна, Йот, Николай, Еры, Йот | Павел, Роман, Ольга, Елена, Константин, Татьяна",
        "A=0: 15-17-14-9-4-2-19 | 13-8-6-7-19-9-0-17",
        "ɹɐɾʇɥƃᴉu ʇɔǝɾoɹd",
        "ʇɔǝɾoɹd ɹɐɾʇɥƃᴉu",
        "⠞⠁⠯⠝⠮⠯ ⠏⠗⠕⠑⠅⠞",
    ],
)
def test_letters_by_what_stands_for_them_are_read(text: str) -> None:
    assert is_seen(SCANNER, text)


def test_a_list_of_names_is_no_phrase() -> None:
    assert not is_seen(SCANNER, "Anna, Paula, Richard, Otto, Emil, Dora and Berta come; Павел, Роман, Ольга, Елена too")


def test_numbers_take_time_by_their_count_and_not_by_its_square() -> None:
    def cpu_s(count: int) -> float:
        text, times = "A=0: " + "7 " * count, []
        for _ in range(3):
            began = time.thread_time()
            assert list(numbered_letters(text))
            times.append(time.thread_time() - began)
        return min(times)

    assert cpu_s(16_000) < 24 * cpu_s(2_000), "eight times as many"
