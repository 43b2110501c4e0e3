"""Bytes, counts and times as text, in one place."""

from __future__ import annotations


def bytes_text(nbytes: int) -> str:
    """Return ``nbytes`` with a binary unit: ``93.8 MiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} EiB"


def time_text(time_ns: int) -> str:
    """Return ``time_ns`` (nanoseconds) with a fitting unit: ``1.25 ms``."""
    for limit, unit in ((1_000, "ns"), (1_000_000, "us"), (1_000_000_000, "ms")):
        if time_ns < limit:
            return f"{time_ns / (limit / 1000):.3g} {unit}"
    return f"{time_ns / 1e9:.3g} s"


def count_text(count: int) -> str:
    """Return a large count with a decimal suffix: ``134.5M``."""
    size = float(count)
    for suffix in ("", "k", "M"):
        if abs(size) < 1000:
            return f"{size:.0f}" if not suffix else f"{size:.1f}{suffix}"
        size /= 1000
    return f"{size:.1f}B"


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: ``1 place``, ``2,000 passes``; ``many`` is ``one`` with an s if it is not given."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a numpy-order shape in round brackets: ``(4, 8)``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def ne_text(ne: tuple[int, ...]) -> str:
    """Return ggml-order extents in square brackets: ``[8, 4]``."""
    return f"[{', '.join(map(str, ne))}]"
