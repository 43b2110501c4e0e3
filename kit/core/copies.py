"""Other forms of matrices that lie on the host: rows joined, repacked for a kernel, as float16; natively."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.core.dtypes import dtype_by_id
from kit.core.native import ffi, lib
from kit.core.tensor import Tensor

_CHUNK = 1 << 16  # elements at a time: as float32 they stay in the CPU's cache


def join(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Copy the rows of ``sources``, one after another, into ``target`` of the same type; both on the host.

    Matrices of several experts (experts, rows, columns) are joined expert by expert.
    """
    offset = 0
    for address, nbytes in _stretches(sources):
        lib.ggml_backend_tensor_set(target.p, ffi.cast("void *", address), offset, nbytes)
        offset += nbytes


def repack(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Give the joined ``sources`` to ``target``, which lies in one of `kit.core.repack.opaque_types`."""
    stretches = list(_stretches(sources))
    if len(stretches) == 1:
        address, nbytes = stretches[0]
        lib.ggml_backend_tensor_set(target.p, ffi.cast("void *", address), 0, nbytes)
        return
    whole = np.empty(sum(nbytes for _, nbytes in stretches), np.uint8)
    offset = 0
    for address, nbytes in stretches:
        whole[offset : offset + nbytes] = _bytes(address, nbytes)
        offset += nbytes
    lib.ggml_backend_tensor_set(target.p, ffi.from_buffer("char[]", whole), 0, whole.nbytes)


def to_f16(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Write the joined ``sources`` to ``target`` (f16, on the host), by ggml's own conversions."""
    dtype = dtype_by_id(sources[0].p.type)
    convert = lib.ggml_get_type_traits(dtype.id).to_float
    columns = sources[0].shape[-1]
    rows = max(1, _CHUNK // columns)
    floats = np.empty(rows * columns, np.float32)
    into = ffi.from_buffer("float[]", floats, require_writable=True)
    out = int(ffi.cast("uintptr_t", target.p.data))
    for address, nbytes in _stretches(sources):
        step = dtype.nbytes(rows * columns)
        for start in range(0, nbytes, step):
            n = min(step, nbytes - start) // dtype.block_nbytes * dtype.block
            convert(ffi.cast("void *", address + start), into, n)
            lib.ggml_cpu_fp32_to_fp16(into, ffi.cast("ggml_fp16_t *", out), n)
            out += 2 * n


def split_q4_0(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Give ``target``, q4_0 in an opaque buffer, the scaled part of q4_1 ``sources``; `split_offsets` has the rest.

    Both types hold 32 elements in a block, with nibbles in the same order: q4_1 is a float16 scale d, a float16
    minimum m and the nibbles q, meaning d * q + m; q4_0 is d and q, meaning d * (q - 8). So a product with q4_1 is
    one with q4_0 plus, for each block, (m + 8 * d) times the sum of the 32 inputs (ggml-common.h).
    """
    n_blocks = target.size // 32
    packed = np.empty(n_blocks, _Q4_0)
    first = 0
    for blocks in _q4_1_blocks(sources):
        part = packed[first : first + blocks.size]
        part["d"], part["q"] = blocks["d"], blocks["q"]
        first += blocks.size
    lib.ggml_backend_tensor_set(target.p, ffi.from_buffer("char[]", packed), 0, packed.nbytes)


def split_offsets(target: Tensor, sources: Sequence[Tensor]) -> None:
    """Write m + 8 * d of each q4_1 block to ``target`` (rows, blocks, zeros up to its width), f16 on the host."""
    memory = _bytes(address_of(target), target.nbytes).view(np.float16).reshape(target.shape)
    per_row = sources[0].shape[-1] // 32
    memory[:, per_row:] = 0
    first = 0
    for blocks in _q4_1_blocks(sources):
        rows = blocks.size // per_row
        offsets = blocks["d"].astype(np.float32)
        offsets *= 8
        offsets += blocks["m"]
        memory[first : first + rows, :per_row] = offsets.reshape(rows, per_row)
        first += rows


_Q4_0 = np.dtype([("d", "<f2"), ("q", "V16")])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "V16")])


def _q4_1_blocks(sources: Sequence[Tensor]) -> Iterator[npt.NDArray[Any]]:
    for address, nbytes in _stretches(sources):
        yield _bytes(address, nbytes).view(_Q4_1)


def adjacent(sources: Sequence[Tensor]) -> bool:
    """Whether the bytes of ``sources`` follow each other in one buffer."""
    buffers = {int(ffi.cast("uintptr_t", t.p.buffer)) for t in sources}
    ends = [address_of(t) + t.nbytes for t in sources]
    return len(buffers) == 1 and all(end == address_of(t) for end, t in zip(ends, sources[1:], strict=False))


def on_host(tensor: Tensor) -> bool:
    """Whether the CPU reads the tensor's bytes in place."""
    return bool(tensor.p.buffer != ffi.NULL and lib.ggml_backend_buffer_is_host(tensor.p.buffer))


def _stretches(sources: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of each stretch of rows, in the order they are joined."""
    n_experts = sources[0].shape[0] if sources[0].ndim == 3 else 1
    for expert in range(n_experts):
        for source in sources:
            nbytes = source.nbytes // n_experts
            yield address_of(source) + expert * nbytes, nbytes


def address_of(tensor: Tensor) -> int:
    """Where the tensor's bytes begin."""
    return int(ffi.cast("uintptr_t", tensor.p.data))


def _bytes(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    memory: Any = ffi.buffer(ffi.cast("char *", address), nbytes)
    return np.frombuffer(memory, np.uint8)
