"""A lab for attention: the same step with three copies, one, none, and fused; nodes, compute buffer, time, error.

The cells of a cache hold one token's keys and values after another's; the two products of attention want them by head.
Copying all three operands into order is what graphs do that know nothing of the cache; `plain` copies the values;
`permuted` writes each value where the product will look for it; `flash` needs no order at all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kit.checks import is_whole
from kit.core import ops, transfer
from kit.core.apart import ApartGraph
from kit.core.backend import Backend
from kit.core.context import Context
from kit.core.tensor import Tensor
from kit.errors import ArgumentError
from kit.models.architecture.attention import Kind, attend, mask_dtype
from kit.models.architecture.config import LlamaConfig
from kit.units import bytes_text, time_text

_LARGEST = 1 << 28
_BUDGET_S = 0.2


@dataclass(frozen=True)
class LabShape:
    """What is computed: ``n_tokens`` queries over ``n_kv`` cells; the default is one token of a model of 1B.

    Raises:
        ArgumentError: a size that is none, or heads that do not divide.
    """

    n_head: int = 32
    n_head_kv: int = 8
    head_dim: int = 64
    n_kv: int = 4096
    n_tokens: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not is_whole(value, 1, _LARGEST):
                raise ArgumentError(f"{name} is {value!r}; give a whole number from 1 to {_LARGEST}")
        if self.n_head % self.n_head_kv:
            raise ArgumentError(f"n_head is {self.n_head}, which {self.n_head_kv} kv heads do not divide")
        if self.n_kv * self.n_head * (self.head_dim + self.n_tokens) > _LARGEST:
            raise ArgumentError(f"{self} is more than the lab takes; make n_kv or n_tokens smaller")
        if self.n_tokens > self.n_kv:
            raise ArgumentError(f"n_tokens is {self.n_tokens}: their own cells are among the n_kv={self.n_kv}")

    @classmethod
    def of(cls, config: LlamaConfig, n_kv: int, n_tokens: int = 1) -> LabShape:
        """Return the shape of a model's first block."""
        layer = config.layer(0)
        return cls(layer.n_head, layer.n_head_kv, config.head_dim, n_kv, n_tokens)

    def __str__(self) -> str:
        tokens = "1 token" if self.n_tokens == 1 else f"{self.n_tokens} tokens"
        return f"{tokens} over {self.n_kv} cells, {self.n_head}/{self.n_head_kv} heads of {self.head_dim}"


@dataclass(frozen=True)
class LabRow:
    """One way to do it. ``nmse`` is the mean squared error over the mean square, against float64."""

    name: str
    n_copies: int
    n_nodes: int
    compute_nbytes: int
    time_ns: int
    nmse: float


