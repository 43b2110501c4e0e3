"""A GGUF file as text and as HTML: what comes from the file is untrusted, so it is escaped and shortened."""

from __future__ import annotations

import dataclasses
import html
import re
from collections.abc import Iterable, Sequence

from kit.core.gguf_metadata import Metadata
from kit.core.gguf_parts import Parts
from kit.core.gguf_source import TensorInfo, path_text, type_shares
from kit.units import bytes_text, count_text, ne_text

_TEXT_KEYS, _TEXT_BLOCKS, _TEXT_TYPES = 12, 14, 4
_HTML_ROWS = 1000
_TEXT_WIDTH, _HTML_WIDTH = 64, 400

_CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"
_MONO = "font-family:monospace;font-size:12px;border-collapse:collapse"


@dataclasses.dataclass(frozen=True)
class Fold:
    """Tensors whose names differ only in their numbers, as one line."""

    pattern: str
    count: int
    dtype: str
    ne: str
    nbytes: int
    parts: str


def fold_tensors(infos: Iterable[TensorInfo]) -> list[Fold]:
    """Return the tensors with blk.0, blk.1, ... folded to blk.*, in the order of their first appearance."""
    groups: dict[str, list[TensorInfo]] = {}
    for info in infos:
        groups.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", info.name), []).append(info)
    return [
        Fold(
            pattern,
            len(group),
            "/".join(sorted({info.dtype for info in group})),
            _few([ne_text(info.ne) for info in group]),
            sum(info.nbytes for info in group),
            _part_text({info.part for info in group}),
        )
        for pattern, group in groups.items()
    ]


