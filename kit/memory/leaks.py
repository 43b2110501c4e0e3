"""Leaks: what was not freed, grouped by the line that made it, and whether it grows.

A *pass* of a call site is one visit of it. The bytes that stay after each visit, fitted by a line, give slope and
R²: 2,000 visits that leave 16 KiB each grow; 2,000 visits of which only the first few left something are a cache, or
a one-time static if it was one thing. A site that was visited once is static if that was in an early pass of many
(scopes ``token 7``, or regions that people number: ``pass 3``); otherwise nothing tells it from a leak. What an
open session or backend keeps for later, within bounds of its own, is there by design.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kit.core.scope import is_kept
from kit.memory import stacks, store
from kit.memory.events import BY_DESIGN, Recording, library_name
from kit.memory.store import Records
from kit.units import bytes_text

FEW = 4  # fewer visits of a call site say nothing about growth
_FITS = 0.9
_N_NAMES = 3


@dataclass(frozen=True)
class Leak:
    """Allocations of one call site that were not freed.

    ``slope_per_pass`` is bytes a visit of the call site leaves behind, None where there were fewer than 4 visits;
    ``verdict`` is growth, cache, static, live, or "by design". ``held_by`` names Python objects that keep it alive.
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

    @property
    def is_leak(self) -> bool:
        """Whether somebody should look: it grows, or it is there and nothing says that it should be."""
        return self.verdict in ("growth", "live")

    def __str__(self) -> str:
        plural = self.kind if self.count == 1 else f"{self.kind}s"
        names = f" of {', '.join(map(repr, self.names))}" if self.names else ""
        rate = (
            f", {bytes_text(round(self.slope_per_pass))} a pass (R² {self.r_squared:.2f})"
            if self.slope_per_pass
            else ""
        )
        held = f"; held by {', '.join(self.held_by)}" if self.held_by else ""
        return (
            f"{self.count} {plural}{names}, {bytes_text(self.nbytes)}, {self.purpose} of {self.owner} "
            f"[{self.library}]: {self.verdict}{rate}, made at {self.where or 'a place outside Python'}{held}"
        )


@dataclass
class _Group:
    leaked: list[npt.NDArray[np.int64]]
    keys: list[tuple[int, int, int, int, int]]
    stack: int
    kept: bool


def find_leaks(
    recording: Recording, *, by_design: Sequence[str] = (), kv_bytes_per_token: int | None = None
) -> list[Leak]:
    """Return the leaks of ``recording``, growth first, then by bytes."""
    live = recording.live_at(len(recording) - 1)
    if not len(live):
        return []
    found = [_leak(recording, group, by_design, kv_bytes_per_token) for group in _grouped(recording, live).values()]
    return sorted(found, key=lambda leak: (leak.verdict != "growth", -leak.nbytes, -leak.count))


def _columns(recording: Recording) -> npt.NDArray[np.int64]:
    """What makes a call site, as numbers: stack, kind, buffer type, library, and whether it is for keeping."""
    r = recording.records
    columns = [r[name].astype(np.int64) for name in ("stack", "kind", "type", "copy")]
    return np.stack([*columns, _kept(r)], axis=1)


def _kept(records: Records) -> npt.NDArray[np.int64]:
    scopes, inverse = np.unique(records["scope"], return_inverse=True)
    return np.array([is_kept(int(number)) for number in scopes], np.int64)[inverse.ravel()]


