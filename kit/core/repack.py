"""Buffer types in which ggml keeps matrices in the order its fastest kernels read them.

A matrix goes in whole and never comes out: ggml has no way back. Which matrices such a buffer type takes is
asked of ggml, for those it does not take end the process.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kit.core.devices import device_handles
from kit.core.dtypes import DType
from kit.core.native import ffi, lib

_ROOM = 16_384  # bytes of metadata: five tensors are far below


@cache
def opaque_types() -> dict[int, Any]:
    """Return the CPU's extra buffer types by address; what lies in one of them cannot be read."""
    device = _cpu()
    registry = lib.ggml_backend_dev_backend_reg(device)
    address = lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
    if address == ffi.NULL:
        return {}
    listed = ffi.cast("ggml_backend_dev_get_extra_bufts_t", address)(device)
    found, i = {}, 0
    while listed != ffi.NULL and listed[i] != ffi.NULL:
        found[int(ffi.cast("uintptr_t", listed[i]))] = listed[i]
        i += 1
    return found


def is_opaque(raw: Any) -> bool:
    """Whether the tensor ``raw`` lies where ggml cannot read it back."""
    buffer = raw.view_src.buffer if raw.view_src != ffi.NULL else raw.buffer
    if buffer == ffi.NULL or lib.ggml_backend_buffer_is_host(buffer):
        return False
    return int(ffi.cast("uintptr_t", lib.ggml_backend_buffer_get_type(buffer))) in opaque_types()


@cache
def repack_type(dtype: DType, shape: tuple[int, ...]) -> Any:
    """Return a buffer type with a kernel for products with a matrix like this, or None.

    ``shape`` is (rows, columns), or (experts, rows, columns) for `mul_mat_id`.
    """
    if not dtype.quantized or len(shape) not in (2, 3):
        return None
    return next((found for found in opaque_types().values() if _takes(found, dtype, shape)), None)


def _takes(buffer_type: Any, dtype: DType, shape: tuple[int, ...]) -> bool:
    """Ask ggml's CPU device about one product, with a weight that claims to lie in an empty buffer of that type."""
    pool = lib.ggml_init({"mem_size": _ROOM, "mem_buffer": ffi.NULL, "no_alloc": True})
    buffer = lib.ggml_backend_buft_alloc_buffer(buffer_type, 0)
    if pool == ffi.NULL or buffer == ffi.NULL:
        return False
    try:
        ne = (*reversed(shape), 1)[:3]
        weight = lib.ggml_new_tensor_3d(pool, dtype.id, *ne)
        if len(shape) == 2:
            product = lib.ggml_mul_mat(pool, weight, lib.ggml_new_tensor_2d(pool, lib.GGML_TYPE_F32, ne[0], 1))
        else:
            rows = lib.ggml_new_tensor_3d(pool, lib.GGML_TYPE_F32, ne[0], 1, 1)
            ids = lib.ggml_new_tensor_2d(pool, lib.GGML_TYPE_I32, 1, 1)
            product = lib.ggml_mul_mat_id(pool, weight, rows, ids)
        weight.buffer = buffer
        return bool(lib.ggml_backend_dev_supports_op(_cpu(), product))
    finally:
        lib.ggml_free(pool)
        lib.ggml_backend_buffer_free(buffer)


def _cpu() -> Any:
    return next(handle for name, handle in device_handles().items() if name.startswith("CPU."))
