"""The tensors a llama file must and may hold, with the extents each must have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kit.core.dtypes import dtype_of
from kit.core.gguf import GGUFFile
from kit.core.native import ffi, lib
from kit.errors import GGUFError, MissingKey, UnsupportedModel
from kit.models.architecture.config import LlamaConfig
from kit.units import ne_text

_OLD_EXPERT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.\d+\.weight")


@dataclass(frozen=True)
class Expected:
    """One tensor: its ``ne`` (ggml order) and whether the model works without it.

    ``matrix`` is False for what ggml adds to or multiplies with activations element by element: those are f32.
    """

    name: str
    ne: tuple[int, ...]
    optional: bool = False
    matrix: bool = True


def expected_tensors(config: LlamaConfig, present: Collection[str] = ()) -> Iterator[Expected]:
    """Yield every tensor of a llama file, in the order of computation.

    ``present`` are the names a file has: where it has a joined tensor, that one is expected and not its parts.
    """
    embd = config.n_embd
    yield Expected("token_embd.weight", (embd, config.n_vocab))
    longrope = config.rope.scaling == "longrope"
    for name in ("rope_factors_long", "rope_factors_short") if longrope else ("rope_freqs",):
        yield _vector(f"{name}.weight", config.rope.n_dims // 2, optional=not longrope)
    for i in range(config.n_layer):
        yield from _attention(config, i, present)
        yield _vector(f"blk.{i}.ffn_norm.weight", embd)
        yield from _experts(config, i, present) if config.n_expert else _feed_forward(config, i, present)
    yield _vector("output_norm.weight", embd)
    yield Expected("output.weight", (embd, config.n_vocab), optional=True)
    if "output.weight" in present:
        yield from _scales("output", 1)


def _attention(config: LlamaConfig, i: int, present: Collection[str]) -> Iterator[Expected]:
    at, embd, shape = f"blk.{i}.attn_", config.n_embd, config.layer(i)
    heads, kv = shape.n_head * config.head_dim, shape.n_head_kv * config.head_dim
    yield _vector(at + "norm.weight", embd)
    parts = (("q", heads), ("k", kv), ("v", kv))
    if at + "qkv.weight" in present:
        yield from _matrix(at + "qkv", embd, heads + 2 * kv)
        yield from (_vector(f"{at}{part}.bias", rows, optional=True) for part, rows in parts)
    else:
        for part, rows in parts:
            yield from _matrix(at + part, embd, rows)
    yield from _matrix(at + "output", heads, embd)


def _feed_forward(config: LlamaConfig, i: int, present: Collection[str]) -> Iterator[Expected]:
    at, embd, n_ff = f"blk.{i}.ffn_", config.n_embd, config.layer(i).n_ff
    if at + "gate_up.weight" in present:
        yield from _matrix(at + "gate_up", embd, 2 * n_ff)
    else:
        yield from _matrix(at + "gate", embd, n_ff)
        yield from _matrix(at + "up", embd, n_ff)
    yield from _matrix(at + "down", n_ff, embd)


def _experts(config: LlamaConfig, i: int, present: Collection[str]) -> Iterator[Expected]:
    at, embd, n_ff, count = f"blk.{i}.ffn_", config.n_embd, config.layer(i).n_ff, config.n_expert
    yield Expected(at + "gate_inp.weight", (embd, count))
    merged = at + "gate_up_exps.weight" in present
    inner = {"gate_up_exps": 2 * n_ff} if merged else {"gate_exps": n_ff, "up_exps": n_ff}
    for name, rows in inner.items():
        yield Expected(f"{at}{name}.weight", (embd, rows, count))
        yield from _scales(at + name, count)
    yield Expected(at + "down_exps.weight", (n_ff, embd, count))
    yield from _scales(at + "down_exps", count)


def _matrix(name: str, columns: int, rows: int) -> Iterator[Expected]:
    yield Expected(name + ".weight", (columns, rows))
    yield _vector(name + ".bias", rows, optional=True)
    yield from _scales(name, 1)


def _scales(name: str, count: int) -> Iterator[Expected]:
    """NVFP4's factors; those for inputs are meant for hardware that quantizes inputs, and no graph reads them."""
    yield _vector(name + ".scale", count, optional=True)
    yield _vector(name + ".input_scale", count, optional=True)


def _vector(name: str, n: int, optional: bool = False) -> Expected:
    return Expected(name, (n,), optional, matrix=False)


def check_tensors(file: GGUFFile, config: LlamaConfig) -> None:
    """Compare the file's tensor table with what the model needs.

    Raises:
        MissingKey: a tensor is missing; named. GGUFError: one has other extents; named, with those expected.
        UnsupportedModel: the file has a tensor kit does not know what to do with, or one of a type that no
            operation takes; named.
    """
    _refuse_old_experts(file)
    expected = set()
    for item in expected_tensors(config, file.tensors):
        expected.add(item.name)
        if item.name not in file.tensors:
            if item.optional:
                continue
            near = difflib.get_close_matches(item.name, file.tensors, 1)
            hint = f" (nearest there: {near[0]})" if near else ""
            raise MissingKey(f"{file.path}: tensor {item.name!r} {ne_text(item.ne)} is missing{hint}")
        _check_type(file, item)
        found = file.tensors[item.name].ne
        if _trimmed(found) != _trimmed(item.ne):
            raise GGUFError(
                f"{file.path}: tensor {item.name!r} is {ne_text(found)}; expected {ne_text(item.ne)} (ne, ggml order)"
            )
    unknown = [name for name in file.tensors if name not in expected]
    if unknown:
        others = f" and {len(unknown) - 1} more are none" if len(unknown) > 1 else " is none"
        raise UnsupportedModel(
            f"{file.path}: tensor {unknown[0]!r}{others} kit knows for a {config.architecture} with these keys"
        )


def _refuse_old_experts(file: GGUFFile) -> None:
    old = next(filter(_OLD_EXPERT.fullmatch, file.tensors), None)
    if old is not None:
        raise UnsupportedModel(
            f"{file.path}: tensor {old!r} holds one expert alone, as files did before April 2024; "
            "convert the model again, so that each block has its experts in one tensor (ffn_gate_exps and so on)"
        )


def _check_type(file: GGUFFile, item: Expected) -> None:
    """Norms and biases are f32, as ggml's broadcasting takes them; matrices what its products take."""
    name = file.tensors[item.name].dtype
    if name != "f32" and not (item.matrix and _multiplies(name)):
        expected = "f32, f16, bf16 or a quantized type" if item.matrix else "f32"
        raise UnsupportedModel(f"{file.path}: tensor {item.name!r} is of type {name}; expected {expected}")


def _multiplies(name: str) -> bool:
    dtype = dtype_of(name)
    return name in ("f16", "bf16") or (dtype.quantized and lib.ggml_get_type_traits(dtype.id).to_float != ffi.NULL)


def _trimmed(ne: tuple[int, ...]) -> tuple[int, ...]:
    while len(ne) > 1 and ne[-1] == 1:
        ne = ne[:-1]
    return ne
