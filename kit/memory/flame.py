"""The flame graph of what was live at peak: Python lines, the ggml call, the buffer type; widths are bytes."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.memory import stacks, store
from kit.memory.events import joined
from kit.tables import printable
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.memory.report import MemoryReport

_CALLS = {
    "context": "ggml_init",
    "buffer": "ggml_backend_buft_alloc_buffer",
    "allocator": "ggml_gallocr_new_n",
    "scheduler": "ggml_backend_sched_new",
    "mapping": "mmap",
    "aligned": "ggml_aligned_malloc",
}
_COLORS = ("#e8a87c", "#e27d60", "#c38d9e", "#85cdca", "#9ab87a", "#d9b44a")
_MIN_SHARE = 0.002
_MAX_DEPTH = 40


@dataclass
class Node:
    """One box: its name, its bytes, and the boxes on top of it."""

    name: str
    nbytes: int = 0
    children: dict[str, Node] = field(default_factory=dict)

    def child(self, name: str) -> Node:
        """The box ``name`` on top of this one, made if it is not there."""
        return self.children.setdefault(name, Node(name))


def flame_tree(report: MemoryReport) -> Node:
    """Return the boxes of ``report``."""
    root = Node("all")
    indices = report.recording.live_at(report.peak_index)
    records = report.recording.records[indices]
    if not len(records):
        return root
    inverse = joined(records["stack"], records["kind"], records["type"])
    sites = records[np.unique(inverse, return_index=True)[1]]
    sums = np.bincount(inverse, weights=records["size"].astype(np.float64))
    for site, nbytes in zip(sites, sums, strict=True):
        _add(root, int(site["stack"]), store.KINDS[int(site["kind"])], store.name_text(site["type"]), int(nbytes))
    return root


def _add(root: Node, stack: int, kind: str, buffer_type: str, nbytes: int) -> None:
    lines = [str(frame) for frame in reversed(stacks.user_frames(stack))] or ["an unknown place"]
    node = root
    node.nbytes += nbytes
    for name in (*lines, _CALLS.get(kind, kind), buffer_type or "host"):
        node = node.child(name)
        node.nbytes += nbytes


def flame_html(root: Node) -> str:
    """Return the flame graph as nested boxes, without script; a box's title gives its bytes."""
    if not root.nbytes:
        return "<p>nothing was allocated</p>"
    return f'<div style="font:11px/1.5 monospace;overflow:hidden">{_box(root, root.nbytes, 100.0, 0)}</div>'


def _box(node: Node, total: int, width: float, depth: int) -> str:
    label = html.escape(printable(node.name), quote=True)
    title = f"{label}: {bytes_text(node.nbytes)}, {node.nbytes / total:.1%}"
    shown = [c for c in node.children.values() if c.nbytes >= _MIN_SHARE * total] if depth < _MAX_DEPTH else []
    inner = "".join(_box(c, total, 100.0 * c.nbytes / node.nbytes, depth + 1) for c in shown)
    color = _COLORS[depth % len(_COLORS)]
    return (
        f'<div style="float:left;width:{width:.3f}%;min-width:0">'
        f'<div title="{title}" style="background:{color};color:#222;'
        f'white-space:nowrap;overflow:hidden;border:1px solid #fff8">{label}</div>{inner}</div>'
    )


def speedscope(root: Node) -> dict[str, Any]:
    """Return a document for speedscope (file format "speedscope", sampled profile, unit bytes)."""
    names: dict[str, int] = {}
    samples: list[list[int]] = []
    weights: list[int] = []

    def visit(node: Node, path: list[int]) -> None:
        here = [*path, names.setdefault(node.name, len(names))]
        own = node.nbytes - sum(child.nbytes for child in node.children.values())
        if own > 0:
            samples.append(here)
            weights.append(own)
        for child in node.children.values():
            visit(child, here)

    for child in root.children.values():
        visit(child, [])
    profile = {
        "type": "sampled",
        "name": "ggml memory at peak",
        "unit": "bytes",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    schema = "https://www.speedscope.app/file-format-schema.json"
    return {"$schema": schema, "shared": {"frames": [{"name": name} for name in names]}, "profiles": [profile]}
