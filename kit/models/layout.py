"""The tensors a llama file must and may hold, with the extents each must have."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

from kit.core.dtypes import dtype_of
from kit.core.gguf import GGUFFile
from kit.core.native import ffi, lib
from kit.errors import GGUFError, MissingKey, UnsupportedModel
from kit.models.config import LlamaConfig
from kit.units import ne_text


@dataclass(frozen=True)
class Expected:
    """One tensor: its ``ne`` (ggml order) and whether the model works without it."""

    name: str
    ne: tuple[int, ...]
    optional: bool = False


def expected_tensors(config: LlamaConfig) -> Iterator[Expected]:
    """Yield every tensor of a llama file, in the order of computation."""
    embd, heads, kv, ff = config.n_embd, config.n_head * config.head_dim, config.n_embd_kv, config.n_ff
    yield Expected("token_embd.weight", (embd, config.n_vocab))
    yield Expected("rope_freqs.weight", (config.n_rot // 2,), optional=True)
    for i in range(config.n_layer):
        yield from (
            Expected(f"blk.{i}.attn_norm.weight", (embd,)),
            Expected(f"blk.{i}.attn_q.weight", (embd, heads)),
            Expected(f"blk.{i}.attn_k.weight", (embd, kv)),
            Expected(f"blk.{i}.attn_v.weight", (embd, kv)),
            Expected(f"blk.{i}.attn_q.bias", (heads,), optional=True),
            Expected(f"blk.{i}.attn_k.bias", (kv,), optional=True),
            Expected(f"blk.{i}.attn_v.bias", (kv,), optional=True),
            Expected(f"blk.{i}.attn_output.weight", (heads, embd)),
            Expected(f"blk.{i}.attn_output.bias", (embd,), optional=True),
            Expected(f"blk.{i}.ffn_norm.weight", (embd,)),
            Expected(f"blk.{i}.ffn_gate.weight", (embd, ff)),
            Expected(f"blk.{i}.ffn_up.weight", (embd, ff)),
            Expected(f"blk.{i}.ffn_down.weight", (ff, embd)),
        )
    yield Expected("output_norm.weight", (embd,))
    yield Expected("output.weight", (embd, config.n_vocab), optional=True)


def check_tensors(file: GGUFFile, config: LlamaConfig) -> None:
    """Compare the file's tensor table with what the model needs.

    Raises:
        MissingKey: a tensor is missing; named. GGUFError: one has other extents; named, with those expected.
        UnsupportedModel: the file has a tensor kit does not know what to do with, or one of a type that no
            operation takes; named.
    """
    expected = set()
    for item in expected_tensors(config):
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
        raise UnsupportedModel(
            f"{file.path}: tensor {unknown[0]!r} and {len(unknown) - 1} more are none kit knows for a llama"
        )


def _check_type(file: GGUFFile, item: Expected) -> None:
    """Norms and biases are f32, as ggml's broadcasting takes them; matrices what its products take."""
    name = file.tensors[item.name].dtype
    vector = len(item.ne) == 1
    if name != "f32" and (vector or not _multiplies(name)):
        expected = "f32" if vector else "f32, f16, bf16 or a quantized type"
        raise UnsupportedModel(f"{file.path}: tensor {item.name!r} is of type {name}; expected {expected}")


def _multiplies(name: str) -> bool:
    dtype = dtype_of(name)
    return name in ("f16", "bf16") or (dtype.quantized and lib.ggml_get_type_traits(dtype.id).to_float != ffi.NULL)


def _trimmed(ne: tuple[int, ...]) -> tuple[int, ...]:
    while len(ne) > 1 and ne[-1] == 1:
        ne = ne[:-1]
    return ne
