"""Foreign text is shown on one line, without a character that a terminal obeys or hides; JSON keeps what it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_limits import Concurrency
from celery_limits.declare.template import check_key
from celery_limits.errors import CorruptChain, DeclarationError, Refused, ResolutionError
from celery_limits.message.header import new_ticket, read_header
from celery_limits.printable import json_text, printable, printable_lines
from celery_limits.store.status import Explanation, Party, TicketStory

FORGED = "id\n2026 CRITICAL forged"
EVIL = "evil\x1b[31m\u202e\x9b2J"
FORMAT = {
    "\u202e": "U+202E RIGHT-TO-LEFT OVERRIDE",
    "\u200b": "U+200B ZERO WIDTH SPACE",
    "\ufeff": "U+FEFF ZERO WIDTH NO-BREAK SPACE",
    "\u2066": "U+2066 LEFT-TO-RIGHT ISOLATE",
    "\u200d": "U+200D ZERO WIDTH JOINER",
    "\xad": "U+00AD SOFT HYPHEN",
    "\U000e0041": "U+E0041 TAG LATIN CAPITAL LETTER A",
}


def test_what_is_not_printable_is_escaped_and_all_else_is_kept() -> None:
    assert printable("Łódź 🚚 tenant:42") == "Łódź 🚚 tenant:42"
    assert printable(FORGED) == r"id\n2026 CRITICAL forged"
    assert printable(EVIL) == r"evil\x1b[31m\u202e\x9b2J"
    assert printable("\ud800\U000e0041") == r"\ud800\U000e0041"
    assert printable(ValueError("a\rb")) == r"a\rb"
    assert printable_lines("ours\nfor\x1beign") == "ours\nfor\\x1beign"


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text).isascii() or not text.isascii()


@given(st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.dictionaries(st.text(), inner)))
def test_json_is_printable_and_says_the_same(data: object) -> None:
    text = json_text(data)
    assert text.isprintable()
    assert json.loads(text) == data


@pytest.mark.parametrize("character", FORMAT, ids=FORMAT.values())
def test_a_format_character_in_a_key_is_refused_by_name(character: str) -> None:
    named = rf"format character {FORMAT[character].replace('+', '.')} at 3"
    with pytest.raises(Refused, match=named):
        check_key(f"ten{character}ant")
    with pytest.raises(DeclarationError, match=named):
        Concurrency(f"ten{character}ant", 1)
    header = {"v": 1, "ticket": "t.n", "at": 0, "held": [], "fence": 0}
    with pytest.raises(CorruptChain, match=named):
        read_header({**header, "links": [{"kind": "concurrency", "key": f"ten{character}ant", "limit": 1}]})
    with pytest.raises(ResolutionError, match=named):
        new_ticket(f"ten{character}ant")


@pytest.mark.parametrize("key", ["Łódź", "🚚", "e\u0301", "日本", "a b", "a\xa0b"])
def test_what_can_be_seen_may_be_in_a_key(key: str) -> None:
    assert check_key(key) == key


def test_reads_are_shown_without_what_is_not_printable() -> None:
    party = Party(f"{FORGED}.n", FORGED, "running", EVIL, 1.0)
    assert str(party) == rf"id\n2026 CRITICAL forged on {printable(EVIL)}"
    story = TicketStory(f"{FORGED}.n", "away", 1.0, EVIL, EVIL, (), 2.0)
    waits = TicketStory(f"{EVIL}.n", "waiting", 1.0, "", "", (), 2.0, key=EVIL, place=1, waiting=1, holders=(party,))
    assert str(story).isprintable()
    assert str(waits).isprintable()
    told = Explanation(FORGED, 2.0, cancelled=True, tickets=(story, waits))
    assert len(str(told).split("\n")) == 3
    assert all(line.isprintable() for line in str(told).split("\n"))
    assert str(Explanation(FORGED, 2.0, cancelled=False)).isprintable()
