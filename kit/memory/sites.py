"""Call sites of what was not freed: who made it, how often they were visited, and what was live after each visit.

A site is a way through the program (the lines outside kit, from the innermost outwards, recursion folded), the kind of
memory and what it is for. A visit is one go at its line, which may make several things: what happens on one
thread without another line in between is one go, or several that each bring the same kinds of things again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kit.core.scope import is_kept
from kit.memory import stacks, store
from kit.memory.events import BY_DESIGN, Recording, joined, library_name
from kit.memory.stacks import Frame
from kit.memory.store import Records

Numbers = npt.NDArray[np.int64]

_MANY = 128  # one call makes fewer things that are alike


@dataclass(frozen=True)
class Site:
    """One call site: its allocations that are live at the end (indices), and what was live after each visit.

    ``counts`` and ``nbytes`` are of things made here and live when the next visit begins, the last of them at the end
    of the recording. ``kept`` is whether what is made here is kept by design.
    """

    path: tuple[Frame, ...]
    live: Numbers
    kept: bool
    counts: Numbers
    nbytes: Numbers


def find_sites(recording: Recording) -> list[Site]:
    """Return the sites of ``recording`` of which anything is live at the end."""
    records = recording.records
    live = np.zeros(len(records), bool)
    live[recording.live_at(len(records) - 1)] = True
    if not live.any():
        return []
    paths, known = _paths(records)
    rough = joined(paths, records["kind"], records["type"], records["copy"])
    made = records["action"] == store.ALLOC
    at = np.flatnonzero(made & _among(rough, rough[live]))
    kept = _kept(records[at])
    site = joined(rough[at], kept, recording.purpose_numbers(at))
    of_interest = _among(site, site[live[at]])
    at, site, kept = at[of_interest], joined(site[of_interest]), kept[of_interest]
    site_of = np.zeros(len(records), np.int64)
    site_of[at] = site + 1
    visit = _visits(records, paths, site_of, live)[at]
    first = np.zeros(len(at), bool)
    first[np.unique(joined(site, visit), return_index=True)[1]] = True
    found = []
    for members, counts, nbytes in _series(recording, at, site, first):
        here = at[members]
        path = known[int(paths[here[0]])]
        found.append(Site(path, here[live[here]], bool(kept[members[0]]), counts, nbytes))
    return found


def _among(numbers: Numbers, wanted: Numbers) -> npt.NDArray[np.bool_]:
    """As numpy's isin, for small numbers."""
    is_wanted = np.zeros(int(numbers.max()) + 1, bool)
    is_wanted[wanted] = True
    return is_wanted[numbers]


def _paths(records: Records) -> tuple[Numbers, list[tuple[Frame, ...]]]:
    """Number of the way through the program of each event, and the ways by their number."""
    nodes, inverse = np.unique(records["stack"], return_inverse=True)
    numbers: dict[tuple[Frame, ...], int] = {}
    of_node = [numbers.setdefault(_path(int(node)), len(numbers)) for node in nodes]
    return np.array(of_node, np.int64)[inverse.ravel()], list(numbers)


@functools.lru_cache(maxsize=1 << 16)
def _path(stack: int) -> tuple[Frame, ...]:
    return tuple(dict.fromkeys(stacks.user_frames(stack)))


def _kept(records: Records) -> Numbers:
    """Whether each is made in a scope for keeping, or once for the process."""
    scopes, inverse = np.unique(records["scope"], return_inverse=True)
    by_scope = np.array([is_kept(int(number)) for number in scopes], bool)[inverse.ravel()]
    kept: Numbers = (by_scope | (records["usage"] == BY_DESIGN)).astype(np.int64)
    return kept


