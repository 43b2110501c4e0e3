"""The pool of locked memory, and the verdict whether a device gains from it. VmLck is the kernel's count."""

from __future__ import annotations

import gc
import logging
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kit
from kit.memory import Copy, LockedPool, pinned_pays
from kit.memory.pinned import ALIGNMENT, Slices, decide


def locked_nbytes() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmLck:\s+(\d+) kB", status).group(1)) * 1024


def test_the_region_is_locked_once_and_buffers_lock_nothing_more() -> None:
    before = locked_nbytes()
    with LockedPool(1 << 20) as pool:
        assert pool.locked and pool.memory == "locked pages" and not pool.note
        assert locked_nbytes() == before + (1 << 20)
        with pool.buffer(1000), pool.buffer(70_000):
            assert locked_nbytes() == before + (1 << 20)
    assert locked_nbytes() == before


def test_a_graph_reads_its_input_out_of_the_pool() -> None:
    with kit.Backend(n_threads=1) as backend, kit.Context(backend) as ctx, LockedPool(1 << 16) as pool:
        x = ctx.input((3, 4), "f32", "x")
        with pool.buffer(x.nbytes, name="x") as buffer:
            ctx.place(x, buffer)
            x.set(np.arange(12).reshape(3, 4))
            y = x * 2.0
            ctx.graph(y).compute()
            np.testing.assert_array_equal(y.numpy(), np.arange(12).reshape(3, 4) * 2.0)
            ctx.close()


def test_the_ledger_shows_each_byte_once() -> None:
    before = kit.memory.live().nbytes
    with LockedPool(1 << 16, owner="inputs of a test") as pool:
        with pool.buffer(1000, name="mask", purpose="inputs"):
            live = [r for r in kit.memory.live() if r.owner == "inputs of a test"]
            assert {r.purpose: r.nbytes for r in live} == {"staging": (1 << 16) - 1000, "inputs": 1000}
        assert kit.memory.live().nbytes == before + (1 << 16)
    assert kit.memory.live().nbytes == before


def test_a_tracker_sees_the_region_and_whether_it_was_given_back() -> None:
    with kit.Tracker() as tracker:
        kept = LockedPool(1 << 20, owner="kept")
        with kept.buffer(1000, name="mask"), LockedPool(1 << 16, owner="closed"):
            peak = tracker.report().peak
    report = tracker.report()
    assert (peak, report.live_nbytes) == ((1 << 20) + (1 << 16), 1 << 20)
    (leak,) = report.leaks
    assert (leak.owner, leak.nbytes, leak.purpose, leak.kind) == ("kept", 1 << 20, "staging", "mapping")
    assert "test_pinned.py" in leak.where
    assert (report.unaccounted.tracked, report.unaccounted.tracked_files) == (1 << 20, 0)
    assert {(row.device, row.buffer_type) for row in report.live} == {("CPU.0", "locked pages")}
    with pytest.raises(AssertionError, match="of kept"):
        report.assert_no_leaks()
    kept.close()


def test_closed_buffers_make_room_again() -> None:
    with LockedPool(4 * ALIGNMENT) as pool:
        first, second = pool.buffer(2 * ALIGNMENT), pool.buffer(2 * ALIGNMENT)
        with pytest.raises(kit.OutOfMemory, match="longest free one"):
            pool.buffer(1)
        first.close()
        second.close()
        with pool.buffer(4 * ALIGNMENT):
            assert pool.free_nbytes == 0


def test_a_forgotten_buffer_makes_room_again() -> None:
    with LockedPool(ALIGNMENT) as pool:
        forgotten = pool.buffer(ALIGNMENT)
        del forgotten
        gc.collect()
        pool.buffer(ALIGNMENT).close()


def test_a_pool_closed_under_its_buffers_goes_with_the_last_of_them(caplog: pytest.LogCaptureFixture) -> None:
    before = locked_nbytes()
    pool = LockedPool(1 << 16)
    buffer = pool.buffer(100)
    with caplog.at_level(logging.WARNING, "kit"):
        pool.close()
    assert "1 buffers use it" in caplog.text
    buffer.clear()
    assert locked_nbytes() == before + (1 << 16)
    with pytest.raises(kit.ClosedError):
        pool.buffer(1)
    buffer.close()
    assert locked_nbytes() == before


