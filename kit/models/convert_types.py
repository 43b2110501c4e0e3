"""Which type each tensor of a converted file gets: llama.cpp's choices, as far as llama models need them."""

from __future__ import annotations

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
_GUESSED = 1024


@dataclass(frozen=True)
class Choice:
    """A tensor's type, and in words why it is not the one asked for."""

    dtype: DType
    reason: str = ""


def target_names() -> list[str]:
    """Return the names of all types a file can be converted to."""
    return [dtype.name for dtype in all_dtypes().values() if not _refusal(dtype)]


def target_type(name: str) -> DType:
    """Return the type called ``name``.

    Raises DTypeError for no type, or one weights cannot be converted to.
    """
    dtype = dtype_of(name)
    if why := _refusal(dtype):
        raise DTypeError(f"cannot convert to {dtype.name}: {why}; choose one of {', '.join(target_names())}")
    return dtype


def _refusal(dtype: DType) -> str:
    if not dtype.quantized:
        return "" if dtype.name in ("f32", "f16", "bf16") else "it is no type for weights"
    if dtype.name in _ACTIVATIONS_ONLY:
        return "ggml has it for activations only"
    return "ggml needs an importance matrix for it" if lib.ggml_quantize_requires_imatrix(dtype.id) else ""


def file_type(dtype: DType) -> int:
    """Return the value of ``general.file_type`` for a file mostly of ``dtype``, as the GGUF specification numbers."""
    return _FILE_TYPES.get(dtype.name, _GUESSED)


def choose(name: str, shape: tuple[int, ...], target: DType, *, is_output: bool) -> Choice:
    """Return the type of the tensor ``name`` (GGUF's name, numpy shape) in a file of ``target``.

    ``is_output``: the logits come from it, as from ``output.weight`` or a tied ``token_embd.weight``.
    """
    f32 = dtype_of("f32")
    if len(shape) < 2 or not name.endswith(".weight") or name.endswith("_norm.weight"):
        return Choice(f32)
    if name.endswith("ffn_gate_inp.weight"):
        return Choice(f32, "chooses the experts: never quantized")
    if not target.quantized:
        return Choice(target)
    wanted, reason = target, ""
    if is_output and target.name not in ("q8_0", "q6_K"):
        wanted, reason = dtype_of("q6_K"), "makes the logits: kept finer"
    return _fit(wanted, shape[-1], reason)


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
