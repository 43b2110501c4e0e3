"""One tensor of a GGUF file as a numpy array, for looking at weights without loading a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from kit.core.dtypes import dtype_of, to_array
from kit.core.gguf_source import Source, TensorInfo

_CHUNK_ELEMENTS = 1 << 22  # dequantized at a time, so that raw bytes never stand beside the whole result


def read_tensor(source: Source, info: TensorInfo) -> np.ndarray[Any, Any]:
    """Return the tensor in numpy order; types numpy has stay, all others become float32.

    Raises DTypeError for a type ggml cannot turn into floats, GGUFError where the file cannot be read.
    """
    where = f"tensor {info.name!r}"
    dtype = dtype_of(info.dtype)
    if dtype.numpy is not None:
        raw = bytearray(source.read(info.offset, info.nbytes, where))
        return np.frombuffer(raw, dtype.numpy).reshape(info.shape)
    values = np.empty(info.n_elements, np.float32)
    step = _CHUNK_ELEMENTS // dtype.block * dtype.block
    with source.reading():
        for start in range(0, values.size, step):
            part = values[start : start + step]
            raw_part = source.read(info.offset + dtype.nbytes(start), dtype.nbytes(part.size), where)
            part[:] = to_array(np.frombuffer(raw_part, np.uint8), dtype, part.shape)
    return values.reshape(info.shape)
