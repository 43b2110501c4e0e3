"""Graphs: nodes in the order they will be computed, allocated and run by a backend."""

from __future__ import annotations

import difflib
import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from kit.core import ledger
from kit.core.buffer import Buffer
from kit.core.compute import turn
from kit.core.dtypes import dtype_by_id
from kit.core.interrupts import uninterrupted
from kit.core.native import ffi, lib, text
from kit.errors import ArgumentError, ClosedError, GgmlAbort, NotComputedError, OutOfMemory
from kit.units import shape_text

if TYPE_CHECKING:
    from kit.core.backend import Backend
    from kit.core.context import Core
    from kit.core.tensor import Tensor

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Node:
    """One tensor of a graph as data; ``ne`` is ggml order, ``sources`` are indices into leafs and nodes."""

    index: int
    name: str
    op: str
    ne: tuple[int, ...]
    dtype: str
    nbytes: int
    sources: tuple[str, ...]
    is_view: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in numpy order."""
        return self.ne[::-1]


class Graph:
    """What computes ``outputs``; made by `kit.Context.graph`.

    The values of outputs stay readable until they are computed again: they live in a buffer of
    their own, not in the compute buffer, which the next graph overwrites.
    """

    def __init__(self, backend: Backend, outputs: Sequence[Tensor], *, keep_outputs: bool = True) -> None:
        if not outputs:
            raise ArgumentError("a graph needs at least one output tensor")
        expect_tensors(outputs)
        self.backend = backend
        self.outputs = tuple(outputs)
        self.name = f"graph {next(_numbers)}"
        self.measured = False
        self.batch = False
        """Whether the backend's ``n_threads_batch`` compute it."""
        self._keep_outputs = keep_outputs
        self._output_buffer: Buffer | None = None
        with turn(), uninterrupted:
            self._cores = _all_cores(outputs, backend)
            self._native, self._leaves = _build(self.outputs, self.name, [core for core, _ in self._cores])
            self._finalizer = weakref.finalize(self, _Native.free, self._native)
            self._native.registry = self.outputs[0].core.natives
            self._native.registry[self._native.number] = self._native
            self._inputs = {leaf.name: leaf.tensor() for leaf in self._leaves if leaf.is_input}
            for core, _ in self._cores:
                core.graphs.add(self)

    @property
    def handle(self) -> Any:
        """ggml's pointer.

        Raises:
            ClosedError: the graph, or a context it points into, was closed or reset.
        """
        if not self._finalizer.alive:
            raise ClosedError(f"{self.name} was closed, or a context it points into was closed or reset")
        for core, generation in self._cores:
            if core.generation != generation:
                raise core.dead(core.name, core.closed, self.name)
        return self._native.handle

    @property
    def number(self) -> int:
        """What tells this graph from every other of the process; never 0."""
        return self._native.number

    def unplace(self) -> None:
        """Take back the places an allocator of graphs gave to the nodes; the outputs' own memory stays."""
        if not self._native.freed:
            lib.kit_graph_unplace(self._native.handle)

    def uses_core(self, core: Core) -> bool:
        """Whether nodes or leaves of the graph lie in ``core``."""
        return any(own is core for own, _ in self._cores)

    def uses_buffer(self, buffer: Buffer) -> bool:
        """Whether a tensor of one of the graph's contexts lies in ``buffer``."""
        return any(home is buffer for core, _ in self._cores for home in core.homes.values())

    @property
    def n_nodes(self) -> int:
        """Tensors to be computed, views included."""
        return self._native.n_nodes

    @property
    def n_leafs(self) -> int:
        """Tensors that hold values: inputs, weights, constants."""
        return self._native.n_leafs

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The input tensors the graph reads, by name."""
        return dict(self._inputs)

    def nodes(self) -> list[Node]:
        """Return every node as data, in the order of computation."""
        handle = self.handle
        return [_describe(i, lib.ggml_graph_node(handle, i)) for i in range(self.n_nodes)]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes())

    def compute(self, feeds: Mapping[Tensor, npt.ArrayLike] | None = None, **named: npt.ArrayLike) -> Any:
        """Set the inputs given by tensor or by name, run the graph, return its output tensor or tensors.

        Raises:
            ArgumentError: a name that is no input of this graph. ShapeError: values of another shape.
            NotComputedError: an input or weight has no value yet.
            OutOfMemory: no room for the compute buffer. GgmlAbort: ggml refused inside the graph.
            KeyboardInterrupt: stopped within 200 ms; outputs are then not readable, all else is.
        """
        if feeds is not None and not isinstance(feeds, Mapping):
            raise ArgumentError(f"feeds are a mapping of input tensor to values, not {type(feeds).__name__}")
        with turn():
            return self._compute(feeds, named)

    def _compute(self, feeds: Mapping[Tensor, npt.ArrayLike] | None, named: Mapping[str, npt.ArrayLike]) -> Any:
        self.handle  # noqa: B018 - raises ClosedError
        for core, _ in self._cores:
            core.allocate()
        self._refuse_lost()
        self._feed(feeds or {}, named)
        self._refuse_unset()
        if self._keep_outputs and self._output_buffer is None:
            with uninterrupted:
                self._allocate_outputs()
        self._mark(False)
        try:
            self.backend.compute(self)
        except GgmlAbort as error:
            raise GgmlAbort(f"{error} (in {self.name}, {self.n_nodes} nodes)") from None
        self._mark(True)
        return self.outputs[0] if len(self.outputs) == 1 else self.outputs

    def _feed(self, feeds: Mapping[Tensor, npt.ArrayLike], named: Mapping[str, npt.ArrayLike]) -> None:
        for name, values in named.items():
            if sum(leaf.is_input and leaf.name == name for leaf in self._leaves) > 1:
                raise ArgumentError(
                    f"{self.name} reads several inputs called {name!r}; feed them by tensor: compute({{x: ...}})"
                )
            if name not in self._inputs:
                near = difflib.get_close_matches(name, self._inputs, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                known = ", ".join(self._inputs) or "none with a name"
                raise ArgumentError(f"{name!r} is no input of {self.name} (inputs: {known}){hint}")
            self._inputs[name].set(values)
        for tensor, values in feeds.items():
            tensor.set(values)

    def _refuse_unset(self) -> None:
        for leaf in self._leaves:
            if leaf.address not in leaf.core.ready:
                raise NotComputedError(f"{leaf.name!r} has no value; set() it or give it to compute() by its name")

    def _refuse_lost(self) -> None:
        if any(core.has_lost_memory() for core, _ in self._cores):
            for leaf in self._leaves:
                leaf.core.expect_memory(leaf.address, leaf.name)
            for tensor in self.outputs:
                tensor.root.core.expect_memory(tensor.root.address, tensor.label)

    def _mark(self, computed: bool) -> None:
        for tensor in self.outputs:
            for step in tensor.chain():
                if step.op != "NONE":
                    (step.core.ready.add if computed else step.core.ready.discard)(step.address)

    def _allocate_outputs(self) -> None:
        """Give the outputs memory of their own, in one buffer; an output that is a view gives it to its root."""
        roots = {t.root.address: t.root for t in self.outputs}
        self.backend.vacate(roots.values())
        wanting = [t for t in roots.values() if t.p.buffer == ffi.NULL and t.op != "NONE"]
        if not wanting:
            return
        buffer_type = self.backend.buffer_type(self.backend.devices[0] if len(self.backend.devices) == 1 else None)
        alignment = int(lib.ggml_backend_buft_get_alignment(buffer_type))
        sizes = [
            -(-int(lib.ggml_backend_buft_get_alloc_size(buffer_type, t.p)) // alignment) * alignment for t in wanting
        ]
        core = wanting[0].core
        buffer = Buffer.allocate(
            buffer_type, sum(sizes), purpose="compute", owner=core.name, name=f"outputs of {self.name}"
        )
        address = buffer.base
        for tensor, nbytes in zip(wanting, sizes, strict=True):
            lib.ggml_backend_tensor_alloc(buffer.handle, tensor.p, ffi.cast("void *", address))
            tensor.core.homes[tensor.address] = buffer
            address += nbytes
        core.buffers.append(buffer)
        self._output_buffer = buffer

    def close(self) -> None:
        """Free the graph; its tensors and their values belong to the contexts and stay."""
        with turn(), uninterrupted:
            self.backend.forget(self)
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def text(self, limit: int = 60) -> str:
        """Return a line per node: index, operation, type, shape, name, sources; at most ``limit`` lines."""
        n = self.n_nodes
        handle = self.handle
        shown = range(n) if n <= limit else [*range(limit // 2), *range(n - limit // 2, n)]
        lines = [repr(self)]
        previous = -1
        for i in shown:
            if i != previous + 1:
                lines.append(f"  ... {i - previous - 1} more nodes ...")
            previous = i
            node = _describe(i, lib.ggml_graph_node(handle, i))
            lines.append(
                f"{i:6d}  {node.op:<14} {node.dtype:<5} {shape_text(node.shape):<20} "
                f"{node.name:<28} <- {', '.join(node.sources)}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        if not self._finalizer.alive:
            return f"Graph({self.name!r}, closed)"
        ins = ", ".join(self._inputs) or "nothing"
        return f"Graph({self.name!r}: {self.n_nodes} nodes, {self.n_leafs} leafs; reads {ins})"


def expect_tensors(outputs: Sequence[Any]) -> None:
    """Raise ArgumentError where one of ``outputs`` is no tensor."""
    from kit.core.tensor import Tensor

    wrong = next((output for output in outputs if not isinstance(output, Tensor)), None)
    if wrong is not None:
        raise ArgumentError(
            f"an output of a graph is a kit.Tensor, not {type(wrong).__name__}; give several one by one: graph(x, y)"
        )


class _Leaf:
    """A tensor without operation that the graph reads."""

    __slots__ = ("address", "core", "is_input", "raw")

    def __init__(self, raw: Any, address: int, core: Core, is_input: bool) -> None:
        self.raw, self.address, self.core, self.is_input = raw, address, core, is_input

    @property
    def name(self) -> str:
        return text(self.raw.name)

    def tensor(self) -> Tensor:
        from kit.core.tensor import Tensor

        return Tensor(self.raw, self.core, self.core.leaves[self.address], name=self.name)


class _Native:
    """ggml's graph and the pool it lies in."""

    def __init__(self, raw: Any, handle: Any, n_nodes: int, n_leafs: int, number: int) -> None:
        self.raw, self.handle, self.n_nodes, self.n_leafs, self.number = raw, handle, n_nodes, n_leafs, number
        self.freed = False
        self.registry: dict[int, _Native] = {}

    def free(self) -> None:
        with uninterrupted:
            if not self.freed:
                self.freed = True
                lib.ggml_free(self.raw)
                ledger.closed(self.number)
                self.registry.pop(self.number, None)


