"""Copies of ggml's libraries under names nobody else uses.

Every package built on ggml ships a ``libggml-base.so.0``, and the dynamic linker keeps one
library per SONAME: whoever loads first would win for everybody, although the versions
differ. The copies get names of equal length, so that the string table keeps its size.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable

_NAME = re.compile(rb"(?<=\0)lib(ggml)((?:-[a-z0-9_]+)?\.so(?:\.[0-9]+)*)(?=\0)")
OURS = b"gkit"


def copy_privately(libraries: Iterable[pathlib.Path], folder: pathlib.Path) -> list[pathlib.Path]:
    """Write a renamed copy of each library into ``folder``; return the copies in the same order.

    What else lay there is removed. A process that has the old copies loaded keeps them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copies = [_copy(library, folder) for library in libraries]
    for old in set(folder.glob("*.so*")) - set(copies):
        old.unlink()
    return copies


def _copy(library: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    image = _NAME.sub(rb"lib" + OURS + rb"\2", library.read_bytes())
    soname = next((m.group().decode() for m in _OWN_NAME.finditer(image) if _is_own(m.group().decode(), library)), None)
    target = folder / (soname or library.name.replace("libggml", "libgkit", 1))
    partial = target.with_name(target.name + ".partial")
    partial.write_bytes(image)
    partial.replace(target)
    return target


_OWN_NAME = re.compile(rb"(?<=\0)libgkit(?:-[a-z0-9_]+)?\.so(?:\.[0-9]+)*(?=\0)")


def _is_own(name: str, library: pathlib.Path) -> bool:
    return name.split(".so")[0] == library.name.split(".so")[0].replace("libggml", "libgkit", 1)
