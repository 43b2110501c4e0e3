"""Which type each tensor of a converted file gets: llama.cpp's choices, as far as llama models need them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kit.core.dtypes import DType, all_dtypes, dtype_of
from kit.core.native import lib
from kit.errors import DTypeError

_ACTIVATIONS_ONLY = ("q8_1", "q8_K")
# Where a row is no whole number of 256-blocks, llama.cpp takes the 32-block type of about as many bits.
_NARROWER = {"q2_K": "q4_0", "q3_K": "q4_0", "q4_K": "q5_0", "q5_K": "q5_1", "q6_K": "q8_0"}
_NARROWER |= {"tq1_0": "q4_0", "tq2_0": "q4_0", "q2_0": "q4_0"}
_FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_K": 10, "q3_K": 11}
_FILE_TYPES |= {"q4_K": 14, "q5_K": 16, "q6_K": 18, "iq3_xxs": 23, "iq4_nl": 25, "iq3_s": 26, "iq2_s": 28, "bf16": 32}
_FILE_TYPES |= {"iq4_xs": 30, "tq1_0": 36, "tq2_0": 37, "mxfp4": 38, "nvfp4": 39, "q1_0": 40}
_MIXES = {"q4_K_S": 14, "q4_K_M": 15, "q5_K_S": 16, "q5_K_M": 17}
_GUESSED = 1024
_IN_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


@dataclass(frozen=True)
class Target:
    """What a file is converted to: one type, or one of llama.cpp's mixes, in which some layers get a finer one."""

    name: str
    dtype: DType
    mix: str = ""


@dataclass(frozen=True)
class Choice:
    """A tensor's type, and in words why it is not the one asked for."""

    dtype: DType
    reason: str = ""


def target_names() -> list[str]:
    """Return the names of all types a file can be converted to."""
    return [dtype.name for dtype in all_dtypes().values() if not _refusal(dtype)]


def target_type(name: str) -> Target:
    """Return what ``name`` stands for: a type, or a mix as ``q4_K_M``.

    Raises DTypeError for no type, or one weights cannot be converted to.
    """
    if not isinstance(name, str):
        raise DTypeError(f"{name!r} is no name of a type; choose one of {', '.join([*target_names(), *_MIXES])}")
    mixed = next((known for known in _MIXES if known.lower() == name.lower()), None)
    if mixed is not None:
        return Target(mixed, dtype_of(mixed[:-2]), mixed[-1])
    dtype = dtype_of(name)
    if why := _refusal(dtype):
        known = ", ".join([*target_names(), *_MIXES])
        raise DTypeError(f"cannot convert to {dtype.name}: {why}; choose one of {known}")
    return Target(dtype.name, dtype)


def _refusal(dtype: DType) -> str:
    if not dtype.quantized:
        return "" if dtype.name in ("f32", "f16", "bf16") else "it is no type for weights"
    if dtype.name in _ACTIVATIONS_ONLY:
        return "ggml has it for activations only"
    return "ggml needs an importance matrix for it" if lib.ggml_quantize_requires_imatrix(dtype.id) else ""


def file_type(target: Target) -> int:
    """Return the value of ``general.file_type`` for a file of ``target``, as the GGUF specification numbers them."""
    return _MIXES.get(target.name, _FILE_TYPES.get(target.dtype.name, _GUESSED))


@dataclass(frozen=True)
class Chooser:
    """Chooses the types of one model's tensors; ``tied``: its logits come from ``token_embd.weight``."""

    target: Target
    n_layer: int
    n_expert: int
    tied: bool

    def choose(self, name: str, shape: tuple[int, ...]) -> Choice:
        """Return the type of the tensor ``name`` (GGUF's name, numpy shape)."""
        f32, wanted = dtype_of("f32"), self.target.dtype
        if len(shape) < 2 or not name.endswith(".weight") or name.endswith("_norm.weight"):
            return Choice(f32)
        if name.endswith("ffn_gate_inp.weight"):
            return Choice(f32, "chooses the experts: never quantized")
        if not wanted.quantized:
            return Choice(wanted)
        if name == ("token_embd.weight" if self.tied else "output.weight"):
            finer = wanted if wanted.name in ("q8_0", "q6_K") else dtype_of("q6_K")
            return _fit(finer, shape[-1], "" if finer is wanted else "makes the logits: kept finer")
        place = _IN_BLOCK.fullmatch(name)
        layer_finer = self._finer(int(place[1]), place[2]) if place else None
        if layer_finer is None:
            return _fit(wanted, shape[-1], "")
        return _fit(dtype_of(layer_finer), shape[-1], f"{self.target.name} keeps it finer")

    def _finer(self, layer: int, part: str) -> str | None:
        """Return the type of a matrix that matters more than others, or None; llama.cpp's rules."""
        is_value, is_down = part in ("attn_v", "attn_qkv"), part in ("ffn_down", "ffn_down_exps")
        if self.n_expert == 8 and (is_value or part == "attn_k"):
            return "q8_0"  # small beside eight experts
        if self.n_expert == 8 and part == "attn_output" and self.target.mix and self.target.dtype.name == "q4_K":
            return "q5_K"
        eighth = self.n_layer // 8
        outer = layer < eighth or layer >= 7 * self.n_layer // 8 or (layer - eighth) % 3 == 2
        if self.target.mix == "M" and (is_value or is_down) and outer:
            return "q6_K"
        if self.target.name == "q4_K_S" and ((is_value and layer < 4) or (is_down and layer < eighth)):
            return "q5_K"
        return None


def _fit(wanted: DType, n_columns: int, reason: str) -> Choice:
    """Return ``wanted`` or, where a row is no whole number of its blocks, a type that fits."""
    dtype = wanted
    if n_columns % dtype.block and dtype.block > 32:
        dtype = dtype_of(_NARROWER.get(dtype.name, "iq4_nl" if dtype.name.startswith("iq") else "q8_0"))
    if n_columns % dtype.block:
        dtype = dtype_of("f16")
    if dtype == wanted:
        return Choice(dtype, reason)
    blocks = f"rows of {n_columns} are no whole blocks of {wanted.block} ({wanted.name})"
    return Choice(dtype, f"{reason}; {blocks}" if reason else blocks)