def _build(outputs: Sequence[Tensor], name: str, cores: Sequence[Core]) -> tuple[_Native, list[_Leaf]]:
    order = ffi.new("kit_order *")
    pointers = ffi.new("struct ggml_tensor *[]", [tensor.p for tensor in outputs])
    if not lib.kit_graph_order(pointers, len(outputs), order):
        raise OutOfMemory(f"no memory to put the nodes of {name} in order")
    try:
        size = max(order.n_nodes, order.n_leafs, 1)
        nbytes = int(lib.ggml_graph_overhead_custom(size, False))
        raw = lib.ggml_init({"mem_size": nbytes, "mem_buffer": ffi.NULL, "no_alloc": True})
        if raw == ffi.NULL:
            raise OutOfMemory(f"no memory for {name} of {order.n_nodes} nodes", nbytes=nbytes)
        handle = lib.ggml_new_graph_custom(raw, size, False)
        lib.kit_graph_fill(handle, order)
        entry = ledger.Resource(
            "context", nbytes, name, outputs[0].core.name, "metadata", address=int(ffi.cast("uintptr_t", raw))
        )
        number = ledger.opened(entry)
        native = _Native(raw, handle, int(order.n_nodes), int(order.n_leafs), number)
        return native, _find_leaves(order, cores)
    finally:
        lib.kit_order_free(order)


