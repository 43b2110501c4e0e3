"""numpy's indexing as ggml views: integers, slices with positive steps, and ``...``; nothing is copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from kit.core.dtypes import dtype_by_id
from kit.core.native import lib
from kit.core.tensor import Tensor
from kit.errors import ShapeError


def slice_view(tensor: Tensor, key: Any) -> Tensor:
    """Return the view ``tensor[key]``.

    Raises:
        ShapeError: an index out of range, an empty or backward slice, a step on the last axis of a
            tensor that already has 4 axes, a cut through a quantized block.
    """
    parts = _expand(tensor, key)
    dtype = dtype_by_id(tensor.p.type)
    if dtype.quantized and tensor.op == "TRANSPOSE":
        raise ShapeError(f"{tensor.label} is the transpose of a quantized matrix; slice the matrix and transpose that")
    offset, shape, strides = 0, tensor.shape, tensor.nb[::-1]
    kept: list[tuple[int, int]] = []  # extent and stride of each axis that stays, in ggml order
    for axis in reversed(range(tensor.ndim)):
        part, extent, stride = parts[axis], shape[axis], strides[axis]
        if isinstance(part, slice):
            start, count, step = _bounds(part, extent, tensor)
            kept.append((count, stride * step))
        else:
            start, count, step = _index(part, extent, axis, tensor), 1, 1
        block = dtype.block if axis == tensor.ndim - 1 else 1
        if block > 1 and (start % block or count % block or step != 1 or not isinstance(part, slice)):
            raise ShapeError(f"{tensor.label} of {dtype.name} can be cut on its last axis only at multiples of {block}")
        offset += start // block * stride
    return _view(tensor, kept, offset)


def _view(tensor: Tensor, kept: list[tuple[int, int]], offset: int) -> Tensor:
    """Make the ggml view of extents and strides ``kept`` (ggml order).

    ggml's views have their first axis contiguous. Where ours is not, an axis of one element goes before
    it, and a permutation then moves that axis behind the others, where it does not show.
    """
    core, unit = tensor.core, int(lib.ggml_type_size(tensor.p.type))
    ndim = max(len(kept), 1)
    hidden = not kept or kept[0][1] != unit
    if hidden and len(kept) == 4:
        raise ShapeError(f"{tensor.label}: a step on the last axis needs a free axis; use at most 3 axes")
    axes = [(1, unit), *kept] if hidden else kept
    ne = (*(extent for extent, _ in axes), 1, 1, 1, 1)[:4]
    whole = axes[-1][0] * axes[-1][1]
    nb = (*(stride for _, stride in axes[1:]), whole, whole, whole)[:3]
    raw = lib.ggml_view_4d(core.room(), tensor.p, *ne, *nb, offset)
    if hidden and kept:
        order = [len(kept), *range(len(kept)), *range(len(kept) + 1, 4)]
        raw = lib.ggml_permute(core.room(), raw, *order)
    return Tensor(raw, core, ndim, base=tensor)


def _expand(tensor: Tensor, key: Any) -> list[Any]:
    parts = list(key) if isinstance(key, tuple) else [key]
    if parts.count(Ellipsis) > 1:
        raise ShapeError(f"{tensor.label}: only one '...' in an index")
    named = len(parts) - parts.count(Ellipsis)
    if named > tensor.ndim:
        raise ShapeError(f"{tensor.label} has {tensor.ndim} axes, the index names {named}")
    fill = [slice(None)] * (tensor.ndim - named)
    if Ellipsis in parts:
        at = parts.index(Ellipsis)
        return [*parts[:at], *fill, *parts[at + 1 :]]
    return [*parts, *fill]


def _bounds(part: slice, extent: int, tensor: Tensor) -> tuple[int, int, int]:
    start, stop, step = part.indices(extent)
    if step < 1:
        raise ShapeError(f"{tensor.label}: step {part.step} runs backward; ggml views only run forward")
    count = len(range(start, stop, step))
    if count == 0:
        raise ShapeError(f"{tensor.label}: the slice {part.start}:{part.stop} of an axis of {extent} is empty")
    return start, count, step


def _index(part: Any, extent: int, axis: int, tensor: Tensor) -> int:
    if isinstance(part, (bool, np.bool_)) or not isinstance(part, (int, np.integer)):
        raise ShapeError(f"{tensor.label}: cannot index with {type(part).__name__}; use integers, slices and '...'")
    if not -extent <= part < extent:
        raise ShapeError(f"{tensor.label}: index {part} is out of range for axis {axis} of {extent}")
    return int(part) % extent
