"""`kit watch`: run somebody else's program, unchanged, and say what ggml memory it leaks.

The verdict falls when the program has ended as Python ends it: its threads have been waited for and its exit
handlers have run. Then (1) what grew from pass to pass is a leak, whoever holds it; (2) the globals of the program
and of the modules beside it are dropped, as Python would; (3) what ggml still holds is leaked.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import os
import pathlib
import sys
import threading
import types
from collections.abc import Sequence

from kit.memory.leaks import Leak
from kit.memory.program import Program
from kit.memory.report import MemoryReport
from kit.memory.tracker import Tracker
from kit.units import bytes_text, counted

LEAKED = 1
_FORMS = (".html", ".json", ".txt")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``[options] SCRIPT [ARGS...]`` or ``[options] -m MODULE [ARGS...]``; return the program's own exit code.

    The program runs as ``__main__`` in this process. Its verdict and report come at the end of the process, whose
    exit code is then the program's own, or 1 where that is 0 and memory leaked. A program that ends by ``os._exit``
    or by a signal nobody handles leaves no verdict.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    report = pathlib.Path(options.output).absolute()
    if report.suffix not in _FORMS:
        parser.error(f"a report is written as {', '.join(_FORMS)}, not as {report.name!r}")
    program = Program(options.script, options.args, as_module=options.module)
    if not program.exists:
        parser.error(f"there is no program {options.script}")
    watched = _Watched(program, report, Tracker(stacks=not options.no_stacks))
    return watched.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kit watch", description="run a Python program and report the ggml memory it leaks"
    )
    parser.add_argument(
        "-o", "--output", default="kit-memory.html", help="where the report goes (.html, .json or .txt)"
    )
    parser.add_argument("--no-stacks", action="store_true", help="do not keep Python stacks")
    parser.add_argument("-m", "--module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    return parser


class _Watched:
    """A program under a tracker, from its first line to the end of the process."""

    def __init__(self, program: Program, output: pathlib.Path, tracker: Tracker) -> None:
        self._program = program
        self._output = output
        self._tracker = tracker
        self._process = os.getpid()
        self._code = 0

    def run(self) -> int:
        atexit.register(self._end)  # before the program registers anything, so it runs after all of it
        self._tracker.start()
        self._code = self._program.run()
        return self._code

    def _end(self) -> None:
        if os.getpid() != self._process:  # a fork that ran to the end
            return
        report, leaks = self._judged()
        _say(_verdict(report, leaks, self._write(report)))
        if leaks and not self._code:
            _flush()
            os._exit(LEAKED)

    def _judged(self) -> tuple[MemoryReport, list[Leak]]:
        gc.collect()
        before = self._tracker.report()
        grown = [leak for leak in before.leaks if leak.verdict == "growth"]
        daemons = any(thread is not threading.current_thread() for thread in threading.enumerate())
        if grown or daemons:  # a daemon thread still runs on these globals, and may hold what it will free
            self._tracker.stop()
            return before, grown
        self._program.forget()
        gc.collect()
        self._tracker.stop()
        report = self._tracker.report()
        return report, [leak for leak in report.leaks if leak.is_leak]

    def _write(self, report: MemoryReport) -> str:
        forms = {".json": report.json, ".txt": report.text}
        try:
            self._output.write_text(forms.get(self._output.suffix, report.html)(), encoding="utf-8")
        except OSError as error:
            return f"no report: {self._output} could not be written: {error.strerror}"
        return f"report: {self._output}"


def _verdict(report: MemoryReport, leaks: list[Leak], written: str) -> str:
    head = f"kit watch: {len(report.recording):,} events, peak {bytes_text(report.peak)}"
    missing = [f"  recording incomplete: {reason}" for reason in report.recording.incomplete]
    if not leaks:
        return "\n".join([f"{head}, no leak. {written}", *missing])
    total = sum(leak.nbytes for leak in leaks)
    lines = [f"{head}, {bytes_text(total)} leaked at {counted(len(leaks), 'place')}. {written}"]
    return "\n".join([*lines, *(f"  {leak}" for leak in leaks[:20]), *missing])


def _say(text: str) -> None:
    """Print to the terminal's error stream, if the program has left it open."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.__stderr__, flush=True)


def _flush() -> None:
    streams: tuple[object, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        flush = getattr(stream, "flush", None)
        if isinstance(flush, (types.MethodType, types.BuiltinMethodType)):
            with contextlib.suppress(OSError, ValueError):
                flush()
