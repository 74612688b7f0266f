"""How many disguised phrases the input filter sees, and how often it takes ordinary messages for one.

    python -m bench.moderation.disguises            # about half a minute
    python -m bench.moderation.disguises --apart    # the third of the methods that nobody looked at while it was made
    python -m bench.moderation.disguises --second   # another set of methods, frozen before the filter was changed
    python -m bench.moderation.disguises --third    # a third one, also over messages, with its ordinary ones
    python -m bench.moderation.disguises --fourth   # 670 by 50 methods of an author who did not see the filter
    python -m bench.moderation.disguises --fifth    # 2,000 of another such author, of which a third was kept apart
    python -m bench.moderation.disguises --pairs    # each look-alike of letters under each way of hiding them

40 phrases by 50 methods (`tests/support/disguises.py`), seeded. Which methods are apart is decided by the hash of their
names. Ordinary messages: 10,000 sentences in 12 scripts, with numbers, links, code, lists and markup, under the same
phrases and all patterns but for personal data that stands in them on purpose. Bars (issue 16): >= 99% seen, false
alarms <= 0.1%.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.moderation import disguises_fourth
from bench.support import Option, command_line, report
from inference.moderation.input_filter import scan_message
from inference.moderation.policy import KindsRule, PhraseRule, PolicySide
from inference.moderation.scan import Scanner
from tests.support import disguises_third, disguises_third_more
from tests.support.disguises import LOOKS, METHODS, OVER, PHRASES, apart, disguised, ordinary
from tests.support.disguises_second import METHODS as SECOND
from tests.support.disguises_second import disguised as disguised_second
from tests.support.judged import is_seen
from tests.support.ordinary_third import control

SEEN_BAR = 0.99
ALARMS_BAR = 0.001
THIRD_SEED = 20261123
FOURTH_SEED = 20261116
FIFTH_SEED = 20261125
DATA = Path(__file__).parent / "disguises_data"


def single(of_apart: bool) -> Iterator[tuple[str, str]]:
    for method in METHODS:
        if apart(method) == of_apart:
            yield from ((method, disguised(method, phrase)) for phrase in PHRASES)


def second() -> Iterator[tuple[str, str]]:
    for method in SECOND:
        yield from ((method, disguised_second(method, phrase)) for phrase in PHRASES)


def paired() -> Iterator[tuple[str, str]]:
    rng = random.Random(16)
    for method, over in itertools.product(LOOKS, OVER):
        for phrase in rng.sample(PHRASES, 3):
            yield f"{method}, {over}", disguised(method, phrase, over)


def third() -> int:
    """680 messages by 17 methods, some over neighbouring messages, and as many ordinary ones as of the first set."""
    phrases = disguises_third.PHRASES
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=tuple(phrases))))
    texts = [*disguises_third_more.cases(THIRD_SEED)]
    missed = Counter(method for method, _, message in texts if not is_seen(scanner, message))
    alarms = [text for text in control(THIRD_SEED, 10_000) if scan_message(scanner, text)]
    return verdict(", third set", len(texts), missed, 10_000, alarms)


def fourth() -> int:
    """670 messages by 50 methods, half of them in ordinary sentences, and ordinary ones under the same phrases."""
    phrases = disguises_fourth.PHRASES
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=phrases)))
    texts = [*disguises_fourth.cases(FOURTH_SEED)]
    missed = Counter(method for method, _, message in texts if not is_seen(scanner, message))
    sentences = [*ordinary(5_000), *control(FOURTH_SEED, 5_000)]
    alarms = [text for text in sentences if scan_message(scanner, text)]
    return verdict(", fourth set", len(texts), missed, len(sentences), alarms)


def fifth() -> int:
    """Messages by 50 methods in 10 languages (`fifth_*.jsonl`), and ordinary ones under the same phrases."""
    phrases = tuple(json.loads((DATA / "fifth_phrases.json").read_text("utf-8")))
    scanner = Scanner(PolicySide(phrases=PhraseRule(deny=phrases)))
    lines = [line for file in sorted(DATA.glob("fifth_*.jsonl")) for line in file.read_text("utf-8").splitlines()]
    texts = [*map(json.loads, lines)]
    missed = Counter(each["method"] for each in texts if not is_seen(scanner, each["message"]))
    sentences = [*ordinary(5_000), *control(FIFTH_SEED, 5_000)]
    alarms = [text for text in sentences if scan_message(scanner, text)]
    return verdict(", fifth set", len(texts), missed, len(sentences), alarms)


def verdict(of: str, count: int, missed: Counter[str], messages: int, alarms: list[str]) -> int:
    seen = 1 - sum(missed.values()) / count
    for method, times in missed.most_common():
        print(f"missed {times:3}: {method}")
    for text in alarms[:10]:
        print(f"false alarm: {text[:200]!r}")
    good = seen >= SEEN_BAR and len(alarms) <= ALARMS_BAR * messages
    report(f"disguises{of}", {"disguises": count, "seen": seen, "messages": messages, "false alarms": len(alarms)})
    print("PASS" if good else "FAIL")
    return 0 if good else 1


def main() -> int:
    options = command_line(
        __doc__,
        apart=Option(False, "only the methods that are kept apart"),
        second=Option(False, "the second set of methods"),
        third=Option(False, "the third set of methods"),
        fourth=Option(False, "the fourth set of methods"),
        fifth=Option(False, "the fifth set of methods"),
        pairs=Option(False, "two methods at once, three phrases by each pair"),
        messages=Option(10_000, "ordinary messages"),
    )
    if options.third:
        return third()
    if options.fourth:
        return fourth()
    if options.fifth:
        return fifth()
    side = PolicySide(phrases=PhraseRule(deny=PHRASES), pii=KindsRule(), secrets=KindsRule())
    scanner = Scanner(side)
    missed: Counter[str] = Counter()
    texts = [*(paired() if options.pairs else second() if options.second else single(options.apart))]
    for method, text in texts:
        if not scan_message(scanner, text):
            missed[method] += 1
    alarms = [text for text in ordinary(options.messages) if scan_message(scanner, text)]
    of = ", kept apart" * options.apart + ", second set" * options.second + ", in pairs" * options.pairs
    return verdict(of, len(texts), missed, options.messages, alarms)


if __name__ == "__main__":
    sys.exit(main())
