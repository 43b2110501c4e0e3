"""Bytes, counts and times as text, in one place."""

from __future__ import annotations

import math

from kit.errors import ArgumentError

_SUFFIXES = ("b", "kb", "mb", "gb", "tb"), ("b", "kib", "mib", "gib", "tib")
_FACTORS = {
    name: base**power for base, names in zip((1000, 1024), _SUFFIXES, strict=True) for power, name in enumerate(names)
}


def bytes_text(nbytes: int) -> str:
    """Return ``nbytes`` with a binary unit: ``93.8 MiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} EiB"


def parse_bytes(given: int | str) -> int:
    """Return a number of bytes: ``64 MB`` is 64,000,000, ``64 MiB`` is 67,108,864; whole numbers are bytes.

    Raises:
        ArgumentError: what is no number of bytes, or less than none.
    """
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    text = given.strip().lower() if isinstance(given, str) else ""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    factor = _FACTORS.get(text[len(digits) :].strip() or "b")
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if factor is None or not math.isfinite(number) or number < 0:
        raise ArgumentError(f"{given!r} is no number of bytes; write it as 64 MB or 64 MiB")
    return int(number * factor)


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
