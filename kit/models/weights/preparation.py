"""What to make of a file's weights at load: a plan, before a byte is allocated.

Rows of matrices that read the same input are joined into one matrix, in place where they follow each other in
the file; matrices whose type ggml has a faster kernel for are repacked; the others may get a float16 copy
for passes over many tokens. What would go over the memory budget stays as it is in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from kit.checks import is_whole
from kit.core.copies import adjacent, on_host
from kit.core.devices import available_memory, devices
from kit.core.dtypes import DType, dtype_of
from kit.core.repack import repack_type
from kit.core.tensor import Tensor
from kit.errors import ArgumentError
from kit.units import bytes_text

Way = Literal[
    "file", "in place", "joined", "repacked", "split", "offsets", "float16 copy", "split copy", "offsets copy"
]

#: joined name -> what its rows are made of, in this order
JOINS = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "ffn_gate_up": ("ffn_gate", "ffn_up"),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
}
_FAST = ("repacked", "split", "offsets")
_MANY = "for passes over many tokens"
_MATRICES = ("attn_output", "ffn_down", "ffn_down_exps")


@dataclass(frozen=True)
class Prepare:
    """What `kit.load` makes of the weights.

    ``join``: True joins all it can; "auto" only where the file is mapped, so that nothing is held twice.
    ``repack``: "auto" where ggml has a kernel and the file is mapped; True also q4_1, which is split, and weights
    that were read. ``prefill_copy``: what passes over many tokens read in place of weights without a kernel:
    "split" for q4_1, "f16" for float16 copies whether or not they are faster here, "auto" for what is faster.
    ``memory_budget`` is the bytes all of it may take beside the file; default: half of what is available.
    """

    join: bool | Literal["auto"] = "auto"
    repack: bool | Literal["auto"] = "auto"
    prefill_copy: Literal["auto", "f16", "split", False] = "auto"
    memory_budget: int | None = None

    @classmethod
    def of(cls, given: Prepare | str | None) -> Prepare:
        """Return ``given``, or what the words "auto" and "none" stand for.

        Raises:
            ArgumentError: something else.
        """
        if isinstance(given, cls):
            given._check()
            return given
        if given in ("none", None):
            return cls(join=False, repack=False, prefill_copy=False)
        if given == "auto":
            return cls()
        raise ArgumentError(f"prepare is {given!r}; give 'auto', 'none' or a kit.Prepare(...)")

    def _check(self) -> None:
        if self.join not in (True, False, "auto") or self.repack not in (True, False, "auto"):
            raise ArgumentError(f"join is {self.join!r} and repack {self.repack!r}; give True, False or 'auto'")
        if self.prefill_copy not in ("auto", "f16", "split", False):
            raise ArgumentError(f"prefill_copy is {self.prefill_copy!r}; give 'auto', 'f16', 'split' or False")
        budget = self.memory_budget
        if budget is not None and not is_whole(budget, 0):
            raise ArgumentError(f"memory_budget is {budget!r}; give bytes, 0 or more")


@dataclass(frozen=True)
class Part:
    """One matrix or vector as passes read it: ``name``, made of the rows of ``sources``; ``nbytes`` beside the file."""

    name: str
    sources: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    way: Way
    reason: str
    nbytes: int

    @property
    def role(self) -> str:
        """The name without its block."""
        head, _, tail = self.name.partition(".")
        return "blk.*." + tail.partition(".")[2] if head == "blk" else self.name


@dataclass(frozen=True)
class Preparation:
    """The parts every pass uses, those that passes over many tokens use in their place, and the budget."""

    parts: tuple[Part, ...]
    copies: tuple[Part, ...]
    budget: int

    @property
    def nbytes(self) -> int:
        """Bytes beside the file."""
        return sum(part.nbytes for part in (*self.parts, *self.copies))


def plan_preparation(weights: Mapping[str, Tensor], wanted: Prepare, mapped: bool) -> Preparation:
    """Decide what is made of ``weights``; ``mapped`` where the file's pages are read only when used."""
    budget = wanted.memory_budget if wanted.memory_budget is not None else available_memory()[0] // 2
    left = _Left(budget)
    groups = list(_groups(weights, wanted))
    parts = [part for name, sources in groups for part in _decide(weights, name, sources, wanted, mapped, left)]
    fast = llamafile()
    copies = [copy for part in parts for copy in _copies(weights, part, wanted, fast, left)]
    return Preparation(tuple(parts), tuple(copies), budget)


