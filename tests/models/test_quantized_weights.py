"""Every type ggml can quantize to, as the weights of a whole model, against the float64 pass on the same weights.

ggml's own quantizer makes the weights (but for a few slow ones) and ggml's ``to_float`` says what they are, so
what is left is the rounding of the other factor: ggml turns activations into the type its kernel multiplies with
(``vec_dot_type``).
"""

from __future__ import annotations

import numpy as np
import pytest

import kit
from kit.core.dtypes import DType, all_dtypes, from_array, to_array
from kit.core.native import ffi, lib

from . import tiny
from .reference import forward
from .test_reference import IDS, nmse

WIDTH = 256  # one block of the widest types
SLOW = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s")  # whose quantizers build a table first, for up to a minute
SIZES = {"n_layer": 1, "n_embd": WIDTH, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_ff": WIDTH}
EXPERTS = {"n_expert": 2, "n_expert_used": 2}  # both, for rounding may not decide between them

# Mean squared error of one product over its mean square. Eight bits round with the largest value of a block over
# 127, squared, over 12; the largest of 32 normal values is about 2.1 standard deviations, of 256 some 2.8, and 2.5
# and 3.3 leave room for tails. Floats round with half a unit of their last place, uniformly.
ROUNDED = {"q8_0": (2.5 / 127) ** 2 / 12, "q8_1": (2.5 / 127) ** 2 / 12, "q8_k": (3.3 / 127) ** 2 / 12}
ROUNDED |= {"f16": 2.0**-22 / 12, "bf16": 2.0**-16 / 12}
PRODUCTS = 5  # one after another: into attention, out of it, into an expert, out of it, logits
OF_THE_PASS = 2e-6  # what a pass in f32 with a cache in f16 is off by


def weight_types() -> list[str]:
    return [
        name
        for name, dtype in all_dtypes().items()
        if name in ("f16", "bf16") or (dtype.quantized and lib.ggml_get_type_traits(dtype.id).to_float != ffi.NULL)
    ]


def blocks(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Bytes of a matrix of the shape of ``array`` and about its size: from ggml's quantizer, or drawn."""
    if dtype.name in SLOW:
        return drawn(array, dtype)
    if dtype.name in ("f16", "bf16"):
        return from_array(array, dtype, array.shape, dtype.name)
    rows, columns = int(np.prod(array.shape[:-1])), array.shape[-1]
    out = np.empty(dtype.nbytes(array.size), np.uint8)
    target = ffi.from_buffer("char[]", out, require_writable=True)
    lib.ggml_quantize_chunk(dtype.id, ffi.from_buffer("float[]", array), target, 0, rows, columns, ffi.NULL)
    return out


def drawn(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Blocks of drawn bits, all of one scale: its place is the first two bytes, or (iq1_m) four high half bytes."""
    rng = np.random.default_rng(array.size)
    bits = rng.integers(0, 256, (array.size // dtype.block, dtype.block_nbytes), np.uint8)

    def scaled(scale: float) -> np.ndarray:
        half = int(np.float16(scale).view(np.uint16))
        if dtype.name == "iq1_m":
            scales = bits[:, -8:].view(np.uint16)
            scales &= 0x0FFF
            scales |= np.array([half << 12, half << 8, half << 4, half]).astype(np.uint16) & 0xF000
        else:
            bits[:, :2] = half & 0xFF, half >> 8
        return bits.reshape(-1).copy()

    spread = to_array(scaled(1.0), dtype, array.shape).std()
    return scaled(float(array.std() / spread))


@pytest.mark.parametrize("name", weight_types())
def test_a_model_in_every_type(tmp_path, name):
    dtype = all_dtypes()[name]
    model = tiny.Tiny(**SIZES, **EXPERTS)
    written = {}
    for key, array in model.weights.items():
        if array.ndim > 1 and "gate_inp" not in key:
            raw = blocks(array, dtype)
            model.weights[key] = to_array(raw, dtype, array.shape)
            written[key] = raw, dtype.id
    tiny.write(tmp_path / "model.gguf", model, raw=written)
    expected = forward(model, IDS)
    multiplied = all_dtypes_by_id()[lib.ggml_get_type_traits_cpu(dtype.id).vec_dot_type]
    bound = PRODUCTS * ROUNDED[multiplied] + OF_THE_PASS
    with kit.load(tmp_path / "model.gguf", n_threads=1) as loaded:
        assert loaded.weights["blk.0.attn_q.weight"].dtype.lower() == name
        run = loaded.session(n_ctx=64).run(IDS, keep="embed")
    assert nmse(run["embed"], expected["embed"]) < 1e-12
    assert nmse(run.logits, expected["logits"]) < bound


def all_dtypes_by_id() -> dict[int, str]:
    return {dtype.id: name for name, dtype in all_dtypes().items()}
