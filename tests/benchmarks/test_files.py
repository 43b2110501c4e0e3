"""What a file asks of a machine, counted by hand for a small one."""

import pathlib

import gguf
import numpy as np
import pytest

import kit
from benchmarks import files

N_EMBD, N_FF, N_VOCAB = 64, 96, 40


def _write(path: pathlib.Path, tied: bool) -> pathlib.Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(N_EMBD)
    shapes = {"token_embd.weight": (N_VOCAB, N_EMBD), "blk.0.ffn_up.weight": (N_FF, N_EMBD)}
    if not tied:
        shapes["output.weight"] = (N_VOCAB, N_EMBD)
    for name, shape in shapes.items():
        data = gguf.quants.quantize(np.ones(shape, np.float32), gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(N_EMBD, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_is_read_once_a_token(tmp_path: pathlib.Path, tied: bool) -> None:
    path = _write(tmp_path / "small.gguf", tied)
    q8_0 = 34 / 32  # bytes a weight: 32 of one byte and a float16 scale
    expected = N_VOCAB * N_EMBD * q8_0 + N_FF * N_EMBD * q8_0 + N_EMBD * 4
    assert files.bytes_per_token(path) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_multiply_adds_of_a_prefill(tmp_path: pathlib.Path, tied: bool) -> None:
    path = _write(tmp_path / "small.gguf", tied)
    pairs = 1 + 2 + 3  # the first token sees itself, the second two, the third three
    expected = 3 * N_FF * N_EMBD + N_VOCAB * N_EMBD + 2 * N_EMBD * pairs
    assert files.multiply_adds(path, 3) == expected


def test_contents_name_the_types_by_bytes(tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path / "small.gguf", True)
    assert files.contents(path) == "Q8_0 97%, F32 3%"


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("type_name", list(files.TYPES))
def test_each_type_is_made_by_llama_cpps_quantizer(type_name: str) -> None:
    path = files.model_file(type_name)
    # 576 columns are no multiple of 256: there Q4_K is written as Q5_0
    most = {"Q4_K": "Q5_0"}.get(type_name, type_name)
    assert most in files.contents(path)
    with kit.load(path, progress=False, n_threads=1) as model, model.session(n_ctx=64) as session:
        assert np.isfinite(session.run([1, 2, 3]).logits).all()