def llamafile() -> bool:
    """Whether this ggml has the fast float16 products of its option GGML_LLAMAFILE."""
    return any("LLAMAFILE" in device.features for device in devices() if device.kind == "cpu")


class _Left:
    """What is left of the budget."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def take(self, nbytes: int) -> bool:
        if nbytes > self.nbytes:
            return False
        self.nbytes -= nbytes
        return True

    def refused(self, nbytes: int) -> str:
        return f"{bytes_text(nbytes)} more would go over the memory budget"


def _groups(weights: Mapping[str, Tensor], wanted: Prepare) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and sources of every matrix of the blocks, and of the output."""
    blocks = list(dict.fromkeys(name.split(".")[1] for name in weights if name.startswith("blk.")))
    for block in blocks:
        at = f"blk.{block}."
        for name, parts in JOINS.items():
            sources = tuple(f"{at}{part}.weight" for part in parts if f"{at}{part}.weight" in weights)
            if wanted.join is not False and len(sources) == len(parts) and _fit(weights, at, parts):
                yield f"{at}{name}.weight", sources
            else:
                yield from ((source, (source,)) for source in sources)
        for name in (*JOINS, *_MATRICES):
            if f"{at}{name}.weight" in weights:
                yield f"{at}{name}.weight", (f"{at}{name}.weight",)
    source = "output.weight" if "output.weight" in weights else "token_embd.weight"
    if source in weights:
        yield "output.weight", (source,)


def _fit(weights: Mapping[str, Tensor], at: str, parts: tuple[str, ...]) -> bool:
    """Whether the matrices have one type and one width, all or none a bias, and no factor of their own."""
    found = [weights[f"{at}{part}.weight"] for part in parts]
    biases = {f"{at}{part}.bias" in weights for part in parts}
    if any(f"{at}{part}.scale" in weights for part in parts) or (True in biases and found[0].ndim == 3):
        return False
    same = {(t.dtype, t.shape[:-2], t.shape[-1]) for t in found}
    return len(same) == 1 and len(biases) == 1 and all(map(on_host, found))


def _decide(
    weights: Mapping[str, Tensor], name: str, sources: tuple[str, ...], wanted: Prepare, mapped: bool, left: _Left
) -> list[Part]:
    """Return the part for ``name`` and for its biases; parts of their own for sources that are not to be joined."""
    tensors = [weights[source] for source in sources]
    dtype, shape = dtype_of(tensors[0].dtype), _stacked(tensors)
    way, reason = _way(tensors, dtype, shape, wanted, mapped, left)
    if way == "file" and len(sources) > 1:
        return [Part(s, (s,), dtype.name, t.shape, way, reason, 0) for s, t in zip(sources, tensors, strict=True)]
    nbytes = sum(tensor.nbytes for tensor in tensors) if way in ("joined", "repacked") else 0
    parts = [Part(name, sources, dtype.name, shape, way, reason, nbytes)]
    if way == "split":
        parts = _split(parts[0], "")
    biases = [source.replace(".weight", ".bias") for source in sources]
    if len(sources) > 1 and biases[0] in weights:
        found = [weights[bias] for bias in biases]
        nbytes = sum(bias.nbytes for bias in found)
        bias_name = name.replace(".weight", ".bias")
        parts.append(Part(bias_name, tuple(biases), "f32", _stacked(found), "joined", "as the matrix", nbytes))
    return parts


