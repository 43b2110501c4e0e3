"""Files from the package registry, through pip: nothing is ever half there, one process at a time."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from kit.errors import FetchError
from kit.progress import byte_bar

_POLL_S = 0.1

Bar = Callable[[str, int], AbstractContextManager[Any]]
"""Makes a progress bar from a title and a number of bytes."""

Failure = Callable[[str], FetchError]
"""Makes the exception from a reason."""


def byte_bars(progress: bool) -> Bar:
    """Return what makes progress bars in bytes; they show nothing unless ``progress``."""

    def bar(title: str, total: int) -> AbstractContextManager[Any]:
        return byte_bar(title, total, shown=progress, leave=False)

    return bar


@contextmanager
def only_one(target: Path, doing: str, progress: bool) -> Iterator[None]:
    """Hold the lock of ``target``; says so if it has to wait. The lock goes with its process, however that ends."""
    from filelock import FileLock, Timeout  # which loads asyncio and ssl: only where something is fetched

    lock = FileLock(f"{target}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            print(f"another process is {doing}; waiting for it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder of our own in ``parent``; those of calls that were killed are removed first."""
    for stale in parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def download(requirement: str, options: Sequence[str], scratch: Path, bar: Any, failure: Failure) -> Path:
    """Let pip download one file into ``scratch``; pip's words are shown only if it fails."""
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--no-cache-dir"]
    target = scratch / "download"
    wanted = ["download", "--no-deps", *options, requirement]
    # -P: a file pip.py in the working folder is not ours to run.
    command = [sys.executable, "-P", "-m", "pip", *wanted, *quiet, "-d", str(target)]
    with (scratch / "pip.log").open("w+b") as log:
        code = run_watched(command, scratch, log, bar)
        log.seek(0)
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    arrived = sorted(target.glob("*"))
    if code == 0 and len(arrived) == 1:
        return arrived[0]
    tried = f"`{shlex.join([sys.executable, '-m', 'pip', 'download', '--no-deps', requirement])}`"
    if any("No module named pip" in line for line in lines):
        raise failure(f"{sys.executable} has no pip, tried {tried}; `python -m ensurepip` installs it")
    said = " / ".join([line for line in lines if line.startswith("ERROR:")] or lines[-1:]) or "nothing"
    raise failure(
        f"{tried} failed (exit {code}); pip said: {said}\n"
        "Check the network and pip's index (`pip config list`), then call this again."
    )


def run_watched(command: list[str], scratch: Path, log: IO[bytes], bar: AbstractContextManager[Any]) -> int:
    """Run pip with its temporary files in scratch, whose growth is the progress; kill it on interrupt."""
    temporary = scratch / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONWARNINGS": "ignore"}
    with (
        bar as shown,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            while True:
                try:
                    return process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    n_bytes = _nbytes_under(temporary)
                    shown.update(max(0, min(n_bytes, shown.total) - shown.n))
        finally:
            process.kill()  # no effect on one that has ended


def _nbytes_under(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # pip removes files as we look
                total += os.stat(os.path.join(place, name)).st_size
    return total
