"""A lab: what the inputs of each token cost, kept or let go, in a device's host buffer or in ordinary memory.

A decode step has a few inputs from outside: token, position, cells, mask. Whoever allocates them per token pays
the allocation each time; whoever forgets to free them grows by as much. In a host buffer that is memory
no swap relieves and every allocation of which goes to the driver: the reason why inputs belong into ordinary memory,
and pinned memory into a pool that is taken once.
"""

from __future__ import annotations

import contextlib
import html
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kit.checks import is_whole
from kit.core.backend import Backend
from kit.core.buffer import Buffer
from kit.core.context import Context
from kit.core.interrupts import Uninterrupted, uninterrupted
from kit.core.native import ffi, lib, text
from kit.errors import ArgumentError, ClosedError, OutOfMemory
from kit.memory.cost_ways import host_type
from kit.memory.pages import Pages, name_note
from kit.memory.shown import Shown
from kit.tables import html_table, png_tag, text_table
from kit.units import bytes_text, time_text

_OWNER = "input lab"
_SAMPLES = 16


class HasInputs(Protocol):
    """What the lab asks of a session: the width of its mask, and (by its model's backend) where it runs."""

    n_ctx: int
    model: Any


@dataclass(frozen=True)
class InputLeg:
    """Inputs of ``n_tokens`` tokens in one kind of memory, leaked or freed after each.

    ``token_ns`` is the median time of a token's inputs (allocate, fill, let go), with its spread. ``growth_nbytes`` is
    what the process's anonymous memory grew by meanwhile, ``locked_nbytes`` the locked part of it,
    ``growth_per_token`` the slope of the line through samples of it and ``r_squared`` how well that fits.
    """

    leak: bool
    memory: str
    got: str
    n_tokens: int
    nbytes_per_token: int
    token_ns: int
    token_p10_ns: int
    token_p90_ns: int
    growth_nbytes: int
    growth_per_token: float
    r_squared: float
    locked_nbytes: int
    note: str

    @property
    def label(self) -> str:
        """``leak, host buffer``."""
        return f"{'leak' if self.leak else 'free'}, {self.memory}"

    @property
    def shown(self) -> str:
        """`label`; where something stands in for the memory asked for, that in its place."""
        return f"{'leak' if self.leak else 'free'}, {self.got}\n(for a {self.memory})" if self.note else self.label


