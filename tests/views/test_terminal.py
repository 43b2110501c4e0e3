"""What goes to a terminal, into a pipe, and into the README's picture."""

from __future__ import annotations

import io
import pathlib
import xml.etree.ElementTree as ElementTree

import pytest
from rich.console import Console

import kit
from kit.views import PurposeBars, StageTable, terminal
from kit.views.picture import terminal_svg

from .conftest import HOSTILE

PICTURE = pathlib.Path(__file__).parents[2] / "docs" / "demo.svg"


def printed(thing: object) -> str:
    screen = terminal.console(io.StringIO())
    screen.print(thing)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_pipe_gets_plain_text_of_a_fixed_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal.console(io.StringIO()).width == terminal.PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "77")
    assert terminal.console(io.StringIO()).width == 77


def test_tables_carry_no_control_codes(stage_table: StageTable, bars: PurposeBars) -> None:
    for thing in (
        terminal.block_table(stage_table),
        terminal.stage_rows_table(stage_table),
        terminal.bars_table(bars),
        terminal.devices_table(kit.devices()),
    ):
        text = printed(thing)
        assert not [c for c in text if not c.isprintable() and c != "\n"]
        assert max(map(len, text.splitlines())) <= terminal.PIPE_WIDTH


def test_a_block_is_one_line_and_its_last_stage_speaks(stage_table: StageTable) -> None:
    lines = printed(terminal.block_table(stage_table)).splitlines()
    assert len(lines) == 1 + 5
    line = next(line for line in lines if line.startswith("blk.1"))
    assert line.split()[:6] == ["blk.1", "2", "(4,", "8)", "3.02", "ms"]
    assert "25%" in line


def test_bars_are_as_long_as_their_bytes(bars: PurposeBars) -> None:
    lengths = [line.count("━") for line in printed(terminal.bars_table(bars)).splitlines()[1:4]]
    assert lengths[0] == 22
    assert lengths[0] > lengths[1] > lengths[2]


@pytest.mark.parametrize("text", HOSTILE)
def test_safe_is_one_harmless_line(text: str) -> None:
    assert terminal.safe(text).isprintable()
    assert len(terminal.safe(text * 100, 20)) <= 20


def test_the_svg_of_a_screen_loads_nothing_and_escapes() -> None:
    screen = Console(file=io.StringIO(), record=True, width=60, force_terminal=True, markup=False)
    screen.print(HOSTILE[0], HOSTILE[2])
    svg = terminal_svg(screen, "a title")
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in svg
    assert "@import" not in svg
    assert "url(http" not in svg
    assert svg.replace("http://www.w3.org/2000/svg", "").count("http") == 0


def test_the_picture_in_the_readme_is_of_a_whole_demo() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    text = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert len(svg.encode()) < 100_000
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    for fact in (
        "The capital of France is",
        "Paris.",
        "423 stages",
        "blk.29",
        "kv cache",
        "nothing is live",
        "The page:",
    ):
        assert fact in text
