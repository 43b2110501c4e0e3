"""The forms of a report."""

from __future__ import annotations

import html.parser
import json

import numpy as np
import pytest

import kit
import kit.memory
from kit.core.buffer import BufferSet
from kit.memory.report_png import report_figure
from kit.units import parse_bytes

NASTY = '<script>alert("x")</script>&'


@pytest.fixture
def report(backend: kit.Backend) -> kit.memory.MemoryReport:
    held: list[BufferSet] = []
    with kit.Tracker() as mem, kit.memory.region(NASTY):
        for i in range(12):
            ctx = kit.Context(backend, name=f"{NASTY} {i}")
            ctx.input((100 + i,), "f32", name=NASTY[:60]).set(np.zeros(100 + i, np.float32))
            held.append(ctx.detach())
    for buffers in held:
        buffers.close()
    return mem.report()


class Page(html.parser.HTMLParser):
    """Collects the tags of a page and what they point to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]


@pytest.mark.parametrize("form", ["page", "notebook", "flame", "live"])
def test_html_runs_nothing_loads_nothing_and_escapes_names(report: kit.memory.MemoryReport, form: str) -> None:
    texts = {
        "page": report.html,
        "notebook": lambda: report._repr_mimebundle_()["text/html"],
        "flame": report.flame,
        "live": lambda: kit.memory.live()._repr_html_(),
    }
    page = Page()
    page.feed(texts[form]())
    assert not page.tags & {"script", "link", "iframe", "object", "embed"}
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "http" not in texts[form]()


def test_notebook_bundle_carries_text_and_a_still_picture(report: kit.memory.MemoryReport) -> None:
    bundle = report._repr_mimebundle_()
    assert bundle["text/plain"].startswith("peak ")
    assert "data:image/png;base64,iVBOR" in bundle["text/html"]  # the PNG signature in base 64


def test_json_is_the_dict_and_adds_up(report: kit.memory.MemoryReport) -> None:
    data = json.loads(report.json())
    assert data == json.loads(json.dumps(report.to_dict()))
    buffers = sum(4 * (100 + i) for i in range(12))
    assert sum(leak["nbytes"] for leak in data["leaks"]) == data["timeline"][-1][1]
    assert data["timeline"][-1][1] >= buffers
    assert max(nbytes for _, nbytes in data["timeline"]) == data["peak"]
    assert data["peak"] == sum(row["nbytes"] for row in data["at_peak"])
    un = data["unaccounted"]
    assert un["rss_anon"] == un["tracked"] + un["tracker"] + un["anon"]


def test_flame_goes_from_line_to_call_to_buffer_type(report: kit.memory.MemoryReport) -> None:
    document = report.speedscope()
    frames = [frame["name"] for frame in document["shared"]["frames"]]
    (profile,) = document["profiles"]
    assert sum(profile["weights"]) == report.peak
    stack = [frames[i] for i in profile["samples"][int(np.argmax(profile["weights"]))]]
    assert any("test_report.py" in name for name in stack)
    tails = {tuple(frames[i] for i in sample[-2:]) for sample in profile["samples"]}
    assert ("ggml_backend_buft_alloc_buffer", "CPU") in tails
    assert ("ggml_init", "host") in tails


def test_png_is_a_picture(report: kit.memory.MemoryReport) -> None:
    assert report.png().startswith(b"\x89PNG")


def test_diff_tells_places_that_hold_more(backend: kit.Backend, report: kit.memory.MemoryReport) -> None:
    with kit.Tracker() as mem:
        pass
    change = kit.memory.diff(mem.report(), report)
    assert change.live == report.live_nbytes
    assert sum(c.nbytes for c in change.changes) == report.live_nbytes
    assert kit.memory.diff(report, report).changes == ()


def test_an_empty_report_has_every_form() -> None:
    with kit.Tracker() as mem:
        pass
    empty = mem.report()
    assert (empty.peak, empty.leaks, list(empty.events), empty.timeline) == (0, [], [], [])
    assert "nothing" in empty.text()
    assert "nothing" in empty.html()
    assert empty.png()
    assert json.loads(empty.json())["peak"] == 0


@pytest.mark.parametrize(
    ("text", "nbytes"), [("64 MB", 64_000_000), ("64MiB", 64 << 20), (7, 7), ("1.5 kB", 1500), ("9", 9)]
)
def test_bytes_as_people_write_them(text: int | str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "lots", "5 parsecs", "-"])
def test_bytes_that_are_none(text: str) -> None:
    with pytest.raises(kit.ArgumentError, match="no number of bytes"):
        parse_bytes(text)


def test_a_tracker_that_saw_nothing_says_so() -> None:
    with pytest.raises(kit.NotComputedError, match=r"with kit\.Tracker"):
        kit.Tracker().report()


def test_names_cannot_steer_a_terminal_or_fake_a_line(backend: kit.Backend) -> None:
    name = "x\x1b[2J\x9b31m\u202e\nleaks: none"
    with kit.Tracker() as mem, kit.memory.region(name):
        ctx = kit.Context(backend, name=name)
        ctx.tensor((8,), "f32", name="t").set(np.zeros(8, np.float32))
        shown = kit.memory.live().text()
        printed = str(kit.memory.live()[0])
    found = mem.report()
    with pytest.raises(AssertionError) as no_leaks:
        found.assert_no_leaks()
    with pytest.raises(AssertionError) as peak:
        found.assert_peak(1)
    with kit.Tracker() as nothing:
        pass
    change = kit.memory.diff(nothing.report(), found).text()
    events = "\n".join(map(str, found.events))
    ctx.close()
    for text in (found.text(), shown, printed, str(no_leaks.value), str(peak.value), change, events, found.html()):
        assert all(character.isprintable() or character == "\n" for character in text), repr(text)
        assert not any(line.startswith("leaks: none") for line in text.splitlines())
        assert r"x\x1b[2J\x9b31m\u202e\nleaks: none" in text


def test_counts_of_one_are_no_plurals(backend: kit.Backend) -> None:
    outside = kit.Context(backend)
    with kit.Tracker() as mem:
        outside.close()
        ctx = kit.Context(backend)
    text = mem.report().text() + mem.report().html()
    ctx.close()
    for noun in ("pass", "event", "context", "free", "allocation"):
        assert f" 1 {noun}es" not in text and f" 1 {noun}s" not in text
    assert ", 1 pass" in text and "1 free of things" in text


def test_where_nothing_is_known_of_the_line_both_reasons_are_said(backend: kit.Backend) -> None:
    with kit.Tracker(stacks=False) as mem:
        ctx = kit.Context(backend)
    report = mem.report()
    ctx.close()
    assert "stacks were off" in report.text() and "stacks were off" in report.html()


def test_the_picture_of_the_timeline_begins_with_tracking(backend: kit.Backend) -> None:
    with kit.Tracker() as mem, kit.Context(backend):
        pass
    report = mem.report()
    line = report_figure(report).axes[0]
    assert line.get_xlim() == (0, report.timeline[-1][0] / 1e9)
    assert report.timeline[0][0] > 0


BAD = {
    "assert_peak(1.5)": lambda report: report.assert_peak(1.5),
    "assert_peak(None)": lambda report: report.assert_peak(None),
    "assert_peak(True)": lambda report: report.assert_peak(True),
    "assert_peak(-1)": lambda report: report.assert_peak(-1),
    "assert_peak('1e400 MB')": lambda report: report.assert_peak("1e400 MB"),
    "assert_peak('64 XB')": lambda report: report.assert_peak("64 XB"),
    "diff(report, None)": lambda report: kit.memory.diff(report, None),
    "costs(['4KiB'])": lambda report: kit.memory.costs(["4KiB"]),
    "costs(4096)": lambda report: kit.memory.costs(4096),
    "costs([1.5])": lambda report: kit.memory.costs([1.5]),
    "costs([4096], 0)": lambda report: kit.memory.costs([4096], 0),
    "pinned_pays(sizes=[-4])": lambda report: kit.memory.pinned_pays(sizes=[-4]),
    "pinned_pays(repeats=0)": lambda report: kit.memory.pinned_pays(repeats=0),
    "input_lab(None)": lambda report: kit.memory.input_lab(None),
}


@pytest.mark.parametrize("call", BAD)
def test_wrong_arguments_are_refused_with_what_was_given(call: str) -> None:
    with kit.Tracker() as mem:
        pass
    with pytest.raises(kit.ArgumentError, match=r"1\.5|None|True|-1|1e400|64 XB|4KiB|4096|0|-4"):
        BAD[call](mem.report())