def _all_cores(outputs: Sequence[Tensor], backend: Backend) -> list[tuple[Core, int]]:
    """Return every context the outputs reach, with its generation."""
    stack = list(dict.fromkeys(tensor.core for tensor in outputs))
    found: dict[Core, int] = {}
    while stack:
        core = stack.pop()
        if core in found:
            continue
        core.check()
        if core.backend is not backend:
            raise ArgumentError(
                f"context {core.name!r} belongs to another backend; copy its values over with numpy() and set()"
            )
        found[core] = core.generation
        stack += core.depends
    return list(found.items())


def _find_leaves(order: Any, cores: Sequence[Core]) -> list[_Leaf]:
    found = []
    for raw in order.leafs[0 : order.n_leafs]:
        address = int(ffi.cast("uintptr_t", raw))
        core = next((core for core in cores if address in core.leaves), None)
        if core is not None:
            found.append(_Leaf(raw, address, core, bool(raw.flags & lib.GGML_TENSOR_FLAG_INPUT)))
    return found


def _describe(index: int, raw: Any) -> Node:
    sources = tuple(text(raw.src[i].name) for i in range(lib.GGML_MAX_SRC) if raw.src[i] != ffi.NULL)
    return Node(
        index=index,
        name=text(raw.name),
        op=text(lib.ggml_op_desc(raw)),
        ne=tuple(int(e) for e in raw.ne[0 : max(1, lib.ggml_n_dims(raw))]),
        dtype=dtype_by_id(raw.type).name,
        nbytes=int(lib.ggml_nbytes(raw)),
        sources=sources,
        is_view=raw.view_src != ffi.NULL,
    )
