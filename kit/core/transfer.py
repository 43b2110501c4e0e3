"""Bytes in and out of tensors, contiguous or not, on the host or on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kit.core.dtypes import DType, dtype_by_id, from_array, to_array
from kit.core.native import ffi, lib
from kit.core.repack import is_opaque
from kit.errors import ArgumentError, ShapeError
from kit.units import shape_text

if TYPE_CHECKING:
    from kit.core.tensor import Tensor


def read(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a copy of an allocated tensor's values, shape in numpy order.

    Raises:
        ArgumentError: it lies in memory that ggml cannot read back.
    """
    raw = _readable(tensor)
    dtype = dtype_by_id(raw.type)
    if dtype.quantized and tensor.op == "TRANSPOSE":  # blocks lie along the other axis
        return np.ascontiguousarray(read(tensor.T).swapaxes(-1, -2))
    bytes_ = np.empty(int(lib.ggml_nbytes(raw)), np.uint8)
    get_bytes(raw, bytes_)
    if lib.ggml_is_contiguous(raw):
        return to_array(bytes_, dtype, tensor.shape)
    return to_array(np.ascontiguousarray(_elements(bytes_, tensor, dtype)).reshape(-1), dtype, tensor.shape)


def write(tensor: Tensor, values: npt.ArrayLike) -> None:
    """Copy ``values`` into an allocated tensor.

    Raises:
        ShapeError: another shape than the tensor's (a single number fills it).
        ArgumentError: it lies in memory that ggml cannot read back.
    """
    raw = _readable(tensor)
    dtype = dtype_by_id(raw.type)
    if dtype.quantized and tensor.op == "TRANSPOSE":
        raise ShapeError(f"{tensor.label} is the transpose of a quantized matrix; set the matrix itself")
    array = np.asarray(values)
    if array.ndim == 0:
        array = np.broadcast_to(array, tensor.shape)
    if array.shape != tensor.shape:
        raise ShapeError(
            f"{tensor.name or 'the tensor'} has shape {shape_text(tensor.shape)}, "
            f"the values given {shape_text(array.shape)}"
        )
    bytes_ = from_array(array, dtype, tensor.shape, tensor.label)
    if not lib.ggml_is_contiguous(raw):
        whole = np.empty(int(lib.ggml_nbytes(raw)), np.uint8)
        get_bytes(raw, whole)
        view = _elements(whole, tensor, dtype)
        view[...] = bytes_.reshape(view.shape)
        bytes_ = whole
    set_bytes(raw, bytes_)


def get_bytes(raw: Any, into: npt.NDArray[np.uint8], offset: int = 0) -> None:
    """Copy ``into.nbytes`` bytes from byte ``offset`` of the tensor ``raw``."""
    if into.nbytes:
        lib.ggml_backend_tensor_get(raw, ffi.from_buffer("char[]", into, require_writable=True), offset, into.nbytes)


def set_bytes(raw: Any, bytes_: npt.NDArray[np.uint8], offset: int = 0) -> None:
    """Copy ``bytes_`` to byte ``offset`` of the tensor ``raw``."""
    if bytes_.nbytes:
        lib.ggml_backend_tensor_set(raw, ffi.from_buffer("char[]", bytes_), offset, bytes_.nbytes)


def _addressed(tensor: Tensor) -> Any:
    """Return ggml's pointer of ``tensor``; a view made before its source had memory learns its address here."""
    raw = tensor.p
    if raw.view_src != ffi.NULL and raw.buffer == ffi.NULL and raw.view_src.buffer != ffi.NULL:
        lib.ggml_backend_view_init(raw)
    return raw


def _readable(tensor: Tensor) -> Any:
    raw = _addressed(tensor)
    if is_opaque(raw):
        raise ArgumentError(
            f"{tensor.label} lies in {tensor.buffer_type}, in an order of ggml's own that cannot be read or changed; "
            "the weights as they came are in model.weights"
        )
    return raw


def _elements(bytes_: npt.NDArray[np.uint8], tensor: Tensor, dtype: DType) -> npt.NDArray[np.uint8]:
    """View the span of a non-contiguous tensor as blocks: shape with the last axis in blocks, then their bytes."""
    shape, strides = tensor.shape, tuple(reversed(tensor.nb))
    blocks = (*shape[:-1], shape[-1] // dtype.block, dtype.block_nbytes)
    return np.lib.stride_tricks.as_strided(bytes_, blocks, (*strides, 1))