def _grouped(recording: Recording, live: npt.NDArray[np.int64]) -> dict[tuple[object, ...], _Group]:
    columns = _columns(recording)[live]
    sites, inverse = np.unique(columns, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    parts = np.split(live[order], np.cumsum(np.bincount(inverse.ravel()))[:-1])
    groups: dict[tuple[object, ...], _Group] = {}
    for site, indices in zip(sites, parts, strict=True):
        stack, kind, type_, copy, kept = map(int, site)
        record = recording.records[indices[0]]
        frames = stacks.user_frames(stack)
        key = (str(frames[0]) if frames else "", kind, type_, copy, kept, recording.purpose(record))
        group = groups.setdefault(key, _Group([], [], stack, bool(kept)))
        group.leaked.append(indices)
        group.keys.append((stack, kind, type_, copy, kept))
    return groups


def _leak(recording: Recording, group: _Group, by_design: Sequence[str], kv_bytes_per_token: int | None) -> Leak:
    indices = np.sort(np.concatenate(group.leaked))
    records = recording.records[indices]
    first = records[0]
    slope, fit, passes, late = _growth(recording, group.keys, indices)
    names = tuple(dict.fromkeys(name for name in map(recording.name, records[:64]) if name))[:_N_NAMES]
    owner = recording.owner(first)
    verdict = _verdict(slope, fit, passes, late, len(indices), kv_bytes_per_token)
    n_scopes = _passes_after_the_only_one(recording, records)
    if slope is None and n_scopes >= FEW:
        verdict, passes = "static", n_scopes
    meant = any(fnmatch.fnmatch(text, pattern) for pattern in by_design for text in (owner, *names))
    if meant or int(first["usage"]) == BY_DESIGN or group.kept:
        verdict = "by design"
    frames = stacks.user_frames(group.stack)
    end_ns = int(recording.records["time_ns"][-1])
    return Leak(
        count=len(indices),
        nbytes=int(records["size"].sum()),
        where=str(frames[0]) if frames else "",
        lines=tuple(frame.line for frame in frames),
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
        scope=recording.event(int(indices[0])).scope,
        age_ns=end_ns - int(first["time_ns"]),
        n_passes=passes,
    )


def _passes_after_the_only_one(recording: Recording, leaked: Records) -> int:
    """Number of passes, if all of ``leaked`` are of one pass in the first half of them; otherwise 0."""
    found = {recording.passes.get(int(scope)) for scope in leaked["scope"]}
    if len(found) != 1:
        return 0
    index, n_passes = found.pop() or (0, 0)
    return n_passes if 2 * index < n_passes else 0


def _growth(
    recording: Recording, keys: Sequence[tuple[int, int, int, int, int]], leaked: npt.NDArray[np.int64]
) -> tuple[float | None, float | None, int, bool]:
    """Fit the bytes left by each visit; return slope, R², visits, and whether the last half of them left any."""
    r = recording.records
    visits = r["action"] == store.ALLOC
    same = np.zeros(len(r), bool)
    kept = _kept(r)
    for stack, kind, type_, copy, keeps in keys:
        site = (r["stack"] == stack) & (r["kind"] == kind) & (r["type"] == type_) & (r["copy"] == copy)
        same |= site & (kept == keeps)
    at = np.flatnonzero(visits & same)
    left = np.zeros(len(r), np.int64)
    left[leaked] = np.maximum(r["size"][leaked], 1)
    bytes_left = np.cumsum(left[at]).astype(np.float64)
    if len(at) < FEW:
        return None, None, len(at), False
    x = np.arange(1, len(at) + 1, dtype=np.float64)
    slope, offset = np.polyfit(x, bytes_left, 1)
    spread = float(((bytes_left - bytes_left.mean()) ** 2).sum())
    error = float(((bytes_left - (slope * x + offset)) ** 2).sum())
    fit = 1.0 - error / spread if spread > 0 else 0.0
    late = bool(left[at[len(at) // 2 :]].any())
    nothing = not r["size"][leaked].any()  # a scheduler without a buffer yet: there, and of no bytes
    return 0.0 if nothing else float(slope), fit, len(at), late


def _verdict(
    slope: float | None, fit: float | None, passes: int, late: bool, count: int, kv_bytes_per_token: int | None
) -> str:
    if slope is None or fit is None:
        return "live"
    if slope > 0 and kv_bytes_per_token and abs(slope - kv_bytes_per_token) <= 0.05 * kv_bytes_per_token:
        return "cache"
    if late and count >= FEW and fit >= _FITS:
        return "growth"
    if late:
        return "live"
    return "static" if count == 1 else "cache"
