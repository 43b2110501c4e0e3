"""Leaks: what was not freed, grouped by the call site that made it, and whether it grows.

A *pass* of a call site is one visit of it (kit.memory.sites). What is live after each visit tells what it is: as much
more each time grows; what rose for a while and then no more is bounded, a cache, or a one-time static if it is
one thing - an object that is replaced in each pass, too. A site that was visited less often is static if it
left something in an early pass of many (scopes ``token 7``, or regions that people number: ``pass 3``) and only there;
otherwise nothing tells it from a leak. What an open session or backend keeps for later, within bounds of its own, is
there by design.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kit.memory import store
from kit.memory.events import Recording, library_name
from kit.memory.sites import Numbers, Site, find_sites
from kit.memory.store import Records
from kit.tables import printable
from kit.units import bytes_text, counted

NOWHERE = "an unknown place (outside Python, or stacks were off)"
FEW = 4  # fewer visits of a call site say nothing about growth
_FITS = 0.9
_N_NAMES = 3


@dataclass(frozen=True)
class Leak:
    """Allocations of one call site that were not freed.

    ``where`` is its innermost line outside kit, ``called_from`` the line of the program's own, no library's, that led
    there, and ``lines`` their numbers up to the outermost. ``slope_per_pass`` is bytes a visit of the call site leaves
    behind, None where there were fewer than 4 visits; ``verdict`` is growth, cache, static, live, or "by design".
    ``held_by`` names Python objects that keep it alive.
    """

    count: int
    nbytes: int
    where: str
    lines: tuple[int, ...]
    owner: str
    held_by: tuple[str, ...]
    library: str
    slope_per_pass: float | None
    r_squared: float | None
    verdict: str
    kind: str = ""
    buffer_type: str = ""
    purpose: str = ""
    names: tuple[str, ...] = ()
    scope: str = ""
    age_ns: int = 0
    n_passes: int = 0
    called_from: str = ""

    @property
    def is_leak(self) -> bool:
        """Whether somebody should look: it grows, or it is there and nothing says that it should be."""
        return self.verdict in ("growth", "live")

    def __str__(self) -> str:
        names = f" of {', '.join(map(repr, self.names))}" if self.names else ""
        held = f"; held by {', '.join(self.held_by)}" if self.held_by else ""
        return printable(
            f"{counted(self.count, self.kind)}{names}, {bytes_text(self.nbytes)}, {self.purpose} of {self.owner} "
            f"[{self.library}]: {self.verdict}{self._rate()}, made at {self.place or NOWHERE}{held}"
        )

    @property
    def place(self) -> str:
        """``where``, and where that was called from; empty for an unknown place."""
        return f"{self.where}, called from {self.called_from}" if self.called_from else self.where

    def _rate(self) -> str:
        if self.slope_per_pass is None or self.r_squared is None or round(self.slope_per_pass) <= 0:
            return ""
        return f", {bytes_text(round(self.slope_per_pass))} a pass (R² {self.r_squared:.2f})"


def find_leaks(
    recording: Recording, *, by_design: Sequence[str] = (), kv_bytes_per_token: int | None = None
) -> list[tuple[Leak, Numbers]]:
    """Return the leaks of ``recording``, growth first, then by bytes, each with the indices of its allocations."""
    sites = find_sites(recording)
    found = [(_leak(recording, site, by_design, kv_bytes_per_token), site.live) for site in sites]
    return sorted(found, key=lambda pair: (pair[0].verdict != "growth", -pair[0].nbytes, -pair[0].count))


def _leak(recording: Recording, site: Site, by_design: Sequence[str], kv_bytes_per_token: int | None) -> Leak:
    records = recording.records[site.live]
    first = records[0]
    passes = len(site.counts)
    slope, fit = _growth(site)
    names = tuple(dict.fromkeys(name for name in map(recording.name, records[:64]) if name))[:_N_NAMES]
    owner = recording.owner(first)
    verdict = _verdict(site, slope, fit, kv_bytes_per_token)
    n_scopes = _passes_after_the_only_one(recording, records)
    if slope is None and n_scopes >= FEW:
        verdict, passes = "static", n_scopes
    if site.kept or any(fnmatch.fnmatch(text, pattern) for pattern in by_design for text in (owner, *names)):
        verdict = "by design"
    return Leak(
        count=len(records),
        nbytes=int(records["size"].sum()),
        where=str(site.path[0]) if site.path else "",
        lines=tuple(frame.line for frame in site.path),
        owner=owner,
        held_by=(),
        library=library_name(int(first["copy"])),
        slope_per_pass=slope,
        r_squared=fit,
        verdict=verdict,
        kind=store.KINDS[int(first["kind"])],
        buffer_type=store.name_text(first["type"]),
        purpose=recording.purpose(first),
        names=names,
        scope=recording.event(int(site.live[0])).scope,
        age_ns=recording.end_ns - int(first["time_ns"]),
        n_passes=passes,
        called_from=next((str(frame) for frame in site.path[1:] if not frame.is_librarys), ""),
    )


def _passes_after_the_only_one(recording: Recording, leaked: Records) -> int:
    """Number of passes, if all of ``leaked`` are of one pass in the first half of them; otherwise 0."""
    scopes = leaked["scope"]
    found = recording.passes.get(int(scopes[0]))
    if found is None or any(recording.passes.get(int(scope)) != found for scope in scopes[::-1]):
        return 0
    index, n_passes = found
    return n_passes if 2 * index < n_passes else 0


def _growth(site: Site) -> tuple[float | None, float | None]:
    """Return slope (bytes a visit) and R² of the line through what is live after each visit; None for few visits."""
    if len(site.counts) < FEW:
        return None, None
    if not site.nbytes.any():  # such as schedulers without a buffer yet: there, and of no bytes
        return 0.0, _line(site.counts)[1]
    return _line(site.nbytes)


def _line(values: Numbers) -> tuple[float, float]:
    """Slope and R² of the least squares line through ``values``; both are 0 where they are all the same."""
    y = values.astype(np.float64)
    x = np.arange(len(y), dtype=np.float64)
    dx, dy = x - x.mean(), y - y.mean()
    spread = float(dy @ dy)
    if spread == 0:
        return 0.0, 0.0
    both, steps = float(dx @ dy), float(dx @ dx)
    return both / steps, both * both / (steps * spread)


def _bounded(counts: Numbers) -> bool:
    """Whether no more things are live than in the first half, or rises have stayed out far longer than between them."""
    if counts[-1] <= counts[: len(counts) // 2].max():
        return True
    rises = np.flatnonzero(np.diff(np.maximum.accumulate(counts), prepend=0) > 0)
    longest = int(np.diff(rises, prepend=-1).max())
    return len(counts) - 1 - int(rises[-1]) >= FEW * longest


def _verdict(site: Site, slope: float | None, fit: float | None, kv_bytes_per_token: int | None) -> str:
    if slope is None or fit is None:
        return "live"
    if slope > 0 and kv_bytes_per_token and abs(slope - kv_bytes_per_token) <= 0.05 * kv_bytes_per_token:
        return "cache"
    if _bounded(site.counts):
        return "static" if len(site.live) == 1 else "cache"
    return "growth" if len(site.live) >= FEW and fit >= _FITS else "live"
