"""Element types: ggml's names, block sizes, and the way to and from numpy."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.core.native import ffi, lib, text
from kit.errors import DTypeError

_NUMPY = {"f32": "<f4", "f16": "<f2", "f64": "<f8", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}


@dataclass(frozen=True)
class DType:
    """One ggml element type; ``block`` elements take ``block_nbytes`` bytes."""

    name: str
    id: int
    block: int
    block_nbytes: int
    quantized: bool

    @property
    def numpy(self) -> np.dtype[Any] | None:
        """The numpy type with the same bytes, or None for bf16 and quantized types (read as float32)."""
        return np.dtype(_NUMPY[self.name]) if self.name in _NUMPY else None

    def nbytes(self, n_elements: int) -> int:
        """Bytes of ``n_elements`` elements in whole blocks."""
        return n_elements // self.block * self.block_nbytes


@cache
def all_dtypes() -> dict[str, DType]:
    """Return every element type this ggml has, by its name in lower case."""
    found = {}
    for number in range(lib.GGML_TYPE_COUNT):
        traits = lib.ggml_get_type_traits(number)
        if traits.type_size == 0:
            continue  # an id ggml has retired
        name = text(traits.type_name)  # ggml writes q4_K; people may write q4_k
        found[name.lower()] = DType(
            name, number, int(traits.blck_size), int(traits.type_size), bool(traits.is_quantized)
        )
    return found


@cache
def _by_id() -> dict[int, DType]:
    return {dtype.id: dtype for dtype in all_dtypes().values()}


def dtype_by_id(number: int) -> DType:
    """Return the type with ggml's ``number``."""
    return _by_id()[number]


def dtype_of(spec: str | DType | npt.DTypeLike) -> DType:
    """Return the type named by ``spec``: ggml's name (``"q4_1"``) or a numpy type of the same layout.

    Raises:
        DTypeError: no such type.
    """
    if isinstance(spec, DType):
        return spec
    known = all_dtypes()
    if isinstance(spec, str) and spec.lower() in known:
        return known[spec.lower()]
    try:
        wanted = np.dtype(spec)
    except TypeError:
        near = difflib.get_close_matches(str(spec), known, 3)
        hint = f"; did you mean {', '.join(near)}?" if near else f"; known: {', '.join(known)}"
        raise DTypeError(f"no element type {spec!r}{hint}") from None
    for name, layout in _NUMPY.items():
        if wanted == np.dtype(layout):
            return known[name]
    raise DTypeError(f"ggml has no element type with the layout of numpy {wanted}; convert to float32 or int32 first")


def to_array(raw: npt.NDArray[np.uint8], dtype: DType, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the contiguous bytes ``raw`` as an array of ``shape`` (numpy order).

    bf16 and quantized types come out as float32, through ggml's own conversion.
    """
    if dtype.numpy is not None:
        return raw.view(dtype.numpy).reshape(shape)
    n_elements = int(np.prod(shape, dtype=np.int64))
    convert = lib.ggml_get_type_traits(dtype.id).to_float
    if convert == ffi.NULL:
        return _from_q8(raw, dtype).reshape(shape)
    values = np.empty(n_elements, np.float32)
    if n_elements:
        convert(ffi.from_buffer("char[]", raw), ffi.from_buffer("float[]", values, require_writable=True), n_elements)
    return values.reshape(shape)


def _from_q8(raw: npt.NDArray[np.uint8], dtype: DType) -> npt.NDArray[np.float32]:
    """Read q8_1 and q8_K, ggml's types for activations, to which ggml itself gives no way back.

    Layout from ggml-common.h: q8_1 is a float16 scale, a float16 sum, 32 int8; q8_K is a float32
    scale, 256 int8, 16 int16 sums.
    """
    if dtype.name not in ("q8_1", "q8_K"):
        raise DTypeError(f"{dtype.name} cannot be read as float32: ggml has no conversion for it")
    scale, start = ("<f2", 4) if dtype.name == "q8_1" else ("<f4", 4)
    blocks = raw.reshape(-1, dtype.block_nbytes)
    scales = np.ascontiguousarray(blocks[:, : np.dtype(scale).itemsize]).view(scale).astype(np.float32)
    return scales * blocks[:, start : start + dtype.block].view(np.int8)


def from_array(values: npt.ArrayLike, dtype: DType, shape: tuple[int, ...], name: str) -> npt.NDArray[np.uint8]:
    """Return ``values`` as the bytes of a contiguous tensor of ``dtype`` and ``shape``; quantizes with ggml.

    Raises:
        DTypeError: values that cannot become this type.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DTypeError(f"{name}: cannot take values of numpy type {array.dtype}; give floats or integers")
    if dtype.numpy is not None:
        if dtype.numpy.kind == "i" and array.dtype.kind == "f":
            raise DTypeError(f"{name} holds {dtype.name}, the values given are {array.dtype}; round them first")
        with np.errstate(over="ignore"):
            converted = np.ascontiguousarray(array, dtype.numpy)
        return converted.reshape(-1).view(np.uint8)
    source = np.ascontiguousarray(array, np.float32)
    per_row = shape[-1]
    rows = source.size // per_row if per_row else 0
    out = np.empty(dtype.nbytes(source.size), np.uint8)
    if dtype.quantized and lib.ggml_quantize_requires_imatrix(dtype.id):
        raise DTypeError(
            f"{name}: {dtype.name} needs an importance matrix to quantize; use q4_K, iq4_nl or q2_K instead"
        )
    floats = ffi.from_buffer("float[]", source)
    target = ffi.from_buffer("char[]", out, require_writable=True)
    if dtype.quantized:
        lib.ggml_quantize_chunk(dtype.id, floats, target, 0, rows, per_row, ffi.NULL)
    else:
        lib.ggml_fp32_to_bf16_row(floats, ffi.cast("ggml_bf16_t *", target), source.size)
    return out