class InputLab(Shown, tuple[InputLeg, ...]):
    """The four legs: {free, leak} x {ordinary memory, host buffer}."""

    __slots__ = ()
    _TITLE = "Inputs of a token"
    _HEAD = ("inputs of a token", "in", "bytes", "time (p10-p90)", "growth", "per token", "R2", "locked")

    def leg(self, *, leak: bool, memory: str) -> InputLeg:
        """Return one leg; ``memory`` is "host buffer" or "ordinary memory"."""
        for leg in self:
            if leg.leak == leak and leg.memory == memory:
                return leg
        raise ArgumentError(f"no leg in {memory!r}; there are: {', '.join(leg.label for leg in self)}")

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows."""
        rows = [
            [
                leg.label,
                leg.got,
                bytes_text(leg.nbytes_per_token),
                f"{time_text(leg.token_ns)} ({time_text(leg.token_p10_ns)}-{time_text(leg.token_p90_ns)})",
                bytes_text(leg.growth_nbytes),
                bytes_text(round(leg.growth_per_token)),
                f"{leg.r_squared:.2f}",
                bytes_text(leg.locked_nbytes),
            ]
            for leg in self
        ]
        return list(self._HEAD), rows

    @property
    def notes(self) -> tuple[str, ...]:
        """What stood in for what, and what fell back; each once."""
        return tuple(dict.fromkeys(leg.note for leg in self if leg.note))

    @property
    def conclusion(self) -> str:
        """What the figures say, in two sentences."""
        plain, host = (self.leg(leak=False, memory=m) for m in ("ordinary memory", "host buffer"))
        leak = self.leg(leak=True, memory="host buffer")
        ratio = host.token_ns / max(plain.token_ns, 1)
        verdict = "costs more" if ratio > 1.1 else "gains nothing" if ratio > 0.9 else "is cheaper to take"
        return (
            f"Freed, a token's inputs take {time_text(plain.token_ns)} in ordinary memory and "
            f"{time_text(host.token_ns)} ({ratio:.1f}x) in {host.got}: a host buffer for each token {verdict} here. "
            f"Leaked, they grow by {bytes_text(round(leak.growth_per_token))} a token, "
            f"{bytes_text(round(leak.locked_nbytes / leak.n_tokens))} of it locked. Where copies from pinned memory "
            "are faster (kit.memory.pinned_pays measures it), take a pool once instead."
        )

    def text(self) -> str:
        """The table, what it says, and what fell back."""
        return "\n".join([text_table(*self.table()), "", self.conclusion, *(f"* {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """Plain data: ``legs``, ``conclusion``, ``notes``."""
        return {"legs": [asdict(leg) for leg in self], "conclusion": self.conclusion, "notes": list(self.notes)}

    def _drawn(self, form: str) -> bytes:
        from kit.memory.cost_chart import draw_lab  # matplotlib takes half a second to import

        return draw_lab(self, form)

    def _repr_html_(self) -> str:
        notes = [f"<p>* {html.escape(note)}</p>" for note in self.notes]
        image = png_tag(self.png(), "time of a token's inputs and growth, four bars each")
        return "\n".join([image, html_table(*self.table()), f"<p>{html.escape(self.conclusion)}</p>", *notes])


def input_lab(session: HasInputs, n_tokens: int = 500) -> InputLab:
    """Allocate, fill and let go (or leak) the inputs of ``n_tokens`` decode steps, four ways; free all at the end.

    The session lends its backend and the width of its mask; it is neither run nor changed. Where its first device has
    no host buffer type, freshly locked pages stand in for it, and the record says so.

    Raises:
        ArgumentError: fewer than 2 tokens. ClosedError: the session, or its backend, was closed.
        OutOfMemory: a leaking leg found no more memory; everything is freed.
        KeyboardInterrupt: interrupted; everything is freed.
    """
    if not is_whole(n_tokens, 2):
        raise ArgumentError(f"n_tokens is {n_tokens!r}; growth needs a whole number from 2")
    if not hasattr(session, "n_ctx") or not hasattr(session, "model"):
        raise ArgumentError(f"the lab takes a session, not {type(session).__name__}; give model.session()")
    if getattr(session, "closed", False):
        raise ClosedError("the session was closed; open another with model.session()")
    backend: Backend = session.model.backend
    host = host_type(backend.devices[0])
    ways: dict[str, Callable[[int], _Memory]] = {
        "ordinary memory": lambda nbytes: _of_type(backend.buffer_type(), nbytes),
        "host buffer": _locked if host is None else lambda nbytes: _of_type(host, nbytes),
    }
    missing = "" if host is not None else f"{backend.devices[0]} has no host buffer type: freshly locked pages stand in"
    said = {"ordinary memory": "", "host buffer": missing}
    with uninterrupted as interrupts:
        return InputLab(
            _leg(_Setting(backend, session.n_ctx, n_tokens, interrupts), memory, way, leak, said[memory])
            for leak in (False, True)
            for memory, way in ways.items()
        )


class _Memory:
    """Memory of one token's inputs: the buffer, what it is, and all that has to be closed, in that order."""

    def __init__(self, buffer: Buffer, got: str, note: str, parts: tuple[Any, ...]) -> None:
        self.buffer = buffer
        self.got = got
        self.note = note
        self._parts = parts

    def close(self) -> None:
        """Free the buffer, then what lies under it."""
        for part in self._parts:
            part.close()


@dataclass(frozen=True)
class _Setting:
    """What all legs share."""

    backend: Backend
    n_kv: int
    n_tokens: int
    interrupts: Uninterrupted


