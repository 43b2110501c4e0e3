"""The demo's page: made of hostile data, it stays one harmless file."""

from __future__ import annotations

import pytest

from kit.core.devices import Device, Devices
from kit.core.ledger import Resource
from kit.memory.live import Live
from kit.models.session.run import Run
from kit.views import AttentionView, LensGrid, PurposeBars, StageTable
from kit.views.demo import Answer, Demo
from kit.views.demo_page import DemoPage

from .conftest import HOSTILE
from .test_forms import Tags

TAG = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def page(run: Run, stage_table: StageTable, bars: PurposeBars) -> str:
    left = Live((Resource("buffer", 7, TAG, TAG, TAG),))
    demo = Demo(
        model=TAG,
        session=TAG,
        devices=Devices((Device(TAG, "cpu", TAG, 1, 2, TAG, TAG),)),
        file_html="<p>from the file</p>",
        file_line=TAG,
        load_ns=1_000,
        answer=Answer(TAG, "\x1b[2J" + TAG, 3, 5_000_000),
        stages=stage_table,
        lens=LensGrid.of(run),
        attention=AttentionView.of(run, 0),
        live=left,
        bars=bars,
        left=left,
    )
    return DemoPage(demo).html()


def test_nothing_in_it_runs(page: str) -> None:
    tags = Tags(page)
    assert not tags.tags & {"script", "iframe", "object", "embed", "link", "base", "form"}
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 8


def test_nothing_in_it_is_loaded(page: str) -> None:
    addresses = [value for name, value in Tags(page).attributes if name in ("src", "srcset", "href", "action")]
    assert len(addresses) == 6  # three pictures, light and dark
    assert all(value is not None and value.startswith("data:image/png;base64,") for value in addresses)
    assert "http" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_no_control_character_is_left(page: str) -> None:
    assert not [c for c in page if not c.isprintable() and c != "\n"]


def test_every_stage_has_a_line_and_every_part_a_heading(page: str, stage_table: StageTable) -> None:
    for row in stage_table.rows:
        assert f'title="{row.name}"' in page
    for heading in ("What each block would say next", "Attention", "Memory", "File and devices"):
        assert f"<h2>{heading}</h2>" in page


def test_what_is_left_is_not_hidden(page: str) -> None:
    assert "7 B" in page
    assert "nothing is live" not in page


def test_hostile_tokens_are_shown_escaped(page: str) -> None:
    assert HOSTILE[0] not in page
    assert "&lt;img␣src=x" in page
