"""Functions that ctypes bound before tracking began: their pointers lead to the hooks while somebody tracks.

ctypes asks dlsym once and keeps the answer inside the function object, where no relocation slot lies. What it asks
for while somebody tracks is answered with a hook (native/slots.c), and gets its own pointer back at the end.

Finding the functions may run anybody's finalizers, so it holds no lock; the pointers change natively, all at once.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from kit.core.native import ffi, lib

_followed: dict[int, list[Any]] = {}  # by epoch: functions that native code holds pointers into, kept alive
_n_answers = 0


def follow_ctypes(epoch: int) -> None:
    """Lead ctypes functions of ggml to the hooks until ``epoch`` ends."""
    functions = [function for function in _functions() if lib.kit_track_hook_of(_pointer(function))]
    _followed.setdefault(epoch, []).extend(functions)
    lib.kit_track_swap_in(epoch, len(functions), _pointers(functions))


def unfollow_ctypes() -> None:
    """Let go of functions whose epoch has ended; give those that came meanwhile their own pointers."""
    global _n_answers
    ended, answers = int(lib.kit_track_ended()), int(lib.kit_track_answers())
    for epoch in list(_followed):
        if epoch <= ended:
            _followed.pop(epoch, None)
    if ended == int(lib.kit_track_epoch()) and answers != _n_answers:
        _n_answers = answers
        functions = _functions()
        lib.kit_track_swap_out(len(functions), _pointers(functions))


def _functions() -> list[Any]:
    """Every ctypes function object there is."""
    if "ctypes" not in sys.modules:
        return []
    import ctypes

    base: Any = ctypes.CFUNCTYPE(None).__mro__[1]  # ctypes' common class of foreign functions
    referrers: Any = gc.get_referrers(*_subclasses(base))  # an object refers to its class
    return [item for item in referrers if isinstance(item, base)]  # not everything that refers to a class is of it


def _subclasses(base: type) -> list[type]:
    below: list[type] = base.__subclasses__()
    return below + [cls for child in below for cls in _subclasses(child)]


def _pointer(function: Any) -> int:
    import ctypes

    return ctypes.c_void_p.from_address(ctypes.addressof(function)).value or 0


def _pointers(functions: list[Any]) -> Any:
    if not functions:
        return ffi.NULL
    import ctypes

    return ffi.new("uintptr_t[]", [ctypes.addressof(function) for function in functions])
