"""Python stacks of events: native nodes turned into files, lines, functions, notebook cells - when somebody reads."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import re
import sys
from dataclasses import dataclass

from kit.core.native import ffi, lib

_KIT = str(pathlib.Path(__file__).resolve().parent.parent) + os.sep
_LIBRARY = os.path.dirname(os.path.realpath(os.__file__)) + os.sep
_PLUMBING = ("/contextlib.py", "/weakref.py", "/functools.py", "/runpy.py")
_CELL = re.compile(r"<ipython-input-(\d+)-")


@dataclass(frozen=True)
class Frame:
    """One line of Python on the way to an event. ``file`` is ``In [n]`` for a notebook's cell."""

    file: str
    line: int
    function: str
    path: str

    @property
    def is_kits(self) -> bool:
        """Whether the line is kit's own, or the interpreter's plumbing."""
        return self.path.startswith((_KIT, "<frozen ")) or self.path.endswith(_PLUMBING)

    @property
    def is_librarys(self) -> bool:
        """Whether the line is of Python's own library or of an installed package."""
        return self.path.startswith((_LIBRARY, "<frozen ")) or "/site-packages/" in self.path

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@functools.cache
def _node(number: int) -> tuple[int, Frame]:
    """Return the caller's node, and the frame."""
    found = ffi.new("kit_stack_node *")
    if not lib.kit_stack_node_get(number, found):
        return 0, Frame("?", 0, "?", "?")
    code = ctypes.cast(int(ffi.cast("uintptr_t", found.code)), ctypes.py_object).value
    path = str(code.co_filename)
    return int(found.parent), Frame(_shown(path), int(found.line), str(code.co_qualname), path)


@functools.lru_cache(maxsize=1 << 16)
def frames(number: int) -> tuple[Frame, ...]:
    """Return the whole stack, innermost frame first; empty for an event outside Python."""
    found = []
    node = int(number)
    while node:
        node, frame = _node(node)
        found.append(frame)
    return tuple(found)


@functools.lru_cache(maxsize=1 << 16)
def user_frames(number: int) -> tuple[Frame, ...]:
    """Return the stack without kit's own lines, and without what runs a notebook's cell.

    If nothing else is in it, the whole stack.
    """
    stack = frames(number)
    cells = [i for i, frame in enumerate(stack) if _is_cell(frame)]
    inside = stack[: cells[-1] + 1] if cells else stack
    return tuple(frame for frame in inside if not frame.is_kits) or stack


def where(number: int) -> str:
    """Return the innermost line outside kit as text; empty for an event outside Python."""
    stack = user_frames(number)
    return str(stack[0]) if stack else ""


def _is_cell(frame: Frame) -> bool:
    return frame.file.startswith("In [")


def _shown(path: str) -> str:
    cell = _cell_number(path)
    return f"In [{cell}]" if cell else os.path.basename(path) or path


def _cell_number(path: str) -> int | None:
    """Number of the notebook cell that was compiled under ``path``."""
    match = _CELL.match(path)
    if match:
        return int(match.group(1))
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", None) or {}
    number = names.get(path)
    return int(number) if number else None