def _way(
    tensors: list[Tensor], dtype: DType, shape: tuple[int, ...], wanted: Prepare, mapped: bool, left: _Left
) -> tuple[Way, str]:
    """Return what is done with matrices whose rows are joined, and why."""
    nbytes = sum(tensor.nbytes for tensor in tensors)
    why = "repacking was declined" if wanted.repack is False else "repacking would copy weights that were read"
    if wanted.repack is True or (wanted.repack == "auto" and mapped):
        found = all(map(on_host, tensors)) and repack_type(dtype, shape) is not None
        if found and left.take(nbytes):
            return "repacked", f"ggml has a kernel for {dtype.name}"
        why = left.refused(nbytes) if found else f"no kernel for repacked {dtype.name} here"
        if wanted.repack is True and _splits(dtype, shape) and all(map(on_host, tensors)):
            if left.take(_split_nbytes(shape)):
                return "split", "ggml has a kernel for q4_0, which is most of q4_1"
            why = left.refused(_split_nbytes(shape))
    if len(tensors) == 1:
        return "file", why
    if adjacent(tensors) and len(shape) == 2:
        return "in place", "they follow each other in the file"
    if wanted.join == "auto" and (not mapped or len(shape) == 3):
        return "file", "joining would copy experts" if mapped else "joining would copy weights that were read"
    if left.take(nbytes):
        return "joined", "one product instead of several"
    return "file", left.refused(nbytes)


def _copies(weights: Mapping[str, Tensor], part: Part, wanted: Prepare, fast: bool, left: _Left) -> list[Part]:
    """Return the copy of ``part`` that passes over many tokens read; nothing where it gets none."""
    dtype, choice = dtype_of(part.dtype), wanted.prefill_copy
    on_hosts = all(on_host(weights[source]) for source in part.sources)
    if not choice or not dtype.quantized or len(part.shape) != 2 or part.way in _FAST or not on_hosts:
        return []
    if choice in ("auto", "split") and _splits(dtype, part.shape):
        copies = _split(replace(part, reason=_MANY), " copy")
    elif choice == "f16" or (choice == "auto" and fast):
        nbytes = 2 * math.prod(part.shape)
        copies = [replace(part, dtype="f16", way="float16 copy", reason=_MANY, nbytes=nbytes)]
    else:
        return []
    return copies if left.take(sum(copy.nbytes for copy in copies)) else []


def _splits(dtype: DType, shape: tuple[int, ...]) -> bool:
    """Whether a matrix can be split as `kit.core.copies.split_q4_0` does, and there is a kernel for that."""
    return dtype.name == "q4_1" and len(shape) == 2 and repack_type(dtype_of("q4_0"), shape) is not None


def _split(part: Part, suffix: Literal["", " copy"]) -> list[Part]:
    """Return a q4_1 matrix as one of q4_0, and what is to be added for each block."""
    rows, columns = part.shape
    offsets_nbytes = 2 * rows * _width(columns)
    packed = replace(
        part,
        dtype="q4_0",
        way="split copy" if suffix else "split",
        nbytes=_split_nbytes(part.shape) - offsets_nbytes,
    )
    offsets = replace(
        packed,
        name=part.name.removesuffix("weight") + "offsets",
        dtype="f16",
        shape=(rows, _width(columns)),
        way="offsets copy" if suffix else "offsets",
        nbytes=offsets_nbytes,
    )
    return [packed, offsets]


def _split_nbytes(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] // 32 * 18 + 2 * _width(shape[1]))


def _width(columns: int) -> int:
    """Offsets of a row, in whole 32s: ggml's float16 products run over 32 numbers at a time."""
    return -(-columns // 1024) * 32


def _stacked(tensors: list[Tensor]) -> tuple[int, ...]:
    first = tensors[0].shape
    if len(first) == 1:
        return (sum(tensor.shape[0] for tensor in tensors),)
    return (*first[:-2], sum(tensor.shape[-2] for tensor in tensors), first[-1])
