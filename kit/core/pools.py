"""Chains of ggml contexts that grow: metadata pools in which nothing ever moves.

Room is made before the call that needs it: a full pool aborts in `ggml_new_tensor` and crashes in
`ggml_new_graph`, so ggml is never asked for more objects than the pool in use still holds.
"""

from __future__ import annotations

from typing import Any

from kit.core import ledger
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib
from kit.errors import ContextError, OutOfMemory

TENSOR_OVERHEAD = int(lib.ggml_tensor_overhead())
FIRST_SLOTS = 64
LARGEST_SLOTS = 4096


class Pools:
    """ggml contexts without data, used one after the other; ``left`` objects still fit into ``raw``."""

    def __init__(self, name: str, *, slots: int = FIRST_SLOTS, fixed: bool = False, memory: Any = None) -> None:
        self.name = name
        self.fixed = fixed
        self.slots = slots
        self.chain: list[tuple[Any, int, int]] = []
        self.raw: Any = None
        self.left = 0
        self.frozen = False
        self._position = -1
        self._next_slots = slots
        self._memory = memory
        self._add(slots, memory)

    def room(self, n_objects: int = 1) -> Any:
        """Return a ggml context in which ``n_objects`` more tensors surely fit.

        Raises:
            ContextError: a fixed context is full, or the context may not grow any more.
        """
        if self.left < n_objects:
            self._grow(n_objects)
        self.left -= n_objects
        return self.raw

    def reset(self) -> None:
        """Forget all objects, keep the pools for the next ones."""
        for raw, _, _ in self.chain:
            lib.ggml_reset(raw)
        self._position = 0
        self.raw, self.left, _ = self.chain[0]

    def free(self) -> None:
        """Give the pools back."""
        with uninterrupted:
            for raw, _, number in self.chain:
                lib.ggml_free(raw)
                ledger.closed(number)
            self.chain.clear()
            self.raw, self.left = None, 0

    @property
    def nbytes(self) -> int:
        """Bytes of metadata the pools can hold."""
        return sum(int(lib.ggml_get_mem_size(raw)) for raw, _, _ in self.chain)

    @property
    def used_nbytes(self) -> int:
        """Bytes of metadata in use."""
        return sum(int(lib.ggml_used_mem(raw)) for raw, _, _ in self.chain)

    def _grow(self, n_objects: int) -> None:
        while self._position + 1 < len(self.chain):  # pools that a reset left for reuse
            self._position += 1
            self.raw, self.left, _ = self.chain[self._position]
            if self.left >= n_objects:
                return
        if self.fixed:
            raise ContextError(
                f"context {self.name!r} is fixed at {self.slots} tensors and full; reset() it, "
                "or let it grow (policy='grow')"
            )
        if self.frozen:
            raise ContextError(f"context {self.name!r} may not allocate any more and is full; reset() it")
        self._next_slots = min(self._next_slots * 2, max(LARGEST_SLOTS, self.slots))
        self._add(max(self._next_slots, n_objects), None)

    def _add(self, slots: int, memory: Any) -> None:
        with uninterrupted:
            self._add_pool(slots, memory)

    def _add_pool(self, slots: int, memory: Any) -> None:
        size = slots * TENSOR_OVERHEAD
        raw = lib.ggml_init({"mem_size": size, "mem_buffer": ffi.NULL if memory is None else memory, "no_alloc": True})
        if raw == ffi.NULL:
            raise OutOfMemory(f"no memory for {slots} more tensors of context {self.name!r}", nbytes=size)
        address = int(ffi.cast("uintptr_t", raw))
        number = ledger.opened(ledger.Resource("context", size, self.name, self.name, "metadata", address=address))
        self.chain.append((raw, slots, number))
        self._position = len(self.chain) - 1
        self.raw, self.left = raw, slots
