"""Another ggml in the process: bytes that the tracker sees in whisper.cpp, against those that whisper logs itself."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

from benchmarks.measure import Figure

MODEL = pathlib.Path(__file__).parent.parent / "tests" / "memory" / "data" / "whisper-for-tests-tiny.en.bin"

_PROGRAM = """
import json, sys
import kit
with kit.Tracker() as mem:
    import _pywhispercpp as whisper
    context = whisper.whisper_init_from_file_with_params(sys.argv[1], whisper.whisper_context_default_params())  # HERE
    if sys.argv[2] == "free":
        whisper.whisper_free(context)
report = mem.report()
made = [e for e in report.events if "whisper" in e.library and e.action == "alloc"]
print(json.dumps({
    "buffers": [e.size for e in made if e.kind == "buffer" and e.size],
    "lent": [e.asked for e in made if e.kind == "context" and not e.size],
    "leaks": [[leak.count, leak.nbytes, leak.lines[0] if leak.lines else 0] for leak in report.leaks],
}))
"""
_LOGGED = re.compile(r"(kv self|kv cross|kv pad|compute buffer \(\w+\)) +(?:size +)?= +([\d.]+) MB")


def run(rounds: int, scale: float) -> list[Figure]:
    """Each in a process of its own, for whisper logs to its standard error."""
    if not importlib.util.find_spec("_pywhispercpp"):
        return [Figure("whisper's bytes", 0, rounds=0, note="install pywhispercpp to compare")]
    freed, logged = _watch("free")
    kept, _ = _watch("keep")
    # whisper counts the metadata of a graph, which lies in memory of its own, into that graph's compute buffer
    with_graphs = [size + lent for size in freed["buffers"] for lent in {0, *freed["lent"]}]
    off = {
        name: mb
        for name, mb in logged.items()
        if not any(round(n / 1e6, 2) == mb for n in (freed["buffers"] if name.startswith("kv") else with_graphs))
    }
    line = next(i for i, text in enumerate(_PROGRAM.splitlines(), 1) if "# HERE" in text)
    elsewhere = sum(count for count, _, at in kept["leaks"] if at != line)
    told = ", ".join(f"{name} {mb} MB" for name, mb in logged.items())
    nbytes = sum(leak[1] for leak in kept["leaks"])
    return [
        Figure("whisper's log: sizes missing of the 7 it should have", abs(len(logged) - 7), bound=0, rounds=1),
        Figure("whisper's sizes that the tracker did not see", len(off), bound=0, rounds=1, note=told),
        Figure("left after whisper_free", len(freed["leaks"]), bound=0, rounds=1),
        Figure(
            "without it: allocations not at the line that made them",
            elsewhere if kept["leaks"] else 1,
            bound=0,
            rounds=1,
            note=f"{sum(leak[0] for leak in kept['leaks'])} allocations, {nbytes:,} bytes, line {line}",
        ),
    ]


def _watch(how: str) -> tuple[dict[str, list[Any]], dict[str, float]]:
    command = [sys.executable, "-c", _PROGRAM, str(MODEL), how]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = {name: float(mb) for name, mb in _LOGGED.findall(done.stderr)}
    return json.loads(done.stdout.splitlines()[-1]), found
