"""Functions that ctypes bound before tracking began: their pointers lead to the hooks while somebody tracks.

ctypes asks dlsym once and keeps the answer inside the function object, where no relocation slot lies. What is asked
for while somebody tracks is answered with a hook anyway (native/slots.c).
"""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

from kit.core.native import lib

_lock = threading.Lock()
_users = 0
_changed: list[tuple[Any, int]] = []  # function objects, kept alive, and their own pointers


def follow_ctypes() -> None:
    """Lead ctypes functions of ggml to the hooks."""
    global _users
    with _lock:
        _users += 1
        if "ctypes" not in sys.modules or lib.kit_track_copies() == 0:
            return
        import ctypes

        base: Any = ctypes.CFUNCTYPE(None).__mro__[1]  # ctypes' common class of foreign functions
        classes = _subclasses(base)
        referrers: Any = gc.get_referrers(*classes)  # an object refers to its class
        for item in referrers:
            if isinstance(item, base):  # not everything that refers to a class is of it
                _follow(item, ctypes.c_void_p.from_address(ctypes.addressof(item)))


def _subclasses(base: type) -> list[type]:
    below: list[type] = base.__subclasses__()
    return below + [cls for child in below for cls in _subclasses(child)]


def _follow(function: Any, pointer: Any) -> None:
    hook = lib.kit_track_hook_of(pointer.value or 0)
    if hook:
        _changed.append((function, pointer.value))
        pointer.value = int(hook)


def unfollow_ctypes() -> None:
    """Put the pointers back when the last user is gone."""
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        while _changed:
            import ctypes

            function, original = _changed.pop()
            ctypes.c_void_p.from_address(ctypes.addressof(function)).value = original
