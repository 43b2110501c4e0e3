"""Every picture in every form; nothing hostile survives, nothing comes from the network."""

from __future__ import annotations

import base64
import html.parser
import io
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib import image

from kit.views import LensGrid, PurposeBars, StageTable, View
from kit.views.theme import DARK

from .conftest import Forms


class Tags(html.parser.HTMLParser):
    """Collects tags and attributes as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs


def test_png_is_a_picture_with_something_on_it(forms: Forms) -> None:
    pixels = image.imread(io.BytesIO(forms.png), format="png")
    width, height = forms.view.size()
    assert pixels.shape[:2] == pytest.approx((height * 144, width * 144), abs=2)
    assert len(np.unique(pixels[::3, ::3, 0])) > 8


def test_png_has_the_background_of_its_theme(view: View) -> None:
    corner = image.imread(io.BytesIO(view.png(DARK, dpi=50)), format="png")[0, 0, :3]
    assert corner == pytest.approx(np.array([0x15, 0x1B, 0x23]) / 255, abs=0.01)


def test_the_same_data_give_the_same_bytes(forms: Forms) -> None:
    assert forms.view.svg() == forms.svg
    assert base64.b64decode(forms.bundle["image/png"]) == forms.png


def test_svg_is_well_formed_and_needs_nothing(forms: Forms) -> None:
    assert ElementTree.fromstring(forms.svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "<script" not in forms.svg
    assert "http://" not in forms.svg.replace("http://www.w3.org/", "")
    assert "https://" not in forms.svg


def test_html_has_only_harmless_tags_and_addresses(forms: Forms) -> None:
    page = Tags(forms.html)
    allowed = {"img", "details", "summary", "table", "thead", "tbody", "tfoot", "tr", "th", "td", "div", "p"}
    assert page.tags <= allowed
    addresses = [value for name, value in page.attributes if name in ("src", "href", "srcset")]
    assert addresses
    assert all(value is not None and value.startswith("data:image/png;base64,") for value in addresses)
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_no_form_carries_control_characters(forms: Forms) -> None:
    for form in (forms.view.text(), forms.html, forms.svg):
        assert not [c for c in form if not c.isprintable() and c not in "\n\t"]


def test_json_gives_the_data_back(view: View) -> None:
    data = json.loads(view.json())
    assert data.pop("view") == type(view).__name__
    assert data.pop("title") == view.title
    assert data == json.loads(json.dumps(view.data()))


def test_the_bundle_of_a_notebook_has_text_and_stills(forms: Forms) -> None:
    assert forms.bundle["text/plain"] == forms.view.text() == repr(forms.view)
    assert base64.b64decode(forms.bundle["image/png"])[:4] == b"\x89PNG"
    assert forms.bundle["text/html"] == forms.html
    assert '<img src="data:image/png;base64,' in forms.html


def test_a_picture_that_cannot_be_drawn_still_has_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = LensGrid(("a",), ("blk.0.resid",), ())
    bundle = broken_bundle(broken, monkeypatch)
    assert set(bundle) == {"text/plain"}
    assert "not drawn: no ink" in bundle["text/plain"]


def broken_bundle(view: LensGrid, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    def fail(*_: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr(LensGrid, "paint", fail)
    monkeypatch.setattr(LensGrid, "text", lambda self: "the text")
    return view._repr_mimebundle_()


def test_drawing_leaves_the_users_settings_alone(stage_table: StageTable) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 31, "text.usetex": True}):
        drawn = stage_table.png()
        assert matplotlib.rcParams["font.size"] == 31
    assert drawn == stage_table.png()


def test_views_compare_as_data(bars: PurposeBars) -> None:
    assert bars == PurposeBars(bars.bars)
    assert hash(bars) == hash(PurposeBars(bars.bars))
