"""From a checkpoint's tensor names to GGUF's: mapped by the `gguf` package, every shape checked, none left over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import gguf
import numpy as np
import numpy.typing as npt

from kit.core.dtypes import dtype_of
from kit.errors import ConversionError, UnsupportedModel
from kit.models.convert.config import HfConfig
from kit.models.convert.plan import ArraySource, Piece, PlannedTensor
from kit.models.convert.safetensors import Entry
from kit.models.convert.types import Chooser, Target
from kit.units import shape_text

_SUFFIXES = (".weight", ".bias")
_DERIVED = re.compile(r"\.rotary_emb\.inv_freq$|\.masked_bias$|\.attn\.bias$")
_ONE_EXPERT = re.compile(
    r"model\.layers\.(\d+)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight"
)
_ALL_EXPERTS = re.compile(
    r"model\.layers\.(\d+)\.(?:block_sparse_moe|mlp)\.experts\.(gate_up_proj|down_proj)(?:\.weight)?"
)
_ROUTER = re.compile(r"model\.layers\.(\d+)\.(?:block_sparse_moe|mlp)\.gate\.weight")
_LANGUAGE_PART = re.compile(r"^(?:language_model\.(model\.|lm_head\.)|model\.language_model\.)")
_IMAGE_PART = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\.")
_EXPERT_PART = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


@dataclass(frozen=True)
class _Wanted:
    """A tensor the model has to have: its numpy shape and, for q and k, the rows of one head."""

    shape: tuple[int, ...]
    n_pair_rows: int = 0


def plan_tensors(
    checkpoint: Mapping[str, Entry], config: HfConfig, target: Target
) -> tuple[list[PlannedTensor], list[str]]:
    """Return the tensors of the converted file in its order, and the names of those the model does not use.

    Raises:
        UnsupportedModel: a tensor GGUF's llama has no place for, or of a type kit does not read; named.
        ConversionError: a tensor is missing or has another shape than the config says; named.
    """
    if config.n_layer > len(checkpoint):
        raise ConversionError(
            f"{config.path}: {config.n_layer} layers, but the checkpoint has {len(checkpoint)} tensors"
        )
    wanted = dict(_wanted(config))
    found: dict[str, list[Piece]] = {}
    skipped = []
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.n_layer)
    experts: dict[tuple[str, int], Piece] = {}
    for written, entry in checkpoint.items():
        name = _LANGUAGE_PART.sub(_without_part, written) if config.with_images else written
        if _DERIVED.search(name) or (config.tied and name == "lm_head.weight"):
            skipped.append(written)
        elif config.with_images and (match := _IMAGE_PART.match(written)):
            skipped += [match[0] + "*"] if match[0] + "*" not in skipped else []
        elif match := _ONE_EXPERT.fullmatch(name):
            _keep(experts, (_experts_name(match[1], _EXPERT_PART[match[3]]), int(match[2])), entry, _whole(entry))
        elif match := _ALL_EXPERTS.fullmatch(name):
            for key, piece in _split_experts(entry, match, config):
                _keep(experts, key, entry, piece)
        else:
            mapped = _mapped(name, names)
            if mapped not in wanted:
                raise UnsupportedModel(f"{entry.where()}: no llama model of this config has it")
            if mapped in found:
                raise ConversionError(f"{entry.where()}: {mapped} is in the checkpoint twice")
            _check_dtype(entry)
            _check_shape(entry, wanted[mapped].shape, entry.shape)
            found[mapped] = [replace(_whole(entry), n_pair_rows=wanted[mapped].n_pair_rows)]
    _add_experts(found, experts, wanted, config)
    planned = [_computed(name, values) for name, values in config.rope.tensors.items()]
    if missing := next((name for name in wanted if name not in found), None):
        raise ConversionError(f"{config.path.parent}: the checkpoint has no tensor {_original(missing, names)}")
    chooser = Chooser(target, config.n_layer, config.n_expert, config.tied)
    planned += [_planned(name, want.shape, tuple(found[name]), chooser) for name, want in wanted.items()]
    return planned, skipped


def _wanted(config: HfConfig) -> Iterable[tuple[str, _Wanted]]:
    """Yield the name and shape of every tensor the model reads, in file order."""
    n_embd, heads, kv = config.n_embd, config.n_head * config.head_dim, config.n_head_kv * config.head_dim
    yield "token_embd.weight", _Wanted((config.n_vocab, n_embd))
    for layer in range(config.n_layer):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", _Wanted((n_embd,))
        for name, rows, columns, pairs in (
            ("attn_q", heads, n_embd, config.head_dim),
            ("attn_k", kv, n_embd, config.head_dim),
            ("attn_v", kv, n_embd, 0),
            ("attn_output", n_embd, heads, 0),
        ):
            yield f"{at}{name}.weight", _Wanted((rows, columns), pairs)
            if config.attention_bias:
                yield f"{at}{name}.bias", _Wanted((rows,), pairs)
        yield at + "ffn_norm.weight", _Wanted((n_embd,))
        yield from _wanted_feed_forward(at, config)
    yield "output_norm.weight", _Wanted((n_embd,))
    if not config.tied:
        yield "output.weight", _Wanted((config.n_vocab, n_embd))


def _wanted_feed_forward(at: str, config: HfConfig) -> Iterable[tuple[str, _Wanted]]:
    n_embd, n_ff, n_expert = config.n_embd, config.n_ff, config.n_expert
    parts = (("ffn_gate", (n_ff, n_embd)), ("ffn_up", (n_ff, n_embd)), ("ffn_down", (n_embd, n_ff)))
    if n_expert:
        yield at + "ffn_gate_inp.weight", _Wanted((n_expert, n_embd))
    for name, shape in parts:
        if n_expert:
            yield f"{at}{name}_exps.weight", _Wanted((n_expert, *shape))
            continue
        yield f"{at}{name}.weight", _Wanted(shape)
        if config.mlp_bias:
            yield f"{at}{name}.bias", _Wanted(shape[:1])


def _mapped(name: str, names: gguf.TensorNameMap) -> str | None:
    if match := _ROUTER.fullmatch(name):
        return f"blk.{match[1]}.ffn_gate_inp.weight"
    if not name.startswith(("model.", "lm_head.")):
        return None  # other spellings of these tensors have their rotated pairs elsewhere
    found: str | None = names.get_name(name, try_suffixes=_SUFFIXES)
    return found


def _without_part(match: re.Match[str]) -> str:
    return match[1] or "model."


def _original(name: str, names: gguf.TensorNameMap) -> str:
    """Return the Hugging Face name of what becomes ``name``, for a message."""
    base, _, suffix = name.rpartition(".")
    found = (key for key, (_, mapped) in names.mapping.items() if mapped == base)
    return next((f"{key}.{suffix} ({name})" for key in found if key.startswith(("model.", "lm_head"))), name)


def _experts_name(layer: str, part: str) -> str:
    return f"blk.{layer}.ffn_{part}_exps.weight"


def _split_experts(entry: Entry, match: re.Match[str], config: HfConfig) -> Iterable[tuple[tuple[str, int], Piece]]:
    """Yield the parts of a tensor that holds all experts; of gate_up_proj the first half of an expert is its gate."""
    joined = match[2] == "gate_up_proj"
    parts = ("gate", "up") if joined else ("down",)
    shape = (2 * config.n_ff, config.n_embd) if joined else (config.n_embd, config.n_ff)
    _check_dtype(entry)
    _check_shape(entry, (config.n_expert, *shape), entry.shape)
    rows = shape[0] // len(parts)
    for expert in range(config.n_expert):
        for number, part in enumerate(parts):
            first = expert * shape[0] + number * rows
            yield (_experts_name(match[1], part), expert), Piece(entry, first, rows)


def _add_experts(
    found: dict[str, list[Piece]],
    experts: dict[tuple[str, int], Piece],
    wanted: Mapping[str, _Wanted],
    config: HfConfig,
) -> None:
    """Stack the experts of each block, checked one by one."""
    for (name, expert), piece in sorted(experts.items(), key=lambda item: item[0]):
        entry = piece.source
        assert isinstance(entry, Entry)
        if name not in wanted or expert >= config.n_expert:
            raise UnsupportedModel(f"{entry.where()}: no llama model of this config has it")
        _check_dtype(entry)
        _check_shape(entry, wanted[name].shape[1:], (piece.n_rows, entry.n_columns))
        stack = found.setdefault(name, [])
        if len(stack) != expert:
            raise ConversionError(f"{config.path.parent}: expert {len(stack)} of {name} is missing")
        stack.append(piece)
    for name, pieces in found.items():
        if name.endswith("_exps.weight") and len(pieces) != config.n_expert:
            raise ConversionError(f"{config.path.parent}: expert {len(pieces)} of {name} is missing")


def _keep(experts: dict[tuple[str, int], Piece], key: tuple[str, int], entry: Entry, piece: Piece) -> None:
    if key in experts:
        raise ConversionError(f"{entry.where()}: expert {key[1]} of {key[0]} is in the checkpoint twice")
    experts[key] = piece


def _whole(entry: Entry) -> Piece:
    return Piece(entry, 0, entry.n_rows)


def _check_dtype(entry: Entry) -> None:
    if entry.dtype not in ("F32", "F16", "BF16"):
        raise UnsupportedModel(
            f"{entry.path}: tensor {entry.name!r} has dtype {entry.dtype}; kit reads F32, F16 and BF16 weights"
        )


def _check_shape(entry: Entry, expected: tuple[int, ...], found: tuple[int, ...]) -> None:
    if found != expected:
        raise ConversionError(
            f"{entry.path}: tensor {entry.name!r} has shape {shape_text(found)}; the config says {shape_text(expected)}"
        )


def _computed(name: str, values: npt.NDArray[np.float32]) -> PlannedTensor:
    source = ArraySource(name, values)
    return PlannedTensor(name, values.shape, dtype_of("f32"), (Piece(source, 0, 1),), "computed")


def _planned(name: str, shape: tuple[int, ...], pieces: tuple[Piece, ...], chooser: Chooser) -> PlannedTensor:
    choice = chooser.choose(name, shape)
    source = pieces[0].source
    return PlannedTensor(name, shape, choice.dtype, pieces, str(getattr(source, "dtype", "")).lower(), choice.reason)
