"""`kit watch`: run somebody else's program, unchanged, and say what ggml memory it leaks."""

from __future__ import annotations

import argparse
import gc
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence

from kit.memory.report import MemoryReport
from kit.memory.tracker import Tracker
from kit.units import bytes_text

LEAKED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``[options] SCRIPT [ARGS...]``; return the program's own exit code, or 1 if it ended well and leaked.

    The program runs as ``__main__`` in this process. When it has ended, its globals are dropped and garbage is
    collected; what ggml then still holds is leaked. The report is written as HTML, or JSON for ``-o NAME.json``.
    """
    parser = argparse.ArgumentParser(
        prog="kit watch", description="run a Python program and report the ggml memory it leaks"
    )
    parser.add_argument(
        "-o", "--output", default="kit-memory.html", help="where the report goes (.html, .json or .txt)"
    )
    parser.add_argument("--no-stacks", action="store_true", help="do not keep Python stacks")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    script = pathlib.Path(options.script)
    if not script.is_file():
        parser.error(f"there is no program {script}")
    tracker = Tracker(stacks=not options.no_stacks)
    with tracker:
        code = run_program(script, options.args)
    report = tracker.report()
    _write(report, pathlib.Path(options.output))
    leaks = [leak for leak in report.leaks if leak.is_leak]
    print(_verdict(report, options.output), file=sys.stderr)
    return code or (LEAKED if leaks else 0)


def run_program(script: pathlib.Path, args: Sequence[str]) -> int:
    """Run ``script`` as ``__main__``; return its exit code. What it raises is shown as Python would."""
    before = sys.argv[:], sys.path[:]
    sys.argv = [str(script), *args]
    sys.path.insert(0, str(script.resolve().parent))
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
    gc.collect()
    return code


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _write(report: MemoryReport, path: pathlib.Path) -> None:
    forms = {".json": report.json, ".txt": report.text}
    path.write_text(forms.get(path.suffix, report.html)(), encoding="utf-8")


def _verdict(report: MemoryReport, output: str) -> str:
    leaks = [leak for leak in report.leaks if leak.is_leak]
    head = f"kit watch: {len(report.recording):,} events, peak {bytes_text(report.peak)}"
    where = f"report: {os.path.abspath(output)}"
    if not leaks:
        return f"{head}, no leak. {where}"
    total = sum(leak.nbytes for leak in leaks)
    lines = [f"{head}, {bytes_text(total)} leaked at {len(leaks)} places. {where}"]
    return "\n".join([*lines, *(f"  {leak}" for leak in leaks[:20])])
