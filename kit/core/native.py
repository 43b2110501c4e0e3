"""The only door to kit._native: loads the private copies of ggml, then the extension.

Importing this module is the first use of ggml in the process. It (1) loads our copies of the
libraries with RTLD_DEEPBIND, so that another package's ggml disturbs neither side, (2) imports
the extension the same way, (3) installs the abort guard, the worker frames and the log.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import pathlib
import sys
from typing import Any

from kit.core.libraries import choose
from kit.core.scope import current
from kit.errors import GgmlAbort, NativeMissing
from kit.log import joiner, log

_DEEP = os.RTLD_NOW | getattr(os, "RTLD_DEEPBIND", 0)


#: the build of ggml this process uses
libraries = choose()


def library_paths() -> list[pathlib.Path]:
    """Return the libraries of ggml this process uses, in load order."""
    return libraries.paths


def _load() -> tuple[Any, Any]:
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # else ggml attaches a debugger when anything terminates
    paths = library_paths()
    if not paths:
        raise NativeMissing(
            f"no ggml libraries in {libraries.folder}: kit is not built; run 'pip install -e .' or 'make demo'"
        )
    if libraries.passed_over:
        log.warning("%s; using the wheel's", libraries.passed_over)
    for path in paths:
        try:
            ctypes.CDLL(str(path), mode=_DEEP)
        except OSError as error:
            raise NativeMissing(f"{path} does not load: {error}; KIT_BACKEND=wheel goes without it") from error
    flags = sys.getdlopenflags()
    sys.setdlopenflags(_DEEP)
    try:
        module = importlib.import_module("kit._native")
    except ImportError as error:
        raise NativeMissing(f"kit._native does not load: {error}; rebuild with 'pip install -e .'") from error
    finally:
        sys.setdlopenflags(flags)
    return module.ffi, module.lib


ffi, lib = _load()


def _log_failed(kind: Any, value: Any, trace: Any) -> None:
    return None  # nothing useful can be done with an error inside logging on ggml's thread


@ffi.def_extern(onerror=_log_failed)  # type: ignore[untyped-decorator]
def kit_on_log(level: int, text: Any, user: Any) -> None:
    """Take one fragment of ggml's log; runs on whichever thread ggml logs from."""
    joiner.feed(int(level), ffi.string(text).decode("utf-8", "replace"))


@ffi.def_extern()  # type: ignore[untyped-decorator]
def kit_on_stage(call: int, user: Any) -> bool:
    """Hand a watched node to its `kit.core.watch.Watch`; runs on the thread that called compute."""
    return bool(ffi.from_handle(user).called(call))


def _silence() -> None:
    lib.kit_track_shutdown()  # from here on allocation hooks leave Python alone
    lib.ggml_log_set(lib.kit_log_silent, ffi.NULL)  # Python's logging is about to go


def _install() -> None:
    lib.kit_guard_set_exception(ffi.cast("void *", id(GgmlAbort)))
    lib.kit_guard_install()
    if lib.kit_workers_install() == 0:
        log.warning(
            "this ggml makes its threads without pthread_create (OpenMP?): an abort on a worker ends the process"
        )
    lib.ggml_log_set(lib.kit_on_log, ffi.NULL)
    lib.kit_watch_set_function(lib.kit_on_stage)
    lib.kit_stack_set_scope_variable(ffi.cast("void *", id(current)))
    atexit.register(_silence)


_install()


def text(pointer: Any) -> str:
    """Return the C string at ``pointer`` as text, or an empty string for NULL."""
    return ffi.string(pointer).decode("utf-8", "replace") if pointer != ffi.NULL else ""
