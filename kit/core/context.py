"""Contexts: metadata that grows by itself, and ownership of every buffer allocated through it."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from kit.core.backend import Backend
from kit.core.buffer import Buffer, BufferSet
from kit.core.checks import check_name, check_shape
from kit.core.compute import refuse_running, turn
from kit.core.dtypes import DType, dtype_of
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib
from kit.core.pools import FIRST_SLOTS, TENSOR_OVERHEAD, Pools
from kit.core.tensor import Tensor
from kit.errors import ArgumentError, ClosedError, ContextError
from kit.units import bytes_text

if TYPE_CHECKING:
    from kit.core.graph import Graph

Policy = Literal["grow", "fixed", "no-alloc"]
_ages = itertools.count()


class Core:
    """What a context and those derived from it share: pools, buffers, and the generation of their tensors.

    Tensors remember the generation they were made in; `reset` and `close` raise it, and so every
    older tensor knows that its metadata is gone.
    """

    def __init__(self, backend: Backend, name: str, pools: Pools, owns_backend: bool) -> None:
        self.backend = backend
        self.name = name
        self.pools = pools
        self.room = pools.room
        self.age = next(_ages)
        self.generation = 0
        self.closed = False
        self.users: set[int] = set()  # threads that made leaves here
        self.depends: dict[Core, int] = {}
        self.buffers: list[Buffer] = []
        self.homes: dict[int, Buffer] = {}  # address of each tensor with memory -> the buffer it lies in
        self.pending: list[_Pending] = []
        self.leaves: dict[int, int] = {}  # address of each leaf -> number of its axes
        self.ready: set[int] = set()
        self.graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        self.natives: dict[int, Any] = {}  # graphs' own pools: what a finalizer missed is freed with the context
        self._owned_backend = backend if owns_backend else None
        self._finalizer = weakref.finalize(self, _free_all, self.natives, pools)

    def use(self, other: Core) -> None:
        """Note that nodes of this context point into ``other``.

        Raises:
            ClosedError: older nodes point into a life of ``other`` that a reset has ended.
        """
        if self.depends.setdefault(other, other.generation) != other.generation:
            raise self.dead(other.name, other.closed, f"part of context {self.name!r}")

    def check(self) -> None:
        """Raise ClosedError unless this context and all it points into are as they were."""
        stack, seen = [self], {self}
        while stack:
            core = stack.pop()
            if core.closed:
                raise ClosedError(f"context {core.name!r} was closed")
            for other, generation in core.depends.items():
                if other.generation != generation:
                    raise self.dead(other.name, other.closed, f"context {core.name!r}")
                if other not in seen:
                    seen.add(other)
                    stack.append(other)

    @staticmethod
    def dead(context: str, closed: bool, what: str) -> ClosedError:
        """The exception for ``what`` whose metadata lay in a context that was closed or reset."""
        return ClosedError(f"{what} was made in context {context!r}, which was {'closed' if closed else 'reset'} since")

    def expect_memory(self, address: int, label: str) -> None:
        """Raise ClosedError where the tensor at ``address`` lies in a buffer that its owner closed."""
        buffer = self.homes.get(address)
        if buffer is not None and buffer.closed:
            raise ClosedError(f"{label} lay in {buffer!r}; keep the buffer open as long as its tensors are used")

    def has_lost_memory(self) -> bool:
        """Whether a buffer with tensors of this context was closed."""
        return any(buffer.closed for buffer in set(self.homes.values()))

    def allocate(self) -> None:
        """Give memory to every tensor still without: one buffer per buffer type and purpose.

        Raises:
            OutOfMemory: a device has no room; nothing is left behind.
        """
        if self.pending:
            with turn(), uninterrupted:
                self._allocate()

    def _allocate(self) -> None:
        groups: dict[tuple[int, str], list[_Pending]] = {}
        for item in self.pending:
            groups.setdefault((int(ffi.cast("uintptr_t", item.buffer_type)), item.purpose), []).append(item)
        fresh: list[Buffer] = []
        try:
            for (_, purpose), items in groups.items():
                fresh.append(self._allocate_group(items, purpose))
        except BaseException:
            for buffer in fresh:
                buffer.close()
            raise
        self.buffers += fresh
        for items, buffer in zip(groups.values(), fresh, strict=True):
            _place(items, buffer)
            self.homes.update((int(ffi.cast("uintptr_t", item.raw)), buffer) for item in items)
        self.pending.clear()

    def _allocate_group(self, items: list[_Pending], purpose: str) -> Buffer:
        if self.pools.frozen:
            raise ContextError(f"context {self.name!r} may not allocate any more; {items[0].name!r} has no memory")
        names = items[0].name if len(items) == 1 else f"{items[0].name} and {len(items) - 1} more"
        total = sum(item.padded_nbytes for item in items)
        return Buffer.allocate(items[0].buffer_type, max(total, 1), purpose=purpose, owner=self.name, name=names)

    def reset(self) -> None:
        """End the life of all tensors; keep pools and their room, free the buffers."""
        with turn(), uninterrupted:
            refuse_running(lambda graph: graph.uses_core(self), f"context {self.name!r}")
            self._end_generation()
            for buffer in self.buffers:
                buffer.close()
            self.buffers.clear()
            self.pools.reset()

    def detach(self) -> BufferSet:
        """End the context; hand its buffers over."""
        self.allocate()
        kept, self.buffers = self.buffers, []
        self.close()
        return BufferSet(kept, self.name)

    def close(self) -> None:
        """Free graphs, pools and buffers; a second call does nothing."""
        with turn(), uninterrupted:  # another thread may be computing with what is freed here
            if self.closed:
                return
            refuse_running(lambda graph: graph.uses_core(self), f"context {self.name!r}")
            self.closed = True
            self._end_generation()
            for buffer in self.buffers:
                buffer.close()
            self.buffers.clear()
            if not self._used_elsewhere():
                self._finalizer()  # else that thread may be between room() and its call: freed with the last tensor
            if self._owned_backend is not None:
                self._owned_backend.close()

    def _used_elsewhere(self) -> bool:
        """Whether another thread that made tensors here is still alive."""
        others = self.users - {threading.get_ident()}
        return bool(others) and any(thread.ident in others for thread in threading.enumerate())

    def _end_generation(self) -> None:
        for graph in list(self.graphs):
            graph.close()
        _free_natives(self.natives)
        self.generation += 1
        self.pending.clear()
        self.leaves.clear()
        self.ready.clear()
        self.homes.clear()
        self.depends.clear()


def _free_natives(natives: dict[int, Any]) -> None:
    for native in list(natives.values()):
        native.free()


def _free_all(natives: dict[int, Any], pools: Pools) -> None:
    with uninterrupted:
        _free_natives(natives)
        pools.free()


class _Pending:
    """A tensor that has no memory yet."""

    __slots__ = ("alignment", "buffer_type", "name", "nbytes", "purpose", "raw")

    def __init__(self, raw: Any, buffer_type: Any, purpose: str, name: str) -> None:
        self.raw = raw
        self.buffer_type = buffer_type
        self.purpose = purpose
        self.name = name
        self.nbytes = int(lib.ggml_backend_buft_get_alloc_size(buffer_type, raw))
        self.alignment = int(lib.ggml_backend_buft_get_alignment(buffer_type))

    @property
    def padded_nbytes(self) -> int:
        return -(-self.nbytes // self.alignment) * self.alignment


class Context:
    """Tensors' metadata, never their data; grows by itself.

    Args:
        backend: what its graphs run on; default: one of its own, closed with the context.
        name: shown in messages, ledger and reports.
        policy: ``"grow"``; ``"fixed"`` raises when ``slots`` tensors are there; ``"no-alloc"`` is set later
            with `freeze`.
        slots: tensors the first pool has room for.
        memory: the application's own writable memory for a fixed pool, see `kit.core.buffer.aligned`.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        name: str | None = None,
        policy: Policy = "grow",
        slots: int = FIRST_SLOTS,
        memory: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        if policy not in ("grow", "fixed", "no-alloc"):
            raise ArgumentError(f"policy is {policy!r}; give 'grow', 'fixed' or 'no-alloc'")
        if slots < 1 or slots > 1 << 24:
            raise ArgumentError(f"slots is {slots}; give 1 to {1 << 24}")
        if backend is not None and not isinstance(backend, Backend):
            raise ArgumentError(f"backend is {backend!r}; give a kit.Backend, or leave it out")
        owned = backend is None
        used = Backend() if backend is None else backend
        used.handles  # noqa: B018 - raises ClosedError
        label = name or f"context {next(_names)}"
        self._memory = memory
        fixed = policy == "fixed"
        with uninterrupted:
            pools = _pools_over(memory, label) if memory is not None else Pools(label, slots=slots, fixed=fixed)
            self._core = Core(used, label, pools, owned)
        self._purpose = "weights"
        self._buffer_type: Any = None
        used.children.add(self._core)
        if policy == "no-alloc":
            self.freeze()

    def tensor(
        self, shape: Sequence[int], dtype: str | DType | npt.DTypeLike = "f32", name: str | None = None
    ) -> Tensor:
        """Return a new tensor of ``shape`` (numpy order), without memory until it is set or computed with.

        Raises:
            ShapeError: more than 4 axes, an extent below 1, rows that are no whole blocks of ``dtype``.
            DTypeError: no such type.
            ContextError: a fixed context is full, or the name is longer than 63 bytes.
        """
        return self._leaf(shape, dtype, name, self._purpose, is_input=False)

    def input(
        self, shape: Sequence[int], dtype: str | DType | npt.DTypeLike = "f32", name: str | None = None
    ) -> Tensor:
        """Return a new tensor whose values come from outside at each computation, in ordinary host memory.

        Raises as `tensor`.
        """
        return self._leaf(shape, dtype, name, "inputs", is_input=True)

    def graph(self, *outputs: Tensor) -> Graph:
        """Return the graph that computes ``outputs``; nothing is computed.

        Raises:
            ArgumentError: no outputs.
            ClosedError: an output, or something it depends on, is gone.
        """
        from kit.core.graph import Graph, expect_tensors

        expect_tensors(outputs)
        self._core.check()
        return Graph(self._core.backend, outputs)

    def for_inputs(self) -> Context:
        """A context on the same core whose tensors are inputs in ordinary host memory."""
        return self._derived("inputs", None)

    def for_device(self, device: str, *, purpose: str = "weights") -> Context:
        """A context on the same core whose tensors live on ``device``."""
        return self._derived(purpose, self.backend.buffer_type(device))

    def for_buffer_type(self, buffer_type: Any, *, purpose: str = "weights") -> Context:
        """A context on the same core whose tensors live in ggml's ``buffer_type``."""
        return self._derived(purpose, buffer_type)

    def allocate(self) -> None:
        """Give memory now to all tensors that have none; raises OutOfMemory and then leaves nothing behind."""
        self._core.check()
        self._core.allocate()

    def place(self, tensor: Tensor, buffer: Buffer, offset: int = 0) -> None:
        """Let ``tensor`` live in ``buffer`` at byte ``offset``; the buffer stays its owner's.

        Raises:
            ArgumentError: it does not fit there, or the offset is not aligned.
            ContextError: the tensor has memory already.
        """
        core = self._core
        match = next((item for item in core.pending if item.raw == tensor.p), None)
        if match is None:
            raise ContextError(f"{tensor} has memory already, or is not a tensor of context {self.name!r}")
        alignment = int(lib.ggml_backend_buffer_get_alignment(buffer.handle))
        needed = int(lib.ggml_backend_buffer_get_alloc_size(buffer.handle, tensor.p))
        if offset < 0 or offset % alignment or offset + needed > buffer.nbytes:
            raise ArgumentError(
                f"{tensor.label} needs {needed} bytes at an offset divisible by {alignment}; "
                f"offset {offset} of {buffer!r} does not do"
            )
        lib.ggml_backend_tensor_alloc(buffer.handle, tensor.p, ffi.cast("void *", buffer.base + offset))
        core.pending.remove(match)
        core.homes[tensor.address] = buffer

    def freeze(self) -> None:
        """From here on raise ContextError instead of allocating anything (the no-alloc policy)."""
        self._core.pools.frozen = True

    def reset(self) -> None:
        """Forget all tensors and graphs and free their buffers; the pools stay for the next ones."""
        self._core.check()
        self._core.reset()

    def detach(self) -> BufferSet:
        """Free the metadata, keep the memory: return the buffers, which their new owner closes."""
        self._core.check()
        return self._core.detach()

    def close(self) -> None:
        """Free the metadata and every buffer allocated through this context or one derived from it."""
        self._core.close()

    @property
    def backend(self) -> Backend:
        """What graphs of this context run on."""
        return self._core.backend

    @property
    def name(self) -> str:
        """The name in messages and reports."""
        return self._core.name

    @property
    def closed(self) -> bool:
        """Whether the context was closed or detached."""
        return self._core.closed

    @property
    def n_pools(self) -> int:
        """ggml contexts in the chain."""
        return len(self._core.pools.chain)

    @property
    def metadata_nbytes(self) -> int:
        """Bytes of the pools."""
        return self._core.pools.nbytes

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Buffers allocated through this context so far."""
        return tuple(self._core.buffers)

    def _derived(self, purpose: str, buffer_type: Any) -> Context:
        self._core.check()
        other = object.__new__(Context)
        other._core, other._purpose, other._buffer_type, other._memory = self._core, purpose, buffer_type, None
        return other

    def _leaf(self, shape: Sequence[int], dtype: Any, name: str | None, purpose: str, is_input: bool) -> Tensor:
        kind = dtype_of(dtype)
        extents = check_shape(shape, kind, name or "a tensor")
        encoded = check_name(name)
        with turn():
            return self._make_leaf(extents, kind, name, encoded, purpose, is_input)

    def _make_leaf(
        self, extents: tuple[int, ...], kind: DType, name: str | None, encoded: bytes, purpose: str, is_input: bool
    ) -> Tensor:
        core = self._core
        if core.closed:
            raise ClosedError(f"context {core.name!r} was closed")
        core.users.add(threading.get_ident())
        ne = (*reversed(extents), 1, 1, 1, 1)[:4]
        raw = lib.ggml_new_tensor_4d(core.room(), kind.id, *ne)
        if encoded:
            lib.ggml_set_name(raw, encoded)
        if is_input:
            lib.ggml_set_input(raw)
        buffer_type = self._buffer_type if self._buffer_type is not None else core.backend.buffer_type()
        core.leaves[int(ffi.cast("uintptr_t", raw))] = len(extents)
        core.pending.append(_Pending(raw, buffer_type, purpose, name or "unnamed tensor"))
        return Tensor(raw, core, len(extents), name=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"Context({self.name!r}, closed)"
        core = self._core
        held = bytes_text(sum(buffer.nbytes for buffer in core.buffers))
        return (
            f"Context({self.name!r}, {bytes_text(core.pools.used_nbytes)} of metadata in {self.n_pools} pools, "
            f"{held} in {len(core.buffers)} buffers)"
        )


_names = itertools.count(1)


def _place(items: Iterable[_Pending], buffer: Buffer) -> None:
    address = buffer.base
    for item in items:
        address = -(-address // item.alignment) * item.alignment
        lib.ggml_backend_tensor_alloc(buffer.handle, item.raw, ffi.cast("void *", address))
        address += item.padded_nbytes


def _pools_over(memory: npt.NDArray[np.uint8], name: str) -> Pools:
    view = memoryview(cast(Any, memory))
    if view.readonly or not view.c_contiguous:
        raise ArgumentError("a pool needs writable, contiguous memory")
    pointer = ffi.from_buffer("char[]", view, require_writable=True)
    slots = (view.nbytes - 64) // TENSOR_OVERHEAD
    if slots < 1 or int(ffi.cast("uintptr_t", pointer)) % 16:
        raise ArgumentError(f"a pool needs at least {TENSOR_OVERHEAD + 64} bytes, aligned to 16; got {view.nbytes}")
    return Pools(name, slots=slots, fixed=True, memory=pointer)
