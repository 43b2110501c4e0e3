"""The key/value part of a GGUF file as a read-only mapping."""

from __future__ import annotations

import difflib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from kit.core.gguf_source import Source, TensorInfo, ValueSpot, path_text
from kit.core.native import ffi, lib
from kit.errors import GGUFError, MissingKey

_LONG_TEXT = 1 << 16  # longer strings are fetched when asked for, as arrays are
_MANY_NAMES = 5000  # no guesses among more names than this: they would take seconds

#: enum gguf_type -> (short name, struct format and numpy dtype)
_NUMBERS = {
    lib.GGUF_TYPE_UINT8: ("u8", "<B", "<u1"),
    lib.GGUF_TYPE_INT8: ("i8", "<b", "<i1"),
    lib.GGUF_TYPE_UINT16: ("u16", "<H", "<u2"),
    lib.GGUF_TYPE_INT16: ("i16", "<h", "<i2"),
    lib.GGUF_TYPE_UINT32: ("u32", "<I", "<u4"),
    lib.GGUF_TYPE_INT32: ("i32", "<i", "<i4"),
    lib.GGUF_TYPE_FLOAT32: ("f32", "<f", "<f4"),
    lib.GGUF_TYPE_BOOL: ("bool", "<?", "?"),
    lib.GGUF_TYPE_UINT64: ("u64", "<Q", "<u8"),
    lib.GGUF_TYPE_INT64: ("i64", "<q", "<i8"),
    lib.GGUF_TYPE_FLOAT64: ("f64", "<d", "<f8"),
}

_Value = TypeVar("_Value")


class NamedTable(Mapping[str, _Value]):
    """A mapping in file order whose missing names raise MissingKey with near ones."""

    def __init__(self, source: Source, names: Iterable[str], noun: str) -> None:
        self._source = source
        self._names = dict.fromkeys(names)
        self._noun = noun

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of ``name``, or ``default`` where there is none."""
        return self[name] if name in self._names else default

    def _require(self, name: str) -> None:
        self._source.require_open()
        if name in self._names:
            return
        near = difflib.get_close_matches(str(name), self._names, n=3) if len(self) <= _MANY_NAMES else []
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else f"; it has {len(self)}"
        raise MissingKey(f"{path_text(self._source.path)}: no {self._noun} {name!r}{hint}")


class TensorTable(NamedTable[TensorInfo]):
    """The tensors of a GGUF file, all its parts together, by name, in file order."""

    def __init__(self, source: Source, infos: Mapping[str, TensorInfo]) -> None:
        super().__init__(source, infos, "tensor")
        self._infos = infos

    def __getitem__(self, name: str) -> TensorInfo:
        self._require(name)
        return self._infos[name]

    def __repr__(self) -> str:
        return f"<{len(self)} tensors of {path_text(self._source.path)}>"


class Metadata(NamedTable[Any]):
    """The metadata of a GGUF file: str, bool, int, float; arrays as read-only numpy arrays or list[str].

    Scalars are read at once, arrays (and strings above 64 KiB) at their first use, then kept. Bytes that are
    no UTF-8 become U+FFFD.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source, source.header.spots, "metadata key")
        self._spots = source.header.spots
        self._values: dict[str, Any] = {}
        with source.reading():
            for key, spot in self._spots.items():
                if not spot.is_array and spot.nbytes <= _LONG_TEXT:
                    self._values[key] = self._fetch(key)

    def __getitem__(self, key: str) -> Any:
        self._require(key)
        if key not in self._values:
            self._values[key] = self._fetch(key)
        return self._values[key]

    def type_text(self, key: str) -> str:
        """Return what a value is without reading it: ``"u32"``, ``"str[49152]"``."""
        self._require(key)
        spot = self._spots[key]
        name = "str" if spot.type == lib.GGUF_TYPE_STRING else _NUMBERS[spot.type][0]
        return f"{name}[{spot.count}]" if spot.is_array else name

    def is_loaded(self, key: str) -> bool:
        """Whether the value of ``key`` is in memory."""
        self._require(key)
        return key in self._values

    def forget(self) -> None:
        """Drop the arrays that were read; they are read again when asked for."""
        self._values = {key: value for key, value in self._values.items() if not self._spots[key].is_array}

    def __repr__(self) -> str:
        return f"<{len(self)} metadata keys of {path_text(self._source.path)}>"

    def _fetch(self, key: str) -> Any:
        spot = self._spots[key]
        raw = self._source.read(spot.offset, spot.nbytes, f"key {key!r}")
        if spot.type == lib.GGUF_TYPE_STRING:
            return self._strings(key, spot, raw) if spot.is_array else raw.decode("utf-8", "replace")
        _, scalar, dtype = _NUMBERS[spot.type]
        return np.frombuffer(raw, dtype) if spot.is_array else struct.unpack(scalar, raw)[0]

    def _strings(self, key: str, spot: ValueSpot, raw: bytes) -> list[str]:
        joined = bytearray(spot.nbytes - 8 * spot.count)
        ends = np.empty(spot.count, np.uint64)
        status = lib.kit_gguf_strings(
            ffi.from_buffer(raw),
            spot.nbytes,
            spot.count,
            ffi.from_buffer("char[]", joined, require_writable=True),
            ffi.from_buffer("uint64_t[]", ends, require_writable=True),
        )
        if status != 0:
            raise GGUFError(
                f"{path_text(self._source.path)}: key {key!r} at byte {spot.offset}: the strings do not "
                "fill the array; the file changed after it was opened"
            )
        stops = ends.tolist()
        whole = bytes(joined)
        starts = [0, *stops[:-1]]
        if whole.isascii():
            plain = whole.decode("ascii")
            return [plain[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return [whole[start:stop].decode("utf-8", "replace") for start, stop in zip(starts, stops, strict=True)]