def _visits(records: Records, paths: Numbers, sites: Numbers, live: npt.NDArray[np.bool_]) -> Numbers:
    """Number of the visit in which each event allocated something: those of one site and visit have the same.

    A run is what a thread does without another line in between: one visit, or several that bring the same again.
    """
    at = np.flatnonzero(records["action"] == store.ALLOC)
    made, run, site = records[at], _runs(records["thread"], paths)[at], sites[at]
    alike = joined(run, site, _calls(made["stack"]), made["kind"], made["type"], made["copy"], made["usage"])
    order = np.argsort(alike, kind="stable")
    counts = np.bincount(alike)
    starts = np.cumsum(counts) - counts
    rank = np.empty(len(at), np.int64)
    rank[order] = np.arange(len(at)) - np.repeat(starts, counts)
    stays = np.bincount(alike, weights=live[at]) > 0
    one = order[starts]
    n_visits = np.where(
        _kits(made["copy"][one]), _most(joined(run, site)[one], counts, stays), _common(run[one], counts)
    )
    n_visits = np.where(counts >= _MANY * n_visits, counts, n_visits)
    visits = np.zeros(len(records), np.int64)
    visits[at] = joined(run, rank * n_visits[alike] // counts[alike])
    return visits


def _calls(nodes: npt.NDArray[np.generic]) -> Numbers:
    """Number of the call that each stack ends in.

    A call may have several nodes: the interpreter rewrites its code for speed as it runs, and goes by another
    instruction of the same line from then on. Those that are in use at the same time are different calls.
    """
    known, first, inverse = np.unique(nodes, return_index=True, return_inverse=True)
    last = len(nodes) - 1 - np.unique(nodes[::-1], return_index=True)[1]
    ends: dict[tuple[Frame, ...], dict[int, int]] = {}  # by line: calls, and where each was last seen
    call_of = np.empty(len(known), np.int64)
    for i in np.argsort(first):
        calls = ends.setdefault(stacks.frames(int(known[i])), {})
        call_of[i] = next((call for call, end in calls.items() if end < first[i]), int(i))
        calls[int(call_of[i])] = int(last[i])
    calls_of_events: Numbers = call_of[inverse.ravel()]
    return calls_of_events


def _kits(copies: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    return np.isin(copies, [number for number in np.unique(copies) if library_name(int(number)) == "kit"])


def _most(groups: Numbers, counts: Numbers, stays: npt.NDArray[np.bool_]) -> Numbers:
    """Number of visits by ``groups``: kit's calls have a place each, so what stays came once a visit from its place."""
    order, firsts, back = _by(groups)
    counts, stays = counts[order], stays[order]
    staying = np.maximum.reduceat(np.where(stays, counts, 0), firsts)
    return np.where(staying > 0, staying, np.maximum.reduceat(counts, firsts))[back]


def _common(groups: Numbers, counts: Numbers) -> Numbers:
    """Number of visits by ``groups``: one call into another library may make several things that nothing tells apart.

    Each kind comes as often as there are visits, or a multiple of that: it is their greatest common divisor.
    """
    order, firsts, back = _by(groups)
    return np.gcd.reduceat(counts[order], firsts)[back]


def _by(groups: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Order that brings members of a group together, where each group begins in it, and the group of each member."""
    order = np.argsort(groups, kind="stable")
    firsts = np.unique(groups[order], return_index=True)[1]
    return order, firsts, np.unique(groups, return_inverse=True)[1].ravel()


def _runs(threads: npt.NDArray[np.generic], paths: Numbers) -> Numbers:
    order = np.argsort(threads, kind="stable")
    changes = (np.diff(threads[order].astype(np.int64)) != 0) | (np.diff(paths[order]) != 0)
    runs = np.empty(len(paths), np.int64)
    runs[order] = np.concatenate(([0], np.cumsum(changes)))
    return runs


def _series(
    recording: Recording, at: Numbers, site: Numbers, first: npt.NDArray[np.bool_]
) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """Yield, site by site: its members (places in ``at``), things live after each visit, and their bytes."""
    made = recording.records[at]
    size = made["size"].astype(np.int64)
    freed = np.flatnonzero(made["partner"] > 0)
    freed_at = made["partner"][freed].astype(np.int64) - recording.first - 1
    within = freed_at < len(recording)
    freed, freed_at = freed[within], freed_at[within]
    sites = np.concatenate((site, site[freed]))
    order = np.lexsort((np.concatenate((at, freed_at)), sites))
    steps = np.concatenate((np.ones(len(at), np.int64), np.full(len(freed), -1, np.int64)))[order]
    count = np.cumsum(steps)
    nbytes = np.cumsum(np.concatenate((size, -size[freed]))[order])
    begins = np.concatenate((first, np.zeros(len(freed), bool)))[order]
    edges = np.flatnonzero(np.diff(sites[order], prepend=-1, append=-1))
    visits = np.flatnonzero(begins)
    bounds = np.searchsorted(visits, edges)
    members = np.split(np.argsort(site, kind="stable"), np.cumsum(np.bincount(site))[:-1])
    for i, mine in enumerate(members):
        start, stop = int(edges[i]), int(edges[i + 1])
        ends = np.append(visits[bounds[i] + 1 : bounds[i + 1]], stop) - 1
        before = (int(count[start - 1]), int(nbytes[start - 1])) if start else (0, 0)
        yield mine, count[ends] - before[0], nbytes[ends] - before[1]