@dataclass(frozen=True)
class LabReport:
    """What `attention_lab` measured; ``rows`` from most copies to none."""

    shape: LabShape
    rows: tuple[LabRow, ...]

    def text(self) -> str:
        """Return the rows as a table."""
        lines = [
            f"attention of {self.shape}",
            f"{'':<14}{'copies':>7}{'nodes':>7}{'compute':>12}{'time':>11}{'error':>10}",
        ]
        lines += [
            f"{row.name:<14}{row.n_copies:>7}{row.n_nodes:>7}{bytes_text(row.compute_nbytes):>12}"
            f"{time_text(row.time_ns):>11}{row.nmse:>10.1e}"
            for row in self.rows
        ]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The figures, ready for JSON."""
        return {"shape": asdict(self.shape), "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        return self.text()


def attention_lab(
    shape: LabShape | None = None, backend: Backend | None = None, n_repeats: int | None = None
) -> LabReport:
    """Measure the four ways on random values.

    Args:
        shape: what is computed.
        backend: where; default: one of its own, on the CPU.
        n_repeats: timed runs of each; default: a fifth of a second.

    Raises:
        OutOfMemory: no room for cache or compute buffer.
    """
    wanted = shape or LabShape()
    if backend is None:
        with Backend() as own:
            return attention_lab(wanted, own, n_repeats)
    bench = _Bench(wanted, backend)
    ways: tuple[tuple[str, Kind, Callable[..., Tensor]], ...] = (
        ("three copies", "plain", _three_copies),
        ("one copy", "plain", _attend("plain")),
        ("permuted", "permuted", _attend("permuted")),
        ("flash", "flash", _attend("flash")),
    )
    return LabReport(wanted, tuple(bench.row(name, kind, build, n_repeats) for name, kind, build in ways))


def _attend(kind: Kind) -> Callable[..., Tensor]:
    return lambda *operands: attend(kind, *operands).heads


def _three_copies(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, n_kv: int, n_head_kv: int) -> Tensor:
    head_dim = q.shape[-1]
    queries = ops.cont(ops.permute(q, (1, 0, 2)))
    k = ops.cont(ops.permute(keys[:n_kv].reshape(n_kv, n_head_kv, head_dim), (1, 0, 2)))
    v = ops.cont(ops.permute(values[:n_kv].reshape(n_kv, n_head_kv, head_dim), (1, 2, 0)))
    scores = ops.soft_max_ext(ops.mul_mat(k, queries), mask, head_dim**-0.5)
    return ops.cont(ops.permute(ops.mul_mat(v, scores), (1, 0, 2)))


class _Bench:
    """The operands, the same for every way, and the result in float64."""

    def __init__(self, shape: LabShape, backend: Backend) -> None:
        rng = np.random.default_rng(0)
        self.shape = shape
        self.backend = backend
        width = shape.n_head_kv * shape.head_dim
        self.q = rng.standard_normal((shape.n_tokens, shape.n_head, shape.head_dim)).astype(np.float32)
        self.k, self.v = (rng.standard_normal((shape.n_kv, width)).astype(np.float16) for _ in range(2))
        cells = np.arange(shape.n_kv)[None, :] - (shape.n_kv - shape.n_tokens)
        self.mask = np.where(cells <= np.arange(shape.n_tokens)[:, None], 0, -np.inf).astype(np.float32)
        self.expected = self._reference()

    def row(self, name: str, kind: Kind, build: Callable[..., Tensor], n_repeats: int | None) -> LabRow:
        """Build, run and time one way."""
        shape = self.shape
        with Context(self.backend, name=f"attention lab, {name}", slots=64) as context:
            values = self._values(kind)
            leaves: dict[Tensor, npt.NDArray[Any]] = {
                context.input(self.q.shape, "f32", "q"): self.q,
                context.tensor(self.k.shape, "f16", "keys"): self.k,
                context.tensor(values.shape, "f16", "values"): values,
                context.input(self.mask.shape, mask_dtype(kind), "mask"): self.mask,
            }
            heads = build(*leaves, shape.n_kv, shape.n_head_kv)
            for leaf, array in leaves.items():
                leaf.set(array)
            graph = context.graph(heads)
            apart = ApartGraph(graph, "the attention lab")
            try:
                nbytes, times = apart.nbytes, _timed(apart.compute, n_repeats)
                found = transfer.read(heads).astype(np.float64)
            finally:
                apart.close()
            copies = sum(node.op == "CONT" for node in graph)
            error = float(np.mean((found - self.expected) ** 2) / np.mean(self.expected**2))
            return LabRow(name, copies, graph.n_nodes, nbytes, int(statistics.median(times)), error)

    def _values(self, kind: Kind) -> npt.NDArray[np.float16]:
        """Return the values as ``kind`` stores them."""
        if kind != "permuted":
            return self.v
        shape = self.shape
        return np.ascontiguousarray(self.v.T).reshape(shape.n_head_kv, shape.head_dim, shape.n_kv)

    def _reference(self) -> npt.NDArray[np.float64]:
        """Softmax attention by its definition, over the rounded keys and values: (tokens, heads, head_dim)."""
        shape = self.shape
        by_head = (shape.n_kv, shape.n_head_kv, shape.head_dim)
        group = shape.n_head // shape.n_head_kv
        k = self.k.astype(np.float64).reshape(by_head).repeat(group, 1)
        v = self.v.astype(np.float64).reshape(by_head).repeat(group, 1)
        logits = np.einsum("thd,chd->htc", self.q.astype(np.float64), k) * shape.head_dim**-0.5 + self.mask
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        heads: npt.NDArray[np.float64] = np.einsum("htc,chd->thd", weights, v)
        return heads


def _timed(compute: Callable[[], None], n_repeats: int | None) -> list[int]:
    """Return the time of each run in ns; the first run, which warms up, does not count."""
    compute()
    times: list[int] = []
    started = time.perf_counter()
    while len(times) < (n_repeats or 1) or (n_repeats is None and time.perf_counter() - started < _BUDGET_S):
        before = time.perf_counter_ns()
        compute()
        times.append(time.perf_counter_ns() - before)
    return times
