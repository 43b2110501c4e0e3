"""Somebody else's ggml in this process: pywhispercpp's, of another version than ours."""

from __future__ import annotations

import pathlib
import re

import pytest

pytest.importorskip("_pywhispercpp", reason="pywhispercpp is a test dependency; pip install pywhispercpp")
pytestmark = pytest.mark.peer

PROGRAM = """
import sys
{before}
import kit, kit.memory
with kit.Tracker() as mem:
    import _pywhispercpp as pwc
    context = pwc.whisper_init_from_file_with_params({path!r}, pwc.whisper_context_default_params())  # HERE
    live = [r for r in kit.memory.live() if r.library != "kit"]
    {free}
report = mem.report()
foreign = [e for e in report.events if "whisper" in e.library]
print("LIVE", len(live), sorted(r.nbytes for r in live if r.kind == "buffer"))
print("CONTEXTS", sum(e.kind == "context" for e in foreign), "SCHEDULERS", sum(e.kind == "scheduler" for e in foreign))
for e in foreign:
    if e.kind == "buffer" and e.action == "alloc" and e.size:
        print("BUFFER", e.size, e.purpose, e.lines)
    if e.kind == "context" and e.action == "alloc" and not e.size and e.asked > 1e6:
        print("LENT", e.asked)  # a context over memory of whisper's own
for leak in report.leaks:
    print("LEAK", leak.count, leak.kind, leak.nbytes, leak.library, leak.where)
"""


def program(path: pathlib.Path, *, free: bool, before: str = "") -> str:
    return PROGRAM.format(path=str(path), free="pwc.whisper_free(context)" if free else "pass", before=before)


def logged(text: str) -> dict[str, float]:
    """Megabytes that whisper itself logs, by what they are for."""
    found = re.findall(r"(kv self|kv cross|kv pad|compute buffer \(\w+\)) +(?:size +)?= +([\d.]+) MB", text)
    return {name: float(mb) for name, mb in found}


@pytest.mark.parametrize("first", ["kit first", "whisper first"])
def test_bytes_are_those_whisper_logs_and_nothing_is_left(run_script, whisper_model: pathlib.Path, first: str) -> None:  # type: ignore[no-untyped-def]
    done = run_script(program(whisper_model, free=True, before="import _pywhispercpp" if "whisper" in first else ""))
    sizes = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("BUFFER")]
    expected = logged(done.stderr)
    assert {"kv self", "kv cross", "kv pad"} <= set(expected)
    assert len(expected) == 7
    lent = {int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("LENT")}
    for name, mb in expected.items():  # whisper adds the metadata of its graphs to a compute buffer
        whole = sizes if name.startswith("kv") else [size + meta for size in sizes for meta in lent]
        assert any(round(size / 1e6, 2) == mb for size in whole), f"{name} = {mb} MB is not among {sorted(whole)}"
    assert "LEAK" not in done.stdout
    assert int(re.findall(r"SCHEDULERS (\d+)", done.stdout)[0]) >= 8  # four made, four freed


def test_a_free_that_is_skipped_is_reported_with_its_line(run_script, whisper_model: pathlib.Path) -> None:  # type: ignore[no-untyped-def]
    source = program(whisper_model, free=False)
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "# HERE" in text)
    done = run_script(source)
    leaks = [text for text in done.stdout.splitlines() if text.startswith("LEAK")]
    assert leaks
    assert all(f"program.py:{line}" in leak and "whisper" in leak for leak in leaks)
    nbytes = sum(int(leak.split()[3]) for leak in leaks)
    assert nbytes > sum(logged(done.stderr).values()) * 1e6