def _part_text(numbers: set[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"part {low}" if low == high else f"parts {low} to {high}"


def text_of(parts: Parts) -> str:
    """Return at most 39 lines."""
    source, metadata = parts.first, parts.metadata
    lines = [f"GGUFFile {_safe(source.path.name, 80)}{' (closed)' if source.closed else ''}"]
    lines += [f"  {label:<12} {value}" for label, value in _summary(parts)]
    if source.closed:
        return "\n".join(lines)
    keys = [(key, metadata.type_text(key), _value(metadata, key, _TEXT_WIDTH)) for key in _first(metadata, _TEXT_KEYS)]
    lines += _block(f"metadata ({len(metadata)})", [(_safe(k, 44), t, v) for k, t, v in keys], len(metadata))
    folds, split = fold_tensors(parts.tensors.values()), len(parts.sources) > 1
    rows = [
        (
            _safe(f.pattern, 44),
            f.dtype,
            f.ne,
            bytes_text(f.nbytes),
            f"x {f.count}" if f.count > 1 else "",
            *([f"in {f.parts}"] if split else []),
        )
        for f in folds[:_TEXT_BLOCKS]
    ]
    lines += _block(f"tensors ({len(parts.tensors)})", rows, len(folds))
    return "\n".join(lines)


def html_of(whole: Parts) -> str:
    """Return one element with inline styles only; all keys and tensors (up to 1000 each) unfold."""
    source, metadata = whole.first, whole.metadata
    title = f"GGUFFile {_safe(source.path.name, 200)}{' (closed)' if source.closed else ''}"
    parts = [f"<div><strong>{html.escape(title)}</strong>", _table([], _summary(whole))]
    if not source.closed:
        rows = [
            (_safe(key, 200), metadata.type_text(key), _value(metadata, key, _HTML_WIDTH))
            for key in _first(metadata, _HTML_ROWS)
        ]
        parts.append(_details(f"metadata ({len(metadata)})", ["key", "type", "value"], rows, len(metadata)))
        folds = fold_tensors(whole.tensors.values())
        blocks = [
            (_safe(f.pattern, 200), str(f.count), f.dtype, f.ne, bytes_text(f.nbytes)) for f in folds[:_HTML_ROWS]
        ]
        parts.append(_details(f"blocks ({len(folds)})", ["tensors", "count", "type", "ne", "size"], blocks, len(folds)))
        infos = list(whole.tensors.values())
        table = [
            (_safe(i.name, 200), i.dtype, ne_text(i.ne), bytes_text(i.nbytes), str(i.part), str(i.offset))
            for i in infos[:_HTML_ROWS]
        ]
        head = ["tensor", "type", "ne", "size", "part", "at byte"]
        parts.append(_details(f"tensors ({len(infos)})", head, table, len(infos)))
    if len(whole.sources) > 1:
        files = [
            (str(n), _safe(path_text(s.path), 400), str(len(s.header.tensors)), bytes_text(s.header.nbytes))
            for n, s in enumerate(whole.sources[:_HTML_ROWS], 1)
        ]
        head = ["part", "file", "tensors", "size"]
        parts.append(_details(f"parts ({len(whole.sources)})", head, files, len(whole.sources)))
    return "".join([*parts, "</div>"])


def _summary(parts: Parts) -> list[tuple[str, str]]:
    source, metadata = parts.first, parts.metadata
    header = source.header
    infos = parts.tensors.values()
    shares = list(type_shares(infos).items())
    types = ", ".join(f"{dtype} {s.n_tensors} ({bytes_text(s.nbytes)})" for dtype, s in shares[:_TEXT_TYPES])
    rows = []
    if not source.closed:
        for label, key in (("architecture", "general.architecture"), ("name", "general.name")):
            if key in metadata:
                rows.append((label, _value(metadata, key, _TEXT_WIDTH)))
    rows.append(("parameters", f"{count_text(sum(i.n_elements for i in infos))} in {len(infos)} tensors"))
    rows.append(("types", types + (f", {len(shares) - _TEXT_TYPES} more" if len(shares) > _TEXT_TYPES else "")))
    rows.append(
        (
            "file",
            f"{bytes_text(header.nbytes)}, GGUF v{header.version}, data from byte {header.data_offset}, "
            f"alignment {header.alignment}",
        )
    )
    if len(parts.sources) > 1:
        each = [
            f"{len(s.header.tensors)} tensors in {bytes_text(s.header.nbytes)}" for s in parts.sources[:_TEXT_TYPES]
        ]
        more = f", {len(parts.sources) - _TEXT_TYPES} more" if len(parts.sources) > _TEXT_TYPES else ""
        rows.append(("parts", f"{len(parts.sources)}, {bytes_text(parts.nbytes)}: {', '.join(each)}{more}"))
    rows.append(("path", _safe(path_text(source.path), 200)))
    return rows


def _value(metadata: Metadata, key: str, width: int) -> str:
    """Return a value as text if it is in memory; arrays are shown by their first elements then."""
    if not metadata.is_loaded(key):
        return "(not read)"
    value = metadata[key]
    if isinstance(value, str):
        return _safe(value, width)
    if hasattr(value, "__len__"):
        shown = ", ".join(_safe(str(element), 20) for element in value[:4])
        return f"[{shown}{', ...' if len(value) > 4 else ''}]"
    return str(value)


def _first(names: Iterable[str], count: int) -> list[str]:
    return [name for _, name in zip(range(count), names, strict=False)]


def _few(texts: Sequence[str]) -> str:
    different = list(dict.fromkeys(texts))
    return different[0] if len(different) == 1 else f"{different[0]} and {len(different) - 1} other"


def _safe(value: str, width: int) -> str:
    """Return one printable line of at most ``width`` characters: control codes could steer a terminal."""
    cut = value[:width]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
    return shown[: width - 1] + "…" if len(shown) > width or len(value) > width else shown


def _block(title: str, rows: Sequence[Sequence[str]], total: int) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["    " + "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    more = [f"    … {total - len(rows)} more"] if total > len(rows) else []
    return [f"  {title}", *lines, *more]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f'<th style="{_CELL}">{html.escape(cell)}</th>' for cell in head)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f'<table style="{_MONO}">{f"<tr>{heads}</tr>" if head else ""}{body}</table>'


def _details(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> str:
    more = f"<p>… {total - len(rows)} more</p>" if total > len(rows) else ""
    return f"<details><summary>{html.escape(title)}</summary>{_table(head, rows)}{more}</details>"
