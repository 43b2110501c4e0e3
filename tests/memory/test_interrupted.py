"""A tracker that is interrupted, fails, is shared or is dropped leaves nothing behind: no hook, no recording."""

from __future__ import annotations

import ctypes
import gc
import linecache
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import kit
from kit.core import ledger, scope
from kit.core.native import ffi, lib
from kit.memory import foreign, store


@pytest.fixture(autouse=True)
def nobody_tracks() -> Iterator[None]:
    assert not store.active()
    yield
    assert not store.active()
    assert ledger.listener is None
    assert scope.scope("anything") is scope.scope("else")  # not entered while nobody tracks


class Interrupt:
    """Raises KeyboardInterrupt before the n-th line that kit's memory room runs, once."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if f"{pathlib.Path(kit.__file__).parent}/memory/" not in frame.f_code.co_filename:
            return None
        source = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not source.lstrip().startswith("with "):  # Python never interrupts before __exit__
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_an_interrupt_at_any_line_of_beginning_or_ending_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_functions", list)  # the search takes long, a hundred times over
    interrupted = 0
    for n in range(1, 1000):
        interrupt = Interrupt(n)
        sys.settrace(interrupt)
        try:
            with kit.Tracker():
                pass
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(None)
        assert not store.active(), f"at line {n}"
        if interrupt.left > 0:
            break
    assert interrupted > 30


def test_control_c_while_it_ends_keeps_what_was_seen(backend: kit.Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    read = store.read

    def pressed(*arguments: int) -> Any:
        signal.raise_signal(signal.SIGINT)
        return read(*arguments)

    tracker = kit.Tracker().start()
    kit.Context(backend).close()
    monkeypatch.setattr(store, "read", pressed)
    with pytest.raises(KeyboardInterrupt):
        tracker.stop()
    assert len(tracker.report().events) == 2


def test_no_memory_for_the_records_ends_tracking_and_hides_no_other_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*arguments: int) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(store, "read", none)
    with pytest.raises(ValueError, match="own error"), kit.Tracker() as tracker:
        raise ValueError("the program's own error")
    assert not tracker.active
    with pytest.raises(kit.NotComputedError, match="MemoryError: none left"):
        tracker.report()


def test_a_tracker_that_is_dropped_ends() -> None:
    tracker = kit.Tracker().start()
    assert store.active()
    del tracker
    gc.collect()
    assert not store.active()


def test_of_several_threads_that_start_one_tracker_one_wins() -> None:
    for _ in range(20):
        tracker = kit.Tracker()
        won = []

        def start(tracker: kit.Tracker = tracker, won: list[bool] = won) -> None:
            try:
                tracker.start()
            except kit.NotComputedError:
                return
            won.append(True)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [True]
        tracker.stop()
        assert not store.active()


def test_an_active_tracker_started_again_goes_on() -> None:
    with kit.Tracker() as tracker:
        with pytest.raises(kit.NotComputedError, match="active already"):
            tracker.start()
        with pytest.raises(kit.NotComputedError, match="active already"), tracker:
            pass
        assert tracker.active


def test_what_was_recorded_is_given_back_at_the_end() -> None:
    """The kernel's count of resident memory; 88 bytes an event, in the store and in the tracker's copy."""
    with kit.Tracker(stacks=False) as tracker:
        for _ in range(60_000):
            lib.kit_event_note(store.KINDS.index("aligned"), 4096, 64, ffi.NULL, False)
            lib.kit_event_note(store.KINDS.index("aligned"), 4096, 64, ffi.NULL, True)
        during = resident()
    n_events = len(tracker.report().recording)
    assert n_events == 120_000
    del tracker
    gc.collect()
    assert during - resident() > 0.8 * n_events * store.RECORD.itemsize


def resident() -> int:
    """Bytes, once the C library has given back what it keeps for later."""
    ctypes.CDLL(None).malloc_trim(0)
    fields = pathlib.Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def test_a_region_is_named_with_text() -> None:
    wrong: Any = 7
    with pytest.raises(kit.ArgumentError, match="text, not int"):
        kit.memory.region(wrong)


def test_regions_entered_by_a_signal_handler_keep_their_names(backend: kit.Backend) -> None:
    """As everything that may come in the middle of entering another one."""
    names = [f"region {i}" for i in range(300)]
    numbers = []

    def enter(name: str) -> None:
        with kit.memory.region(name):
            numbers.append((name, scope.current.get()))

    class Enter(Interrupt):
        def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
            if frame.f_code.co_name == "_number" and event == "line" and self.left:
                self.left -= 1
                enter(f"inner {self.left}")
            return self

    sys.settrace(Enter(100))
    try:
        for name in names:
            enter(name)
    finally:
        sys.settrace(None)
    assert {(scope.scope_path(number)[-1:], number) for name, number in numbers} == {
        ((name,), number) for name, number in numbers
    }
    np.testing.assert_equal(len({number for _, number in numbers}), len(numbers))
