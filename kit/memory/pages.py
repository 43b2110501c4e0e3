"""Pages of this process outside ggml's allocators: ordinary, huge, or locked into memory."""

from __future__ import annotations

import errno
import os
import resource
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from kit.core import ledger
from kit.core.native import ffi, lib, text
from kit.errors import ClosedError, OutOfMemory
from kit.units import bytes_text

#: What `Pages` are called, and the native way each is made.
WAYS: dict[str, int] = {
    "malloc": int(lib.KIT_PAGES_MALLOC),
    "mmap": int(lib.KIT_PAGES_MMAP),
    "populate": int(lib.KIT_PAGES_POPULATE),
    "huge pages": int(lib.KIT_PAGES_HUGE),
    "reserved huge pages": int(lib.KIT_PAGES_HUGETLB),
    "locked": int(lib.KIT_PAGES_LOCKED),
}


class _Region:
    """What both kinds of region share: a C pointer, a finalizer that stands before it, an entry in the ledger."""

    got: str
    note: str
    _base: Any

    def __init__(self, nbytes: int, name: str, owner: str, free: Callable[[Any, list[int]], None], raw: Any) -> None:
        self.nbytes = nbytes
        self._name, self._owner = name, owner
        self._raw = raw
        self._number = [0]
        # The finalizer stands before there is anything to free: an interrupt finds nothing unowned.
        self._finalizer = weakref.finalize(self, free, raw, self._number)

    def _enter(self, kind: str, pointer: Any) -> None:
        address = int(ffi.cast("uintptr_t", pointer))
        entry = ledger.Resource(kind, self.nbytes, self._name, self._owner, "staging", self.got, address=address)
        self._entry = entry
        self._number[0] = ledger.opened(self._entry)

    @property
    def base(self) -> Any:
        """The first byte, as a C pointer.

        Raises:
            ClosedError: after `close`.
        """
        if self.closed:
            raise ClosedError(f"{self._name} of {self._owner}: its pages were given back")
        return self._base

    @property
    def closed(self) -> bool:
        """Whether the pages were given back."""
        return not self._finalizer.alive

    def touch(self) -> None:
        """Write a byte to every page, so that later writes find it in memory."""
        lib.kit_pages_touch(self.base, self.nbytes)

    def held(self, nbytes: int) -> None:
        """Let the ledger show ``nbytes`` for these pages: the rest is shown by what was cut out of them."""
        ledger.changed(self._number[0], replace(self._entry, nbytes=nbytes))

    def close(self) -> None:
        """Unlock and give back; a second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{bytes_text(self.nbytes)}, {self.got}"
        return f"{type(self).__name__}({self._name!r}, {state})"


class Pages(_Region):
    """``nbytes`` of memory got in one of `WAYS`; entered in the ledger as a mapping for staging.

    Locked pages are the process's own memory, kept from being swapped out by mlock; no device knows of them.
    Where the system refuses the lock the pages are ordinary ones: ``got`` says so, ``note`` says why.

    Raises:
        OutOfMemory: the system gave no such memory; names its reason.
    """

    def __init__(self, nbytes: int, way: str = "locked", *, name: str = "pages", owner: str = "memory") -> None:
        super().__init__(nbytes, name, owner, _return_pages, ffi.new("kit_pages *"))
        error = lib.kit_pages_take(self._raw, WAYS[way], nbytes)
        if error:
            self.close()
            raise OutOfMemory(f"{name}: no {bytes_text(nbytes)} as {way}: {error_text(error)}", nbytes=nbytes)
        self.note = fallback_note(self._raw.lock_error, self._raw.advice_error, nbytes)
        self.got = "ordinary pages" if self.note else "locked pages" if way == "locked" else way
        self._base = self._raw.base
        self._enter("mapping", self._base)


class HostPages(_Region):
    """``nbytes`` of a device's host buffer type: memory the device's driver pins, where it can; a buffer in the ledger.

    ggml falls back silently; ``got`` is the name of what came, ``note`` says where that is not what was asked for.

    Raises:
        OutOfMemory: nothing came.
    """

    def __init__(self, buffer_type: Any, nbytes: int, name: str, owner: str) -> None:
        super().__init__(nbytes, name, owner, _free_buffer, ffi.new("ggml_backend_buffer_t *"))
        asked = text(lib.ggml_backend_buft_name(buffer_type))
        self._raw[0] = lib.ggml_backend_buft_alloc_buffer(buffer_type, nbytes)
        if self._raw[0] == ffi.NULL:
            self.close()
            raise OutOfMemory(f"{name}: {asked} could not give {bytes_text(nbytes)}", nbytes=nbytes, device=asked)
        self.got = text(lib.ggml_backend_buffer_name(self._raw[0]))
        self.note = name_note(asked, self.got)
        self._base = lib.ggml_backend_buffer_get_base(self._raw[0])
        self._enter("buffer", self._raw[0])


def lock_limit() -> int | None:
    """Bytes this process may lock (RLIMIT_MEMLOCK); None for no limit. A privileged process is exempt from it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def fallback_note(lock_error: int, advice_error: int, nbytes: int) -> str:
    """Say why pages are ordinary ones although locked or huge ones were asked for; empty where they are not."""
    if lock_error:
        limit = lock_limit()
        allowed = "no limit" if limit is None else bytes_text(limit)
        return (
            f"not locked: mlock of {bytes_text(nbytes)} said {error_text(lock_error)} "
            f"(RLIMIT_MEMLOCK is {allowed}; ulimit -l shows it); these are ordinary pages"
        )
    if advice_error:
        return f"no huge pages: madvise said {error_text(advice_error)}; these are ordinary pages"
    return ""


def error_text(number: int) -> str:
    """Return an errno with its name: ``ENOMEM, Cannot allocate memory``."""
    return f"{errno.errorcode.get(number, number)}, {os.strerror(number)}"


def name_note(asked: str, got: str) -> str:
    """Say that a buffer is not of the type asked for; empty where it is. ggml's own fallback is silent."""
    return "" if asked == got else f"asked for {asked}, got {got}: ordinary memory, silently"


def _return_pages(raw: Any, number: list[int]) -> None:
    _strike_out(number)  # first: the address may serve somebody else at once
    lib.kit_pages_return(raw)


def _free_buffer(raw: Any, number: list[int]) -> None:
    _strike_out(number)
    lib.ggml_backend_buffer_free(raw[0])  # takes NULL


def _strike_out(number: list[int]) -> None:
    if number[0]:
        ledger.closed(number[0])