def test_a_forgotten_pool_unlocks() -> None:
    before = locked_nbytes()
    pool = LockedPool(1 << 16)
    del pool
    gc.collect()
    assert locked_nbytes() == before


def test_a_refused_lock_is_seen_on_the_pool_and_in_the_log() -> None:
    code = """
import logging, os, resource
import kit
logging.basicConfig()
kit.memory.LockedPool(4096).close()
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setuid(65534)
pool = kit.memory.LockedPool(1 << 20, owner="session")
print(pool, pool.locked, pool.memory, sep="|")
pool.buffer(1000).close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("|False|ordinary pages") and "RLIMIT_MEMLOCK is 64.0 KiB" in done.stdout
    assert "session: not locked: mlock of 1.0 MiB said ENOMEM" in done.stderr


def test_the_cpu_never_gains_and_the_reason_is_measured() -> None:
    verdict = pinned_pays("CPU.0", sizes=(1 << 14, 1 << 20), repeats=3)
    assert not verdict and "where they lie" in verdict.reason
    assert [(c.kind, c.nbytes) for c in verdict.copies] == [
        ("mmap", 1 << 14),
        ("locked", 1 << 14),
        ("mmap", 1 << 20),
        ("locked", 1 << 20),
    ]
    assert "instead of" in str(verdict)


def copy(nbytes: int, to_ns: int, note: str = "") -> Copy:
    return Copy("host buffer", nbytes, "CUDA.0", "CUDA0", to_ns, to_ns, to_ns, to_ns, to_ns, to_ns, 30, note)


@pytest.mark.parametrize(
    ("times", "in_place", "note", "pays", "reason"),
    [
        ([(1000, 500), (9000, 4000)], False, "", True, "copies from pinned memory are faster"),
        ([(1000, 500), (9000, 8900)], False, "", False, "not clearly faster"),
        ([(1000, 500), (9000, 4000)], True, "", False, "where they lie"),
        ([(1000, 500), (9000, 4000)], False, "asked for CUDA_Host, got CPU", False, "got CPU"),
    ],
)
def test_pinned_inputs_pay_where_every_size_copies_faster_from_really_pinned_memory(
    times: list[tuple[int, int]], in_place: bool, note: str, pays: bool, reason: str
) -> None:
    pairs = [(copy(1 << 14, slow), copy(1 << 14, fast, note)) for slow, fast in times]
    verdict = decide("CUDA.0", in_place, "CUDA_Host", pairs)
    assert bool(verdict) is verdict.pays is pays
    assert reason in verdict.reason and "16.0 KiB in 500 ns instead of 1 us" in verdict.reason


def test_senseless_arguments_are_named() -> None:
    with pytest.raises(kit.ArgumentError, match="too small"):
        LockedPool(1)
    with pytest.raises(kit.ArgumentError, match=r"X\.9"):
        LockedPool(1 << 16, device="X.9")
    with pytest.raises(kit.ArgumentError, match=r"X\.9"):
        pinned_pays("X.9")
    with pytest.raises(kit.ArgumentError, match=r"sizes are \(\)"):
        pinned_pays(sizes=())
    with LockedPool(1 << 12) as pool, pytest.raises(kit.ArgumentError, match="at least 1"):
        pool.buffer(0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=60))
def test_slices_never_overlap_and_come_back_whole(steps: list[tuple[bool, int]]) -> None:
    slices, taken = Slices(2000), {}
    for give, n in steps:
        if give and taken:
            start = list(taken)[n % len(taken)]
            slices.give_back(start)
            del taken[start]
            continue
        try:
            start = slices.take(n)
        except kit.OutOfMemory:
            continue
        assert start % ALIGNMENT == 0 and start + n <= 2000
        assert all(start + n <= other or other + m <= start for other, m in taken.items())
        taken[start] = n
    assert slices.n_taken == len(taken) and slices.unshown_nbytes == 2000 - sum(taken.values())
    for start in taken:
        slices.give_back(start)
    assert slices.free_nbytes == 2000 and slices.take(2000) == 0
