"""What memory costs: records, fallbacks, pictures. Page faults and VmLck are counted by the kernel, not by kit."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

import kit
from kit.core.interrupts import uninterrupted
from kit.core.native import lib
from kit.memory import Cost, Costs
from kit.memory.cost_ways import BufferWay, PagesWay
from kit.memory.costs import measure
from kit.memory.pages import WAYS, Pages

SIZES = (4096, 1 << 20, 1 << 26)
ALWAYS = {"malloc", "mmap", "populate", "huge pages", "locked", "ggml CPU", "pooled"}
# The first call loads what a plain user may not be able to read in a privileged user's folders.
UNPRIVILEGED = """
import json, os, resource
import kit
kit.memory.costs([4096], repeats=1)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setuid(65534)
"""


def locked_nbytes() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmLck:\s+(\d+) kB", status).group(1)) * 1024


def as_plain_user(code: str) -> str:
    """Run ``code`` where 64 KiB may be locked and no privilege lifts that; return what it prints."""
    done = subprocess.run([sys.executable, "-c", UNPRIVILEGED + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured() -> Costs:
    return kit.memory.costs(SIZES, repeats=7)


@pytest.fixture(scope="module")
def rows(measured: Costs) -> dict[tuple[str, int], Cost]:
    return {(cost.kind, cost.nbytes): cost for cost in measured}


def test_every_kind_has_a_record_at_every_size_or_a_reason(measured: Costs, rows: dict[tuple[str, int], Cost]) -> None:
    refused = {(r.kind, r.nbytes) for r in measured.refused if r.reason}
    assert {(kind, size) for kind in ALWAYS for size in SIZES} <= set(rows)
    assert {(kind, size) for kind in WAYS for size in SIZES} <= set(rows) | refused


def test_a_pool_locked_once_is_20_times_cheaper_than_locking_64_mib_each_time(
    rows: dict[tuple[str, int], Cost],
) -> None:
    assert rows["locked", 1 << 26].total_ns > 20 * rows["pooled", 1 << 26].total_ns


def test_the_kernel_faults_fresh_pages_at_first_touch_and_locked_ones_never(
    rows: dict[tuple[str, int], Cost],
) -> None:
    fresh = rows["mmap", 1 << 26].faults
    assert fresh > 0
    assert rows["populate", 1 << 26].faults == rows["pooled", 1 << 26].faults == 0
    assert (rows["locked", 1 << 26].faults == 0) is not rows["locked", 1 << 26].fell_back
    if not rows["huge pages", 1 << 26].fell_back:
        assert rows["huge pages", 1 << 26].faults < fresh


def test_medians_lie_inside_their_spread(measured: Costs) -> None:
    for cost in measured:
        assert cost.total_p10_ns <= cost.total_ns <= cost.total_p90_ns
        assert cost.repeats == 7
    for copy in measured.copies:
        assert copy.to_p10_ns <= copy.to_ns <= copy.to_p90_ns and copy.from_p10_ns <= copy.from_ns <= copy.from_p90_ns


def test_one_trip_adds_up_exactly() -> None:
    cost = measure(PagesWay("mmap"), 1 << 16, repeats=1)
    assert isinstance(cost, Cost)
    assert cost.total_ns == cost.alloc_ns + cost.touch_ns + cost.free_ns == cost.first_ns == cost.total_p90_ns


def test_copies_are_measured_from_every_kind_to_every_device(measured: Costs) -> None:
    kinds = {cost.kind for cost in measured if cost.kind != "device buffer"}
    devices = {device.name for device in kit.devices()}
    found = {(c.kind, c.device, c.nbytes) for c in measured.copies}
    assert {(kind, device, size) for kind in kinds for device in devices for size in SIZES} == found


def test_without_a_number_the_repeats_follow_the_time_they_take() -> None:
    quick, slow = (measure(PagesWay("mmap"), nbytes) for nbytes in (4096, 1 << 27))
    assert isinstance(quick, Cost) and isinstance(slow, Cost)
    assert quick.repeats > slow.repeats >= 5


def test_what_may_not_be_locked_is_measured_as_ordinary_pages_and_says_so() -> None:
    out = as_plain_user("print(kit.memory.costs([4096, 1 << 20], repeats=3).json())")
    rows = {(c["kind"], c["nbytes"]): c for c in json.loads(out)["costs"]}
    assert rows["locked", 4096]["got"] == "locked pages" and not rows["locked", 4096]["note"]
    large = rows["locked", 1 << 20]
    assert (large["asked"], large["got"]) == ("locked pages", "ordinary pages")
    assert "ENOMEM" in large["note"] and "RLIMIT_MEMLOCK is 64.0 KiB" in large["note"]
    assert large["faults"] > 0
    assert rows["pooled", 1 << 20]["got"] == "ordinary pages"


def test_the_fallback_stands_under_the_table() -> None:
    out = as_plain_user("print(kit.memory.costs([1 << 20], repeats=3))")
    assert re.search(r"^\* locked, 1.0 MiB: not locked: mlock of 1.0 MiB said ENOMEM", out, re.M)


def test_a_buffer_of_another_type_than_asked_for_is_a_fallback() -> None:
    way = BufferWay("host buffer", "CUDA.0", lib.ggml_backend_cpu_buffer_type())
    way.asked = "CUDA_Host"  # as ggml's CUDA does when pinning fails: it hands out a buffer of the CPU's type
    cost = measure(way, 4096, repeats=2)
    assert isinstance(cost, Cost)
    assert cost.fell_back and cost.note == "asked for CUDA_Host, got CPU: ordinary memory, silently"
    assert "got CPU" in Costs([cost]).text() and "got CPU" in Costs([cost]).html()


def test_nothing_is_left_behind() -> None:
    before, locked = kit.memory.live(), locked_nbytes()
    kit.memory.costs([1 << 16], repeats=3)
    assert kit.memory.live() == before and locked_nbytes() == locked


@pytest.mark.parametrize("delay", [0.002, 0.03, 0.11, 0.4])
def test_an_interrupt_ends_it_and_leaves_nothing(delay: float) -> None:
    before, locked = kit.memory.live(), locked_nbytes()
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, delay)
    start = time.perf_counter()
    try:
        with pytest.raises(KeyboardInterrupt):
            kit.memory.costs([1 << 22], repeats=1_000_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert time.perf_counter() - start < delay + 2
    assert kit.memory.live() == before and locked_nbytes() == locked


def test_an_interrupt_waits_for_the_next_look_and_is_never_lost() -> None:
    handler, reached = signal.getsignal(signal.SIGINT), []

    def interrupted() -> None:
        with uninterrupted as held:
            signal.raise_signal(signal.SIGINT)
            reached.append("the look")
            held.check()
            reached.append("what follows it")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["the look"]
    with pytest.raises(KeyboardInterrupt), uninterrupted:
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler


def test_measuring_works_on_any_thread() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(kit.memory.costs, [4096], 2).result()


@pytest.mark.parametrize(
    ("sizes", "options", "named"),
    [([], {}, "sizes"), ([0], {}, "sizes"), ([4096], {"repeats": 0}, "repeats"), ([4096], {"devices": ["X.9"]}, "X.9")],
)
def test_senseless_arguments_are_named(sizes: list[int], options: dict[str, object], named: str) -> None:
    with pytest.raises(kit.ArgumentError, match=named):
        kit.memory.costs(sizes, **options)


def test_a_size_beyond_the_machine_is_refused_before_anything_is_taken() -> None:
    locked = locked_nbytes()
    with pytest.raises(kit.OutOfMemory) as caught:
        kit.memory.costs([1 << 44])
    assert caught.value.nbytes >= 1 << 44 and locked_nbytes() == locked


def test_locked_pages_are_locked_by_the_kernels_count_until_closed_or_forgotten() -> None:
    before = locked_nbytes()
    with Pages(1 << 20) as pages:
        assert pages.got == "locked pages" and locked_nbytes() == before + (1 << 20)
        assert "1.0 MiB" in repr(pages) and "locked pages" in str(kit.memory.live())
    assert locked_nbytes() == before
    with pytest.raises(kit.ClosedError):
        pages.base  # noqa: B018
    forgotten = Pages(1 << 20)
    del forgotten
    assert locked_nbytes() == before


def test_pages_that_no_system_has_raise_and_leave_nothing() -> None:
    before = kit.memory.live()
    with pytest.raises(kit.OutOfMemory, match="ENOMEM"):
        Pages(1 << 60, "mmap")
    assert kit.memory.live() == before


def test_every_form_is_whole(measured: Costs) -> None:
    assert measured.png().startswith(b"\x89PNG") and measured.svg().lstrip().startswith("<?xml")
    assert json.loads(measured.json()) == json.loads(json.dumps(measured.to_dict()))
    page = measured.html()
    assert page.startswith("<!doctype html>") and "http:" not in page and "https:" not in page and "<script" not in page
    for word in ("pooled", "64.0 MiB", "copies"):
        assert word in page
    text = measured.text()
    assert all(len(line) == len(line.rstrip()) for line in text.splitlines())
    assert measured.sizes == SIZES


def test_names_are_escaped(measured: Costs) -> None:
    bad = dataclasses.replace(measured[0], kind="<script>alert(1)</script>", note="<b>", got="x")
    page = Costs([bad]).html()
    assert "<script>" not in page and "&lt;script&gt;" in page and "<b>" not in page


def test_nothing_measured_is_said() -> None:
    assert Costs().text().startswith("nothing was measured") and "nothing was measured" in Costs().html()
