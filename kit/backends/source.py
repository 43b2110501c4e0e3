"""The source of the ggml that kit was built against, from the package registry, verified by hash."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

from kit.errors import FetchError
from kit.files import sha256
from kit.registry import Failure, byte_bars, download, scratch_folder

VERSION = "0.20.2"
REQUIREMENT = "libggml-python==0.20.2.post1"
NBYTES = 7_299_183
SHA256 = "e47ff53506342959ffb3ce15380b82828fea10ec5f208f9ef6915895f1a7a176"
_NAME = "libggml_python-0.20.2.post1.tar.gz"


def get_source(folder: Path, *, progress: bool) -> Path:
    """Return the archive in ``folder``, fetched if it is not there or damaged.

    Raises:
        FetchError: the registry cannot be reached, or gives another file.
    """
    archive = folder / _NAME
    if archive.exists() and sha256(archive) == SHA256:
        return archive
    with scratch_folder(folder, ".source-") as scratch:
        bar = byte_bars(progress)(f"download {REQUIREMENT}", NBYTES)
        arrived = download(REQUIREMENT, ["--no-binary", "libggml-python"], scratch, bar, _failure(archive))
        found = sha256(arrived)
        if found != SHA256:
            raise _failure(archive)(f"the registry's {arrived.name} has sha256 {found}, expected {SHA256}")
        os.replace(arrived, archive)
    return archive


def unpack(archive: Path, into: Path) -> Path:
    """Unpack ggml's own folder of the archive; return where it lies."""
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if Path(m.name).parts[1:2] == ("ggml",)]
        tar.extractall(into, members, filter="data")
    (root,) = into.glob("*/ggml")
    return root


def _failure(archive: Path) -> Failure:
    def make(reason: str) -> FetchError:
        return FetchError(
            f"cannot fetch ggml's source: {reason}\n"
            f"Without the network, put {_NAME} ({NBYTES} bytes, sha256 {SHA256}) at {archive}"
        )

    return make
