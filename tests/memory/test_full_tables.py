"""Tables grow; where something finds no room all the same, the report says so, and nothing is called a leak for it."""

from __future__ import annotations

import pathlib

import kit
from kit.core.native import ffi, lib, library_paths
from kit.memory import store
from kit.memory.pages import Pages

ALIGNED = store.KINDS.index("aligned")


def note(address: int, type_: str = "", *, freed: bool = False) -> None:
    """Tell the store of aligned memory that nobody has."""
    lib.kit_event_note(ALIGNED, address, 64, ffi.new("char[]", type_.encode()), freed)


def test_every_free_of_many_mappings_is_seen() -> None:
    with kit.Tracker() as tracker:
        pages = [Pages(4096, "mmap") for _ in range(1100)]
        for page in pages:
            page.close()
    report = tracker.report()
    assert (report.peak, report.live_nbytes, report.leaks) == (1100 * 4096, 0, [])


def test_a_hundred_thousand_names_keep_apart() -> None:
    with kit.Tracker(stacks=False) as tracker:
        for i in range(100_000):
            note(64 * (i + 1), f"type {i}")
    types = tracker.report().recording.records["type"]
    assert [store.name_text(types[i]) for i in (0, 65_535, 99_999)] == ["type 0", "type 65535", "type 99999"]
    assert tracker.report().recording.incomplete == ()


def test_a_free_that_was_not_seen_is_no_leak_once_the_address_serves_again() -> None:
    """As when C frees through a pointer that it got from dlsym before tracking began."""
    with kit.Tracker() as tracker:
        for _ in range(10):
            note(4096)
        note(4096, freed=True)
    report = tracker.report()
    assert (report.leaks, report.live_nbytes, report.peak) == ([], 0, 64)
    (reason,) = report.recording.incomplete
    assert reason.startswith("9 frees were not seen")
    assert f"recording incomplete: {reason}" in report.text()
    assert f"Recording incomplete:</b> {reason}" in report.html()


def test_more_stacks_than_a_million_lines_still_have_lines(run_script) -> None:  # type: ignore[no-untyped-def]
    run_script("""
import random, sys
import kit
from kit.core.native import ffi, lib
def note():
    lib.kit_event_note(6, 4096, 64, ffi.NULL, False)
    lib.kit_event_note(6, 4096, 64, ffi.NULL, True)
def branch(n):
    if n == 0:
        note()
    elif random.random() < 0.5:
        branch(n - 1)
    else:
        branch(n - 1)
random.seed(0)
with kit.Tracker() as tracker:
    for _ in range(15_000):
        branch(90)
records = tracker.report().recording.records
assert records["stack"].max() > 1 << 20, records["stack"].max()
def leak():
    lib.kit_event_note(6, 4096, 64, ffi.NULL, False)
with kit.Tracker() as tracker:
    leak()
(found,) = tracker.report().leaks
assert "in leak" in found.where, found.where
assert tracker.report().recording.incomplete == ()
""")


def test_events_without_memory_for_them_are_told_and_no_free_is_lost(run_script) -> None:  # type: ignore[no-untyped-def]
    run_script("""
import pathlib, resource
import kit
from kit.core.native import ffi, lib
kept = 30_000
def note(address, freed):
    lib.kit_event_note(6, address, 64, ffi.NULL, freed)
with kit.Tracker(stacks=False) as tracker:
    note(64, False)
    size = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + (4 << 20), resource.RLIM_INFINITY))
    for i in range(2, kept):
        note(64 * i, False)
    for _ in range(40_000):
        note(64 * kept, False)
        note(64 * kept, True)
    for i in range(1, kept):
        note(64 * i, True)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
report = tracker.report()
assert report.leaks == [] and report.live_nbytes == 0 and report.n_frees_of_older == 0
(reason,) = report.recording.incomplete
assert "are missing: no memory" in reason, reason
""")


COPIES = """
import _ctypes, ctypes, mmap, pathlib, shutil
import kit
def load(path):
    library = ctypes.CDLL(str(path))
    library.ggml_aligned_malloc.restype = ctypes.c_void_p
    library.ggml_aligned_malloc.argtypes = [ctypes.c_size_t]
    library.ggml_aligned_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library
folder = pathlib.Path(__file__).parent
def copy(number):
    return shutil.copy({base!r}, folder / f"copy{{number}}.so")
"""


def copies(program: str) -> str:
    return COPIES.format(base=str(library_paths()[0])) + program


def test_many_copies_of_ggml_are_told_apart_and_one_too_many_is_told(run_script) -> None:  # type: ignore[no-untyped-def]
    run_script(
        copies("""
with kit.Tracker() as tracker:
    for i in range(20):
        load(copy(i)).ggml_aligned_malloc(100 + i)
report = tracker.report()
assert sorted(e.library.split("/")[-1] for e in report.events) == sorted(f"copy{i}.so" for i in range(20))
assert report.recording.incomplete == ()
with kit.Tracker() as tracker:
    for i in range(20, 40):
        load(copy(i)).ggml_aligned_malloc(100 + i)
report = tracker.report()
assert 5 < len(report.events) < 20
assert any("copy of ggml is missing" in reason for reason in report.recording.incomplete)
""")
    )


def test_a_library_loaded_again_and_again_at_new_addresses_is_seen_each_time(run_script) -> None:  # type: ignore[no-untyped-def]
    run_script(
        copies("""
path, bases, holes = copy(0), set(), []
for _ in range(40):
    with kit.Tracker() as tracker:
        library = load(path)
        library.ggml_aligned_free(library.ggml_aligned_malloc(64), 64)
    events = tracker.report().events
    assert [(e.action, e.library.split("/")[-1]) for e in events] == [("alloc", "copy0.so"), ("free", "copy0.so")]
    assert tracker.report().recording.incomplete == ()
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    bases.add(next(line.split("-")[0] for line in lines if line.endswith("copy0.so")))
    _ctypes.dlclose(library._handle)
    holes += [mmap.mmap(-1, 64 << 10) for _ in range(8)]  # so that the next one lies elsewhere
assert len(bases) > 35, bases
""")
    )


def test_ctypes_functions_found_while_tracking_have_their_own_pointers_afterwards(tmp_path: pathlib.Path) -> None:
    import ctypes

    def pointer(function: object) -> int | None:
        return ctypes.c_void_p.from_address(ctypes.addressof(function)).value  # type: ignore[arg-type]

    early = ctypes.CDLL(str(library_paths()[0])).ggml_aligned_malloc
    own = pointer(early)
    with kit.Tracker():
        late = ctypes.CDLL(str(library_paths()[0])).ggml_aligned_malloc
        assert pointer(early) == pointer(late) != own
    assert pointer(early) == pointer(late) == own
