"""One tensor of a GGUF file as a numpy array, for looking at weights without loading a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from kit.core.gguf_source import Source, TensorInfo, path_text
from kit.core.native import ffi, lib, text
from kit.errors import DTypeError

_CHUNK_ELEMENTS = 1 << 22  # dequantized at a time, so that raw bytes never stand beside the whole result
_NUMPY = {"f16": "<f2", "f32": "<f4", "f64": "<f8", "i8": "<i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}


def read_tensor(source: Source, info: TensorInfo) -> np.ndarray[Any, Any]:
    """Return the tensor in numpy order; types numpy has stay, all others become float32 by ggml's to_float.

    Raises DTypeError for a type ggml cannot turn into floats, GGUFError where the file cannot be read.
    """
    where = f"tensor {info.name!r}"
    if info.dtype in _NUMPY:
        raw = bytearray(source.read(info.offset, info.nbytes, where))
        return np.frombuffer(raw, _NUMPY[info.dtype]).reshape(info.shape)
    type_number = _type_number(info.dtype)
    to_float = lib.ggml_get_type_traits(type_number).to_float
    if to_float == ffi.NULL:
        raise DTypeError(
            f"{path_text(source.path)}: {where} has type {info.dtype}, which ggml only uses inside a "
            "computation and does not turn into floats"
        )
    block, block_bytes = lib.ggml_blck_size(type_number), lib.ggml_type_size(type_number)
    values = np.empty(info.n_elements, np.float32)
    step = _CHUNK_ELEMENTS // block * block
    with source.reading():
        for start in range(0, values.size, step):
            part = values[start : start + step]
            at = info.offset + start // block * block_bytes
            raw_part = source.read(at, part.size // block * block_bytes, where)
            to_float(
                ffi.from_buffer(raw_part), ffi.from_buffer("float[]", part, require_writable=True), part.size
            )
    return values.reshape(info.shape)


def _type_number(dtype: str) -> int:
    """Return the enum ggml_type of a type name of ggml's."""
    for number in range(int(lib.GGML_TYPE_COUNT)):
        if lib.ggml_type_size(number) and text(lib.ggml_type_name(number)) == dtype:
            return number
    raise DTypeError(f"ggml has no type {dtype!r}")
