"""A graph allocated apart from the scheduler, so that it can stand still while others run.

Its nodes are computed in stretches: ggml's public way is an empty graph to which nodes of an already
allocated graph are added. On the CPU only, where no copies between devices are needed.
"""

from __future__ import annotations

import weakref
from typing import Any

from kit.core import ledger
from kit.core.buffer import refuse_impossible
from kit.core.compute import compute_graph, turn
from kit.core.graph import Graph
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib
from kit.errors import ClosedError, OutOfMemory


class ApartGraph:
    """``graph`` with compute memory of its own; ``close()`` gives that back, the graph stays.

    Raises:
        OutOfMemory: no room.
    """

    def __init__(self, graph: Graph, owner: str) -> None:
        self.graph = graph
        with turn(), uninterrupted:
            self._open(owner)

    def _open(self, owner: str) -> None:
        graph = self.graph
        self._backend = graph.backend.handles[-1]
        buffer_type = lib.ggml_backend_get_default_buffer_type(self._backend)
        allocator = lib.ggml_gallocr_new(buffer_type)
        try:
            _allocate(allocator, graph, owner)
        except BaseException:
            lib.ggml_gallocr_free(allocator)
            raise
        self.nbytes = int(lib.ggml_gallocr_get_buffer_size(allocator, 0))
        address = int(ffi.cast("uintptr_t", allocator))
        name = f"memory of {graph.name}"
        entry = ledger.Resource("allocator", self.nbytes, name, owner, "compute", "CPU", address=address)
        self._finalizer = weakref.finalize(self, _free, allocator, ledger.opened(entry))

    def index_of(self) -> dict[int, int]:
        """Return the position of each node by its address."""
        handle = self.graph.handle
        nodes = lib.ggml_graph_nodes(handle)
        return {int(ffi.cast("uintptr_t", nodes[i])): i for i in range(self.graph.n_nodes)}

    def compute(self, first: int = 0, end: int | None = None) -> None:
        """Compute the nodes from ``first`` up to, not including, ``end``; raises as `Graph.compute`."""
        if not self._finalizer.alive:
            raise ClosedError(f"the memory of {self.graph.name} was given back")
        handle = self.graph.handle
        stop = self.graph.n_nodes if end is None else end
        n_threads = self.graph.backend.use_threads(self.graph)
        if first == 0 and stop == self.graph.n_nodes:
            compute_graph(self._backend, handle, n_threads)
        elif stop > first:
            self._compute_part(handle, first, stop, n_threads)

    def _compute_part(self, handle: Any, first: int, stop: int, n_threads: int) -> None:
        nbytes = int(lib.ggml_graph_overhead_custom(stop - first, False))
        pool = lib.ggml_init({"mem_size": nbytes, "mem_buffer": ffi.NULL, "no_alloc": True})
        if pool == ffi.NULL:
            raise OutOfMemory(f"no memory for a part of {stop - first} nodes", nbytes=nbytes)
        try:
            part = lib.ggml_new_graph_custom(pool, stop - first, False)
            nodes = lib.ggml_graph_nodes(handle)
            for i in range(first, stop):
                lib.ggml_graph_add_node(part, nodes[i])
            compute_graph(self._backend, part, n_threads)
        finally:
            lib.ggml_free(pool)

    def close(self) -> None:
        """Give the compute memory back; a second call does nothing."""
        with turn(), uninterrupted:
            if self._finalizer.alive:
                self.graph.unplace()
            self._finalizer()


def _allocate(allocator: Any, graph: Graph, owner: str) -> None:
    graph.unplace()
    size = ffi.new("size_t *")
    probe = lib.ggml_gallocr_new(lib.ggml_backend_cpu_buffer_type())
    lib.ggml_gallocr_reserve_n_size(probe, graph.handle, ffi.NULL, ffi.NULL, size)
    lib.ggml_gallocr_free(probe)
    refuse_impossible(int(size[0]), "CPU", f"the compute memory of {owner}", True)
    lib.kit_graph_will_be_placed(graph.handle)
    if not lib.ggml_gallocr_alloc_graph(allocator, graph.handle):
        graph.unplace()
        raise OutOfMemory(f"no room for the compute memory of {owner}", nbytes=int(size[0]), device="CPU")


def _free(allocator: Any, number: int) -> None:
    with uninterrupted:
        lib.ggml_gallocr_free(allocator)
        ledger.closed(number)
