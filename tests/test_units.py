"""Bytes, counts and times as text."""

from __future__ import annotations

import pytest

from kit.tables import html_table, printable, text_table
from kit.units import bytes_text, counted


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (-1536, "-1.5 KiB"),
        (1 << 40, "1.0 TiB"),
        (1 << 50, "1.0 PiB"),
        (1 << 63, "8.0 EiB"),
    ],
)
def test_bytes_have_a_unit_that_fits(nbytes: int, text: str) -> None:
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 passes"), (1, "1 pass"), (2, "2 passes"), (12345, "12,345 passes")])
def test_a_count_agrees_with_its_noun(count: int, text: str) -> None:
    assert counted(count, "pass", "passes") == text


@pytest.mark.parametrize(("text", "shown"), [("a\nb", r"a\nb"), ("\x1b[0m", r"\x1b[0m"), ("Grüße 模型", "Grüße 模型")])
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert text_table(("name",), [(text,)]).splitlines()[1] == shown
    assert shown in html_table(("name",), [(text,)])
