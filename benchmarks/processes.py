"""Cold processes: how long until they first say something, and how much memory they took at most."""

from __future__ import annotations

import dataclasses
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

_POLL_S = 0.002
_FIELDS = ("VmHWM", "RssAnon", "RssFile")


class ProcessFailed(RuntimeError):
    """A process that ended with an error, or in silence; the message carries its last words."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One process: seconds from its start to its first byte on standard output and to its end; what it printed."""

    first_s: float
    whole_s: float
    text: str


@dataclasses.dataclass(frozen=True)
class Peak:
    """Bytes a process held at most, as the system counts them; anonymous and file pages each at their own peak."""

    resident_bytes: int
    anonymous_bytes: int
    file_bytes: int


def start_to_first_byte(command: Sequence[str], env: Mapping[str, str] | None = None) -> Run:
    """Run a process and time its first byte of output."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        started = time.perf_counter()
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=dict(os.environ, **(env or {})),
        ) as process:
            assert process.stdout
            select.select([process.stdout], [], [])
            first = time.perf_counter()
            text = process.stdout.read().decode(errors="replace")
        whole = time.perf_counter()
        errors.seek(0)
        if process.returncode or not text:
            raise ProcessFailed(f"`{' '.join(command)}` ended with {process.returncode}:\n{errors.read()[-2000:]}")
    return Run(first - started, whole - started, text)


def peak_memory(command: Sequence[str], env: Mapping[str, str] | None = None) -> Peak:
    """Run a process and watch its /proc/PID/status until it ends. Linux only."""
    most = dict.fromkeys(_FIELDS, 0)
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=dict(os.environ, **(env or {})),
        )
        watcher = threading.Thread(target=_watch, args=(process.pid, most))
        watcher.start()
        watcher.join()  # ends with the process, which stays a zombie until it is waited for
        if process.wait():
            errors.seek(0)
            raise ProcessFailed(f"`{' '.join(command)}` ended with {process.returncode}:\n{errors.read()[-2000:]}")
    return Peak(most["VmHWM"], most["RssAnon"], most["RssFile"])


def _watch(pid: int, most: dict[str, int]) -> None:
    while fields := _status(pid):
        for name, nbytes in fields.items():
            most[name] = max(most[name], nbytes)
        time.sleep(_POLL_S)


def _status(pid: int) -> dict[str, int]:
    """Return the fields in bytes; empty once the process has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            pairs = (line.split(":", 1) for line in file)
            return {name: int(text.split()[0]) << 10 for name, text in pairs if name in _FIELDS}
    except OSError:
        return {}
