"""Writing a file whole or not at all: beside its place under another name, then renamed."""

from __future__ import annotations

import contextlib
import io
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from kit.core.interrupts import uninterrupted
from kit.errors import ArgumentError, KitError


def place_for(out: str | os.PathLike[str], error: type[KitError]) -> Path:
    """Return where to write ``out``, links followed; raise ``error`` where no file can be, or a device or pipe is."""
    if not isinstance(out, (str, os.PathLike)) or not os.fspath(out):
        raise ArgumentError(f"{out!r} is no path of a file to write")
    try:
        path = Path(os.path.realpath(os.fsdecode(out)))
        if not path.parent.is_dir():
            raise error(f"{path}: there is no folder {path.parent}")
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise error(f"{path} is there already and is no regular file")
    except (OSError, ValueError) as found:
        if isinstance(found, KitError):
            raise
        raise error(f"{os.fsdecode(out)!r} cannot be written: {found}") from found
    return path


@contextlib.contextmanager
def replacing(target: Path, error: type[KitError]) -> Iterator[io.BufferedRandom]:
    """Give a new file that becomes ``target`` if the block ends well, and vanishes if not, by an interrupt too.

    Raises ``error`` where the system refuses to make, write or rename it.
    """
    path = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    file: io.BufferedRandom | None = None
    try:
        try:
            with uninterrupted:
                file = open(path, "x+b")  # noqa: SIM115 - closed below, whatever happens
        except OSError as found:
            raise error(f"{target}: cannot write to its folder: {found.strerror}") from found
        yield file
        try:
            file.flush()
            os.fsync(file.fileno())
            os.replace(path, target)
            _sync_folder(target.parent)
        except OSError as found:
            raise error(f"{target}: writing failed: {found.strerror}") from found
    finally:
        with uninterrupted:
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
                path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
