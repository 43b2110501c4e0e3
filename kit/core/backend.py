"""A backend: devices that compute together, and the one scheduler they share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

from kit.checks import whole
from kit.core import ledger
from kit.core.buffer import refuse_impossible
from kit.core.compute import compute_graph, compute_scheduled, default_threads, running, turn
from kit.core.devices import device_handle, device_handles
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib, text
from kit.core.scope import keeping
from kit.errors import ArgumentError, BusyError, ClosedError, OutOfMemory

if TYPE_CHECKING:
    from kit.core.graph import Graph
    from kit.core.tensor import Tensor

#: Beyond this many nodes on a lone CPU the scheduler's tables (about 20 KB of address space a node)
#: cost more than they are worth, and the graph gets an allocator of its own.
LARGE_GRAPH = 65_536
MAX_THREADS = 512


class Backend:
    """Devices with one scheduler, created once and reset at each computation.

    Args:
        devices: names as `kit.devices` gives them, in order of preference; the CPU is always added last.
        n_threads: CPU threads; default: what this process may use, see `default_threads`.
        n_threads_batch: CPU threads for graphs marked as `Graph.batch`; default: as many.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        *,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
    ) -> None:
        n_threads, n_threads_batch = (
            None if given is None else whole(name, given, 1, MAX_THREADS)
            for name, given in (("n_threads", n_threads), ("n_threads_batch", n_threads_batch))
        )
        if isinstance(devices, str) or not isinstance(devices, (Sequence, type(None))):
            raise ArgumentError(f"devices is {devices!r}; give a list of names as kit.devices() has them")
        self.n_threads = n_threads or default_threads()
        self.n_threads_batch = n_threads_batch or self.n_threads
        names = list(dict.fromkeys(devices)) if devices is not None else _default_devices()
        cpu = next(name for name in device_handles() if name.startswith("CPU."))
        self.devices: tuple[str, ...] = (*(name for name in names if name != cpu), cpu)
        with uninterrupted:
            self._state = _State([_open_device(name) for name in self.devices], self.n_threads)
            self._finalizer = weakref.finalize(self, _State.free, self._state)
        self.children: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def state(self) -> _State:
        """The native half."""
        return self._state

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    @property
    def handles(self) -> list[Any]:
        """ggml's backends, in the order of `devices`.

        Raises:
            ClosedError: after `close`.
        """
        if self.closed:
            raise ClosedError("the backend was closed; make a new kit.Backend()")
        return self._state.handles

    def buffer_type(self, device: str | None = None) -> Any:
        """ggml's default buffer type of ``device`` (default: the CPU)."""
        name = device or self.devices[-1]
        if name not in self.devices:
            raise ArgumentError(f"device {name!r} is not of this backend ({', '.join(self.devices)})")
        return lib.ggml_backend_get_default_buffer_type(self.handles[self.devices.index(name)])

    def allocate(self, graph: Graph) -> None:
        """Give every node of ``graph`` its place in the compute buffers, unless it is the one that has it.

        Raises:
            OutOfMemory: a device has no room; the scheduler is left empty.
            BusyError: called by a computation of its own.
        """
        with turn(), uninterrupted:
            self._state.refuse_nested()
            if self.handles and self._state.current() is not graph:
                self._state.allocate(graph)

    def reserve(self, graph: Graph) -> None:
        """Grow the compute buffers to what ``graph`` needs, and leave them empty.

        Raises:
            OutOfMemory: a device has no room.
        """
        with turn(), uninterrupted:
            self._state.refuse_nested()
            if self.handles:
                self._state.reserve(graph)

    def compute(self, graph: Graph, watch: Any = None) -> None:
        """Allocate and compute ``graph``; ``watch`` is a ``kit_watch *`` or None.

        Raises as `kit.core.compute.compute_scheduled`; after any of it the scheduler is empty and usable.
        """
        with turn():
            self.allocate(graph)
            self._state.compute(graph, watch, self.use_threads(graph))

    def use_threads(self, graph: Graph) -> int:
        """Let the CPU use the threads ``graph`` is to be computed with; return how many."""
        n_threads = self.n_threads_batch if graph.batch else self.n_threads
        self._state.set_threads(n_threads)
        return n_threads

    def forget(self, graph: Graph) -> None:
        """Take ``graph`` off the scheduler, because it is about to be freed."""
        with turn(), uninterrupted:
            if not self.closed and self._state.current() is graph:
                self._state.reset()

    def vacate(self, tensors: Iterable[Tensor]) -> None:
        """Take back the places earlier computations gave to ``tensors``: they get memory of their own."""
        with turn(), uninterrupted:
            self._state.refuse_nested()
            self._state.reset()
            for tensor in tensors:
                lib.kit_tensor_unplace(tensor.p)

    @property
    def compute_nbytes(self) -> int:
        """Bytes of the compute buffers as they are now."""
        return self._state.compute_nbytes() if not self.closed else 0

    def close(self) -> None:
        """Close the contexts made on this backend, then the scheduler, then the devices."""
        with turn(), uninterrupted:
            self._state.refuse_nested()
            for child in list(self.children):
                child.close()
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.n_threads} CPU threads"
        return f"Backend({', '.join(self.devices)}; {state})"


