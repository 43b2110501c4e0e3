"""What a tensor may be called and what shape it may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kit.core.dtypes import DType
from kit.errors import ContextError, ShapeError
from kit.units import shape_text

_MAX_NAME = 63
_MAX_NBYTES = 1 << 62


def check_name(name: str | None) -> bytes:
    """Return ``name`` as ggml stores it.

    Raises:
        ContextError: longer than ggml's 63 bytes, or with a zero byte.
    """
    try:
        encoded = (name or "").encode()
    except (AttributeError, UnicodeEncodeError):
        raise ContextError(f"{name!r} cannot be a tensor's name; give text") from None
    if len(encoded) > _MAX_NAME or b"\0" in encoded:
        raise ContextError(f"{name!r} cannot be a tensor's name: at most {_MAX_NAME} bytes, none of them zero")
    return encoded


def check_shape(shape: Sequence[int], dtype: DType, what: str) -> tuple[int, ...]:
    """Return ``shape`` as a tuple that ggml can make a tensor of.

    Raises:
        ShapeError: see `Context.tensor`.
    """
    try:
        given: list[Any] = [shape] if np.isscalar(shape) else list(shape)
        extents = tuple(int(extent) for extent in given)
        whole = all(int(extent) == extent for extent in given)
    except (TypeError, ValueError, OverflowError):
        raise ShapeError(f"{what}: {shape!r} is no shape; give a tuple of integers") from None
    if not whole:
        raise ShapeError(f"{what}: {shape!r} is no shape; extents are integers")
    if not 1 <= len(extents) <= 4:
        raise ShapeError(f"{what}: shape {shape_text(extents)} has {len(extents)} axes; ggml has 1 to 4")
    if any(extent < 1 for extent in extents):
        raise ShapeError(f"{what}: shape {shape_text(extents)} has an extent below 1")
    if extents[-1] % dtype.block:
        raise ShapeError(
            f"{what}: rows of {extents[-1]} are no whole blocks of {dtype.name} ({dtype.block} elements); "
            f"make the last axis divisible by {dtype.block}"
        )
    elements = 1
    for extent in extents:
        elements *= extent
    if elements * dtype.block_nbytes // dtype.block > _MAX_NBYTES:
        raise ShapeError(f"{what}: shape {shape_text(extents)} of {dtype.name} is more than any machine addresses")
    return extents
