"""The report of a tracker: peak, what is live, what leaked, when, for what, and what the system says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.memory import store
from kit.memory.events import Events, Recording, device_name, joined, library_name
from kit.memory.holders import with_holders
from kit.memory.leaks import Leak, find_leaks
from kit.memory.once import once
from kit.memory.osmemory import ProcessMemory
from kit.memory.sites import Numbers
from kit.tables import printable
from kit.units import bytes_text, counted, parse_bytes

_TIMELINE_POINTS = 1000
_Key = tuple[str, str, str, str, str, str]


@dataclass(frozen=True)
class Row:
    """Allocations of one owner, purpose, kind, device, buffer type and library that are live at one moment."""

    owner: str
    purpose: str
    kind: str
    device: str
    buffer_type: str
    library: str
    count: int
    nbytes: int


@dataclass(frozen=True)
class Unaccounted:
    """The system's figures beside the tracker's, as differences since the tracker began.

    ``tracked`` is bytes that ggml got and did not give back, ``tracked_files`` those of mapped files, ``tracker`` the
    tracker's own records; ``anon`` is resident anonymous memory that these do not explain (negative: promised
    memory that nobody has touched yet).
    """

    tracked: int
    tracked_files: int
    tracker: int
    rss_anon: int
    rss_file: int
    vm_swap: int
    vm_lck: int
    anon: int


class MemoryReport:
    """What a tracker saw; does not change any more. Everything is worked out when it is asked for."""

    def __init__(
        self,
        recording: Recording,
        *,
        before: ProcessMemory,
        after: ProcessMemory,
        by_design: Sequence[str] = (),
        kv_bytes_per_token: int | None = None,
    ) -> None:
        self.recording = recording
        self.before = before
        self.after = after
        self._meant = by_design
        self._kv_bytes_per_token = kv_bytes_per_token

    @property
    def events(self) -> Events:
        """Every event, in order; objects are made one by one as they are looked at."""
        return Events(self.recording)

    @once
    def _not_freed(self) -> list[tuple[Leak, Numbers]]:
        return find_leaks(self.recording, by_design=self._meant, kv_bytes_per_token=self._kv_bytes_per_token)

    @once
    def leaks(self) -> list[Leak]:
        """What was not freed, by call site, growth first; who holds it is looked up when this is first asked for."""
        return with_holders([pair for pair in self._not_freed if pair[0].verdict != "by design"], self.recording)

    @property
    def by_design(self) -> list[Leak]:
        """What was not freed and is meant to stay."""
        return [leak for leak, _ in self._not_freed if leak.verdict == "by design"]

    @once
    def totals(self) -> npt.NDArray[np.int64]:
        """Bytes live after each event."""
        r = self.recording.records
        size = r["size"].astype(np.int64)
        step = np.where(r["action"] == store.ALLOC, size, np.where(r["action"] == store.FREE, -size, 0))
        outside = (r["action"] == store.FREE) & (r["partner"] <= self.recording.first)
        return np.cumsum(np.where(outside, 0, step))

    @property
    def peak(self) -> int:
        """Most bytes that were live at once."""
        return int(self.totals.max(initial=0))

    @once
    def peak_index(self) -> int:
        """Index of the event after which most was live; -1 if nothing ever was."""
        return int(self.totals.argmax()) if self.peak else -1

    @once
    def at_peak(self) -> list[Row]:
        """What was live when most was, largest first."""
        return self._rows(self.recording.live_at(self.peak_index))

    @once
    def live(self) -> list[Row]:
        """What was live at the end, largest first."""
        return self._rows(self._live)

    @once
    def _live(self) -> npt.NDArray[np.int64]:
        return self.recording.live_at(len(self.recording) - 1)

    @property
    def live_nbytes(self) -> int:
        """Bytes live at the end."""
        return int(self.totals[-1]) if len(self.totals) else 0

    def live_by_purpose(self) -> dict[str, int]:
        """Bytes of data (buffers, mapped files) live at the end by purpose; metadata is left out."""
        totals: dict[str, int] = {}
        for row in self.live:
            if row.purpose != "metadata" and row.nbytes:
                totals[row.purpose] = totals.get(row.purpose, 0) + row.nbytes
        return totals

    def by_device(self) -> dict[tuple[str, str, str], int]:
        """Bytes at peak by device, buffer type and purpose, largest first; buffer type ``host`` is ordinary memory."""
        totals: dict[tuple[str, str, str], int] = {}
        for row in self.at_peak:
            key = (row.device, row.buffer_type or ("file" if row.kind == "mapping" else "host"), row.purpose)
            totals[key] = totals.get(key, 0) + row.nbytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def contexts_by_owner(self) -> dict[str, int]:
        """Number of ggml contexts live at peak, by owner."""
        totals: dict[str, int] = {}
        for row in self.at_peak:
            if row.kind == "context":
                key = row.owner if row.library == "kit" else f"{row.owner} [{row.library}]"
                totals[key] = totals.get(key, 0) + row.count
        return totals

    def reserved_and_used(self) -> list[tuple[str, int, int]]:
        """Per buffer type: bytes given at peak (reserved), and bytes asked for (used)."""
        indices = self.recording.live_at(self.peak_index)
        r = self.recording.records[indices]
        r = r[(r["kind"] == 2) & (r["size"] > 0)]
        return [
            (store.name_text(t), int(r["size"][r["type"] == t].sum()), int(r["asked"][r["type"] == t].sum()))
            for t in np.unique(r["type"])
        ]

    @property
    def timeline(self) -> list[tuple[int, int]]:
        """Time in ns since the start, and bytes live from then on; the last is the end of tracking.

        Of many points only the highest of each stretch is kept.
        """
        totals = self.totals
        if not len(totals):
            return []
        times = self.recording.records["time_ns"] - self.recording.start_ns
        if len(totals) < _TIMELINE_POINTS:
            kept = np.arange(len(totals))
        else:
            edges = np.linspace(0, len(totals), _TIMELINE_POINTS).astype(np.int64)
            kept = np.array([a + int(totals[a:b].argmax()) for a, b in itertools.pairwise(edges)])
        end = (self.recording.end_ns - self.recording.start_ns, int(totals[-1]))
        return [*((int(times[i]), int(totals[i])) for i in kept), end]

    @property
    def unaccounted(self) -> Unaccounted:
        """What the system sees beside what was tracked."""
        grown = self.after.since(self.before)
        r = self.recording.records[self._live]
        files = int(r["size"][store.are_files(r)].sum())
        tracked = self.live_nbytes - files
        own = store.own_nbytes(len(self.recording))
        return Unaccounted(
            tracked,
            files,
            own,
            grown.rss_anon,
            grown.rss_file,
            grown.vm_swap,
            grown.vm_lck,
            grown.rss_anon - tracked - own,
        )

    @property
    def n_frees_of_older(self) -> int:
        """Frees of things allocated before the tracker began."""
        r = self.recording.records
        older = (r["action"] == store.FREE) & (r["partner"] <= self.recording.first)
        return int(((r["action"] == store.FREE_OF_OLDER) | older).sum())

    def assert_no_leaks(self) -> None:
        """Raise AssertionError, naming tensors and lines, if anything grew or is still there without a reason."""
        bad = [leak for leak in self.leaks if leak.is_leak]
        if bad:
            raise AssertionError(
                "\n".join([f"{counted(sum(leak.count for leak in bad), 'ggml allocation')} leaked:", *map(str, bad)])
            )

    def assert_peak(self, limit: int | str) -> None:
        """Raise AssertionError, with what was live then, if more than ``limit`` (bytes, or "64 MB") ever was."""
        most = parse_bytes(limit)
        if self.peak > most:
            rows = "\n".join(
                f"  {bytes_text(row.nbytes)} {row.purpose} of {printable(row.owner)}" for row in self.at_peak[:8]
            )
            raise AssertionError(
                f"{bytes_text(self.peak)} of ggml memory were live at once, the limit is {limit}:\n{rows}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "peak": self.peak,
            "at_peak": [asdict(row) for row in self.at_peak],
            "live": [asdict(row) for row in self.live],
            "live_by_purpose": self.live_by_purpose(),
            "by_device": [
                {"device": device, "buffer_type": type_, "purpose": purpose, "nbytes": nbytes}
                for (device, type_, purpose), nbytes in self.by_device().items()
            ],
            "leaks": [asdict(leak) for leak in self.leaks],
            "by_design": [asdict(leak) for leak in self.by_design],
            "timeline": self.timeline,
            "unaccounted": asdict(self.unaccounted),
            "contexts_by_owner": self.contexts_by_owner(),
            "reserved_and_used": self.reserved_and_used(),
            "n_events": len(self.recording),
            "n_frees_of_older": self.n_frees_of_older,
        }

    def json(self) -> str:
        """The report as JSON."""
        return json.dumps(self.to_dict(), indent=1)

    def text(self) -> str:
        """The report as text."""
        from kit.memory.report_text import report_text

        return report_text(self)

    def html(self) -> str:
        """The report as one self-contained HTML page, without scripts."""
        from kit.memory.report_html import report_html

        return report_html(self)

    def svg(self) -> str:
        """The timeline as SVG."""
        from kit.memory.report_html import timeline_svg

        return timeline_svg(self)

    def png(self) -> bytes:
        """Timeline and bytes by purpose as a PNG picture."""
        from kit.memory.report_png import report_png

        return report_png(self)

    def flame(self) -> str:
        """The flame graph (Python line -> ggml call -> buffer type) of the bytes live at peak, as HTML."""
        from kit.memory.flame import flame_html, flame_tree

        return flame_html(flame_tree(self))

    def speedscope(self) -> dict[str, Any]:
        """The flame graph as a speedscope document."""
        from kit.memory.flame import flame_tree, speedscope

        return speedscope(flame_tree(self))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        """Text, and HTML whose picture of the timeline is a still that survives an untrusted notebook."""
        from kit.memory.report_html import report_html

        return {"text/plain": self.text(), "text/html": report_html(self, page=False)}

    def _rows(self, indices: npt.NDArray[np.int64]) -> list[Row]:
        """Group allocations; what differs only in numbers that mean the same is looked at once."""
        if not len(indices):
            return []
        r = self.recording.records[indices]
        fields = ("label", "kind", "type", "copy", "usage", "owner", "name")
        inverse = joined(*(r[field] for field in fields))
        first = np.unique(inverse, return_index=True)[1]
        counts = np.bincount(inverse)
        sums = np.bincount(inverse, weights=r["size"].astype(np.float64))
        rows: dict[_Key, list[int]] = {}
        for i, count, nbytes in zip(first, counts, sums, strict=True):
            total = rows.setdefault(_row_key(self.recording, r[i]), [0, 0])
            total[0] += int(count)
            total[1] += int(nbytes)
        made = [Row(*key, count, nbytes) for key, (count, nbytes) in rows.items()]
        return sorted(made, key=lambda row: (-row.nbytes, row.owner))


def _row_key(recording: Recording, record: Any) -> _Key:
    return (
        recording.owner(record),
        recording.purpose(record),
        store.KINDS[int(record["kind"])],
        device_name(record),
        store.name_text(record["type"]),
        library_name(int(record["copy"])),
    )