def _leg(setting: _Setting, memory: str, way: Callable[[int], _Memory], leak: bool, missing: str) -> InputLeg:
    backend, n_kv, n_tokens = setting.backend, setting.n_kv, setting.n_tokens
    values = np.zeros(_input_nbytes(n_kv), np.uint8)
    times = np.zeros(n_tokens, np.int64)
    samples: list[tuple[int, int]] = []
    every = max(1, n_tokens // _SAMPLES)
    with contextlib.ExitStack() as kept:
        for _ in range(3):  # the first passes fill the allocators' own caches
            _token(backend, way, values, n_kv)[0].close()
        lib.kit_pages_trim_heap()
        before = _status()
        for i in range(n_tokens):
            setting.interrupts.check()
            taken, times[i] = _token(backend, way, values, n_kv)
            if leak:
                kept.callback(taken.close)
            else:
                start = time.perf_counter_ns()
                taken.close()
                times[i] += time.perf_counter_ns() - start
            if (i + 1) % every == 0:
                samples.append((i + 1, _status()["RssAnon"]))
        after = _status()
    slope, r_squared = _line(samples)
    median, low, high = (int(value) for value in np.percentile(times, (50, 10, 90)))
    return InputLeg(
        leak=leak,
        memory=memory,
        got=taken.got,
        n_tokens=n_tokens,
        nbytes_per_token=values.nbytes,
        token_ns=median,
        token_p10_ns=low,
        token_p90_ns=high,
        growth_nbytes=after["RssAnon"] - before["RssAnon"],
        growth_per_token=slope,
        r_squared=r_squared,
        locked_nbytes=after["VmLck"] - before["VmLck"],
        note="; ".join(filter(None, (missing, taken.note))),
    )


def _token(
    backend: Backend, way: Callable[[int], _Memory], values: npt.NDArray[np.uint8], n_kv: int
) -> tuple[_Memory, int]:
    """Take memory for one token's inputs, place them, fill it, end their metadata; return the memory, which is all
    that is left, and the time taking and filling it took: metadata costs the same everywhere and is not counted."""
    start = time.perf_counter_ns()
    taken = way(values.nbytes)
    spent = time.perf_counter_ns() - start
    try:
        with Context(backend, name=_OWNER, slots=8) as context:
            offset = 0
            for name, shape, dtype in _inputs(n_kv):
                tensor = context.input(shape, dtype, name)
                context.place(tensor, taken.buffer, offset)
                offset += _padded(tensor.nbytes)
            start = time.perf_counter_ns()
            ffi.memmove(ffi.cast("char *", taken.buffer.base), values, values.nbytes)
            spent += time.perf_counter_ns() - start
    except BaseException:
        taken.close()
        raise
    return taken, spent


def _inputs(n_kv: int) -> list[tuple[str, tuple[int, ...], str]]:
    """Inputs of a decode step: names, shapes, types."""
    return [("tokens", (1,), "i32"), ("positions", (1,), "i32"), ("cells", (1,), "i64"), ("mask", (1, n_kv), "f32")]


def _input_nbytes(n_kv: int) -> int:
    return sum(map(_padded, (4, 4, 8, 4 * n_kv)))


def _padded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def _of_type(buffer_type: Any, nbytes: int) -> _Memory:
    """Memory of a ggml buffer type, straight from ggml: a look at the system's free memory would drown the figures."""
    asked = text(lib.ggml_backend_buft_name(buffer_type))
    handle = lib.ggml_backend_buft_alloc_buffer(buffer_type, nbytes)
    if handle == ffi.NULL:
        raise OutOfMemory(f"{asked} has no {bytes_text(nbytes)} for inputs", nbytes=nbytes, device=asked)
    buffer = Buffer(handle, purpose="inputs", owner=_OWNER, name="inputs of a token")
    return _Memory(buffer, buffer.buffer_type, name_note(asked, buffer.buffer_type), (buffer,))


def _locked(nbytes: int) -> _Memory:
    pages = Pages(nbytes, name="pages of a token's inputs", owner=_OWNER)
    handle = lib.ggml_backend_cpu_buffer_from_ptr(pages.base, nbytes)
    buffer = Buffer(handle, purpose="inputs", owner=_OWNER, name="inputs of a token")
    pages.held(0)  # the buffer shows them
    return _Memory(buffer, pages.got, pages.note, (buffer, pages))


def _status() -> dict[str, int]:
    """Bytes that the system counts for this process: RssAnon, VmLck; zero where it does not say."""
    found = {"RssAnon": 0, "VmLck": 0}
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for name, amount in re.findall(r"^(RssAnon|VmLck):\s+(\d+) kB", file.read(), re.M):
            found[name] = int(amount) * 1024
    return found


def _line(samples: Iterable[tuple[int, int]]) -> tuple[float, float]:
    """Return slope and R squared of the line through ``samples``; both are 0 for a level one."""
    tokens, nbytes = np.array(list(samples), np.float64).T
    if len(tokens) < 2 or np.ptp(nbytes) == 0:
        return 0.0, 0.0
    slope = float(np.polyfit(tokens, nbytes, 1)[0])
    return slope, float(np.corrcoef(tokens, nbytes)[0, 1] ** 2)