class _State:
    """The native half of a backend, so that a finalizer can free it without the backend."""

    def __init__(self, handles: list[Any], n_threads: int) -> None:
        self.handles = handles
        self.n_threads = 0
        self.scheduler: Any = None
        self.capacity = 0
        self.allocator: Any = None
        self.current: Callable[[], Graph | None] = _nothing
        self.planned = 0  # number of the graph the scheduler's plan was made for
        self.number = 0
        self.name = text(lib.ggml_backend_name(handles[0]))
        self.set_threads(n_threads)

    def set_threads(self, n_threads: int) -> None:
        """Let the CPU use ``n_threads`` of the process's pool from the next graph on."""
        if n_threads != self.n_threads:
            self.n_threads = n_threads
            for handle in self.handles:
                if lib.ggml_backend_is_cpu(handle):
                    lib.ggml_backend_cpu_set_n_threads(handle, n_threads)

    def allocate(self, graph: Graph) -> None:
        with keeping("compute buffers"):
            self._allocate(graph)

    def _allocate(self, graph: Graph) -> None:
        self.reset()
        graph.unplace()
        self._refuse_too_large(graph)
        lib.kit_graph_will_be_placed(graph.handle)
        if not (self._allocate_large if self._large(graph) else self._allocate_scheduled)(graph):
            graph.unplace()
            self.reset()
            raise OutOfMemory(f"no room for the compute buffer of a graph of {graph.n_nodes} nodes", device=self.name)
        self.current = weakref.ref(graph)
        self._enter()

    def _allocate_large(self, graph: Graph) -> bool:
        self.allocator = lib.ggml_gallocr_new(lib.ggml_backend_get_default_buffer_type(self.handles[-1]))
        return bool(lib.ggml_gallocr_alloc_graph(self.allocator, graph.handle))

    def _allocate_scheduled(self, graph: Graph) -> bool:
        """Plan, then place: left to itself, ggml goes by the plan of any graph with as many nodes of these sizes."""
        self._ensure_scheduler(graph)
        if self.planned != graph.number and not lib.ggml_backend_sched_reserve(self.scheduler, graph.handle):
            self.drop_scheduler()
            return False
        self.planned = graph.number
        return bool(lib.ggml_backend_sched_alloc_graph(self.scheduler, graph.handle))

    def reserve(self, graph: Graph) -> None:
        with keeping("compute buffers"):
            self._reserve(graph)

    def _reserve(self, graph: Graph) -> None:
        self.reset()
        graph.unplace()
        self.planned = 0
        self._ensure_scheduler(graph)
        self._refuse_too_large(graph)
        if not lib.ggml_backend_sched_reserve(self.scheduler, graph.handle):
            self.drop_scheduler()
            raise OutOfMemory(f"no room for the compute buffer of a graph of {graph.n_nodes} nodes", device=self.name)
        self._enter()

    def compute(self, graph: Graph, watch: Any, n_threads: int) -> None:
        done = False
        try:
            running.append(graph)  # here, not before: an interrupt comes after a call, and must meet the finally
            if self.allocator is not None:
                compute_graph(self.handles[-1], graph.handle, n_threads)
            else:
                callback, user = (lib.kit_watch_callback, watch) if watch is not None else (ffi.NULL, ffi.NULL)
                lib.ggml_backend_sched_set_eval_callback(self.scheduler, callback, user)
                compute_scheduled(self.scheduler, graph.handle, n_threads)
            done = True
        finally:
            running.pop()
            if not done:
                self.reset()

    def refuse_nested(self) -> None:
        """Raise BusyError inside a computation of this backend: its scheduler's graph must stay where it is."""
        if any(graph.backend.state is self for graph in running):
            raise BusyError(
                "the backend is in the middle of a computation, which called this function; "
                "do it afterwards, or use another kit.Backend()"
            )

    def _refuse_too_large(self, graph: Graph) -> None:
        """Ask ggml for the sizes of the compute buffers first: a promise of the system is not memory."""
        if graph.measured or len(self.handles) > 1:
            return
        size = ffi.new("size_t *")
        probe = lib.ggml_gallocr_new(lib.ggml_backend_get_default_buffer_type(self.handles[0]))
        lib.ggml_gallocr_reserve_n_size(probe, graph.handle, ffi.NULL, ffi.NULL, size)
        lib.ggml_gallocr_free(probe)
        growth = int(size[0]) - self.compute_nbytes()
        refuse_impossible(growth, "CPU", f"the compute buffer of a graph of {graph.n_nodes} nodes", True)
        graph.measured = True

    def reset(self) -> None:
        """Forget the allocated graph; buffers stay for the next one."""
        graph = self.current()
        if graph is not None:
            graph.unplace()
        self.current = _nothing
        if self.scheduler is not None:
            lib.ggml_backend_sched_reset(self.scheduler)
        self._drop_allocator()

    def compute_nbytes(self) -> int:
        if self.allocator is not None:
            return int(lib.ggml_gallocr_get_buffer_size(self.allocator, 0))
        if self.scheduler is None:
            return 0
        return sum(int(lib.ggml_backend_sched_get_buffer_size(self.scheduler, handle)) for handle in self.handles)

    def _large(self, graph: Graph) -> bool:
        return len(self.handles) == 1 and graph.n_nodes > LARGE_GRAPH

    def _ensure_scheduler(self, graph: Graph) -> None:
        needed = graph.n_nodes + graph.n_leafs
        if self.scheduler is not None and needed <= self.capacity:
            return
        self.drop_scheduler()
        self.capacity = max(2048, 1 << (needed - 1).bit_length())
        array = ffi.new("ggml_backend_t[]", self.handles)
        self.scheduler = lib.ggml_backend_sched_new(array, ffi.NULL, len(self.handles), self.capacity, False, False)

    def _drop_allocator(self) -> None:
        if self.allocator is not None:
            lib.ggml_gallocr_free(self.allocator)
            self.allocator = None

    def drop_scheduler(self) -> None:
        self.current = _nothing
        self.planned = 0
        if self.scheduler is not None:
            lib.ggml_backend_sched_free(self.scheduler)
            self.scheduler = None
        self._enter()

    def _enter(self) -> None:
        """Keep the ledger true: one entry for the scheduler or allocator with the bytes it holds."""
        present = self.scheduler is not None or self.allocator is not None
        kind = "scheduler" if self.scheduler is not None else "allocator"
        handle = self.scheduler if self.scheduler is not None else self.allocator
        address = int(ffi.cast("uintptr_t", handle)) if present else 0
        entry = ledger.Resource(
            kind, self.compute_nbytes(), f"{kind} of {self.name}", "compute", "compute", self.name, address=address
        )
        if present and self.number:
            ledger.changed(self.number, entry)
        elif present:
            self.number = ledger.opened(entry)
        elif self.number:
            ledger.closed(self.number)
            self.number = 0

    @staticmethod
    def free(state: _State) -> None:
        state._drop_allocator()
        state.drop_scheduler()
        for handle in state.handles:
            lib.kit_cpu_detach(handle)
            lib.ggml_backend_free(handle)
        state.handles = []


def _nothing() -> None:
    return None


def _default_devices() -> list[str]:
    return [name for name in device_handles() if not name.startswith("CPU.")]


def _open_device(name: str) -> Any:
    handle = lib.ggml_backend_dev_init(device_handle(name), ffi.NULL)
    if handle == ffi.NULL:
        raise OutOfMemory(f"device {name} could not be opened", device=name)
    if lib.ggml_backend_is_cpu(handle) and not lib.kit_cpu_attach(handle):
        lib.ggml_backend_free(handle)
        raise OutOfMemory("more than 256 backends are open in this process; close some")
    return handle
