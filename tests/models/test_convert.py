"""Checkpoints become GGUF files that give the same logits, whatever their shape, storage and type."""

from __future__ import annotations

import hashlib
import re

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

import kit
from kit.cli import main
from kit.models.convert.types import target_names

from .checkpoint import N_TOKENS, Checkpoint, forward, frequencies

IDS = [259, 100, 7, 42, 42, 250, 3, 99, 180, 12, 5]
NMSE = 2e-6  # as in test_reference.py: keys, values and attention weights pass through float16

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
KINDS = {
    "grouped": {},
    "untied": {"tied": False},
    "one kv head": {"n_head_kv": 1},
    "biased": {"biases": True, "tied": False},
    "wide heads": {"n_embd": 96, "head_dim": 32, "rope_base": 1e6},
    "half precision": {"stored": "F16"},
    "brain floats": {"stored": "BF16"},
    "linear": {"fields": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}},
    "llama3": {"fields": {"rope_scaling": LLAMA3}},
    "llama3, new spelling": {"fields": {"rope_parameters": LLAMA3 | {"rope_theta": 10000.0}, "rope_theta": "absent"}},
}
# Error of random normal weights over their square, twice what was found: a wrong row or block gives about 2.
BITS = {"q8_0": 1e-4, "bf16": 1e-5, "f16": 1e-6, "f32": 0, "q1_0": 0.8, "tq1_0": 1.4, "tq2_0": 1.4, "iq1_m": 0.7}
BITS |= {"q4": 0.015, "q5": 4e-3, "q6": 7e-4, "q2_K": 0.2, "q2_0": 0.8, "q3": 0.05, "iq2": 0.15, "iq3": 0.1}
BITS |= {"iq4": 0.012, "mxfp4": 0.03, "nvfp4": 0.02}
SLOW = ("iq1_m", "iq2_s")  # ggml makes tables for half a minute first
TYPES = [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in target_names()]


def nmse(found, expected):
    assert found.shape == expected.shape
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


def logits(path):
    with kit.load(path, n_threads=1) as model:
        return model.session(n_ctx=64).run(IDS).logits


def tensor(path, name):
    return kit.GGUFFile(path).read(name).astype(np.float32)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.gguf"


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_checkpoint(kind, tmp_path, out):
    model = Checkpoint(**KINDS[kind])
    kit.convert(model.write(tmp_path / "hf"), out, "f32", progress=False)
    assert nmse(logits(out), forward(model, IDS)) < NMSE


def test_a_sharded_checkpoint_gives_the_same_file(tmp_path):
    model = Checkpoint()
    for shards in (1, 3):
        folder = model.write(tmp_path / str(shards) / "hf", shards=shards)
        kit.convert(folder, tmp_path / f"{shards}.gguf", progress=False, n_threads=shards)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


@pytest.mark.parametrize("name", TYPES)
def test_every_type_holds_the_weights(name, tmp_path, out):
    model = Checkpoint(n_layer=1, n_embd=256, n_ff=256, head_dim=64)
    done = kit.convert(model.write(tmp_path / "hf"), out, name, progress=False, n_threads=1)
    (row,) = [row for row in done.tensors if row.name == "blk.0.ffn_down.weight"]
    assert (row.dtype, done.dtype) == (name, name)
    expected = model.weights["model.layers.0.mlp.down_proj.weight"]
    bound = next(bound for key, bound in sorted(BITS.items(), reverse=True) if name.startswith(key))
    assert nmse(tensor(out, "blk.0.ffn_down.weight"), expected) <= bound
    assert np.isfinite(logits(out)).all()


@pytest.mark.parametrize("name", ["q4_0", "q5_1", "q8_0", "bf16"])
def test_quantized_bytes_are_those_of_the_gguf_package(name, tmp_path, out):
    # The package's numpy quantizers share no code with ggml; they round the same way.
    model = Checkpoint(n_layer=1)
    kit.convert(model.write(tmp_path / "hf"), out, name, progress=False)
    found = next(t for t in gguf.GGUFReader(out).tensors if t.name == "blk.0.ffn_up.weight")
    weights = model.weights["model.layers.0.mlp.up_proj.weight"]
    expected = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[name.upper()])
    assert np.mean(found.data.reshape(expected.shape) != expected) < 1e-3


def test_what_stays_finer_and_what_does_not_fit_is_said(tmp_path, out):
    model = Checkpoint(n_layer=1, n_embd=256, n_ff=96, head_dim=64, tied=False)
    done = kit.convert(model.write(tmp_path / "hf"), out, "q4_K", progress=False)
    types = {row.name.removeprefix("blk.0."): (row.dtype, row.reason) for row in done.tensors}
    assert types["attn_q.weight"] == ("q4_K", "")
    assert types["attn_norm.weight"] == ("f32", "")
    assert types["output.weight"] == ("q6_K", "makes the logits: kept finer")
    assert types["ffn_down.weight"] == ("q5_0", "rows of 96 are no whole blocks of 256 (q4_K)")
    file = kit.GGUFFile(out)
    assert {info.name: info.dtype for info in file.tensors.values()} == {row.name: row.dtype for row in done.tensors}
    assert file.metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_K_S


@pytest.mark.parametrize(
    ("name", "finer", "dtype", "number"),
    [
        # llama.cpp: the outer eighths and every third block between them; of the small mix the first blocks alone.
        ("q4_K_M", {"attn_v": {0, 3, 6, 7}, "ffn_down": {0, 3, 6, 7}}, "q6_K", gguf.LlamaFileType.MOSTLY_Q4_K_M),
        ("q5_K_M", {"attn_v": {0, 3, 6, 7}, "ffn_down": {0, 3, 6, 7}}, "q6_K", gguf.LlamaFileType.MOSTLY_Q5_K_M),
        ("q4_K_S", {"attn_v": {0, 1, 2, 3}, "ffn_down": {0}}, "q5_K", gguf.LlamaFileType.MOSTLY_Q4_K_S),
        ("q5_K_S", {}, "", gguf.LlamaFileType.MOSTLY_Q5_K_S),
    ],
)
def test_mixes_keep_some_layers_finer(name, finer, dtype, number, tmp_path, out):
    model = Checkpoint(n_layer=8, n_embd=256, n_ff=256, head_dim=64)
    done = kit.convert(model.write(tmp_path / "hf"), out, name.upper(), progress=False, n_threads=1)
    assert (done.dtype, kit.GGUFFile(out).metadata["general.file_type"]) == (name, number)
    found = {}
    for row in done.tensors:
        if row.name.startswith("blk.") and row.dtype not in ("f32", name[:4]):
            _, layer, part, _ = row.name.split(".")
            assert row.dtype == dtype
            found.setdefault(part, set()).add(int(layer))
    assert found == finer


@pytest.mark.model
def test_a_mix_is_llama_quantizes_byte_for_byte(demo_model_path, tmp_path, out):
    # The digest is of the tensors, by name, that llama-quantize (llama-cpp-python 0.3.36) makes of the same f16 file.
    kit.convert(demo_model_path, tmp_path / "f16.gguf", "f16", progress=False)
    kit.convert(tmp_path / "f16.gguf", out, "q4_K_M", progress=False)
    digest = hashlib.sha256()
    tensors = kit.GGUFFile(out).tensors
    with out.open("rb") as file:
        for name in sorted(tensors):
            file.seek(tensors[name].offset)
            digest.update(file.read(tensors[name].nbytes))
    assert digest.hexdigest() == "24658f507c97d7e6125ba3edb0e0856940fc2f99061a17726e760049e90896a2"


def test_attention_of_eight_experts_is_kept_finer(tmp_path, out):
    model = Checkpoint(n_layer=1, n_embd=256, n_ff=256, head_dim=64, n_expert=8)
    done = kit.convert(model.write(tmp_path / "hf"), out, "q4_K_M", progress=False, n_threads=1)
    types = {row.name.removeprefix("blk.0."): row.dtype for row in done.tensors}
    assert [types[f"attn_{part}.weight"] for part in ("q", "k", "v", "output")] == ["q4_K", "q8_0", "q8_0", "q5_K"]
    assert types["ffn_gate_inp.weight"] == "f32" and types["ffn_gate_exps.weight"] == "q4_K"


def test_a_tied_embedding_is_kept_finer_and_rows_that_fit_nothing_become_half_floats(tmp_path, out):
    model = Checkpoint(n_layer=1, n_ff=90)
    done = kit.convert(model.write(tmp_path / "hf"), out, "q4_0", progress=False)
    types = {row.name: row.dtype for row in done.tensors}
    assert types["token_embd.weight"] == "q8_0"
    assert types["blk.0.ffn_down.weight"] == "f16"
    assert np.isfinite(logits(out)).all()


def test_the_table_folds_blocks(tmp_path, out):
    done = kit.convert(Checkpoint().write(tmp_path / "hf"), out, "q8_0", progress=False)
    assert repr(done) == done.text()
    assert re.search(r"blk\.\*\.attn_q\.weight +2 +\(64, 64\) +f32 +q8_0", done.text())
    assert done.nbytes == out.stat().st_size and sum(row.nbytes for row in done.tensors) < done.nbytes


def test_experts_are_stacked_in_order(tmp_path, out):
    model = Checkpoint(n_expert=4)
    kit.convert(model.write(tmp_path / "hf"), out, "f32", progress=False)
    at = "model.layers.1.block_sparse_moe."
    for name, part in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
        expected = np.stack([model.weights[f"{at}experts.{i}.{part}.weight"] for i in range(4)])
        assert np.array_equal(tensor(out, f"blk.1.ffn_{name}_exps.weight"), expected)
    assert np.array_equal(tensor(out, "blk.1.ffn_gate_inp.weight"), model.weights[at + "gate.weight"])
    metadata = kit.GGUFFile(out).metadata
    assert (metadata["llama.expert_count"], metadata["llama.expert_used_count"]) == (4, 2)


def test_merged_experts_give_the_same_file(tmp_path):
    model = Checkpoint(n_expert=4)
    kit.convert(model.write(tmp_path / "1" / "hf"), tmp_path / "1.gguf", "q8_0", progress=False)
    for layer in range(model.n_layer):
        at = f"model.layers.{layer}.block_sparse_moe."
        parts = [[model.weights.pop(f"{at}experts.{i}.{w}.weight") for i in range(4)] for w in ("w1", "w3", "w2")]
        model.weights[f"model.layers.{layer}.mlp.experts.gate_up_proj"] = np.concatenate(
            [np.stack(parts[0]), np.stack(parts[1])], 1
        )
        model.weights[f"model.layers.{layer}.mlp.experts.down_proj"] = np.stack(parts[2])
        model.weights[f"model.layers.{layer}.mlp.gate.weight"] = model.weights.pop(at + "gate.weight")
    kit.convert(model.write(tmp_path / "2" / "hf"), tmp_path / "2.gguf", "q8_0", progress=False)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()


def test_factors_of_the_rotation_divide_the_plain_frequencies(tmp_path, out):
    model = Checkpoint(fields={"rope_scaling": LLAMA3})
    kit.convert(model.write(tmp_path / "hf"), out, "q8_0", progress=False)
    plain = frequencies(Checkpoint())
    assert np.allclose(plain / tensor(out, "rope_freqs.weight"), frequencies(model), rtol=1e-6)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 2.0}, {"type": "linear", "factor": 2.0}),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            {"type": "yarn", "factor": 4.0, "original_context_length": 128, "yarn_beta_fast": 32, "yarn_beta_slow": 1},
        ),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "attention_factor": 1.0},
            # Loaders multiply by what yarn usually scales with, 0.1 ln 4 + 1.
            {
                "type": "yarn",
                "factor": 4.0,
                "original_context_length": 128,
                "yarn_beta_fast": 32,
                "yarn_beta_slow": 1,
                "attn_factor": 1 / (0.1 * np.log(4) + 1),
            },
        ),
        (
            {
                "rope_type": "longrope",
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 128,
            },
            {
                "type": "longrope",
                "original_context_length": 128,
                "attn_factor": np.sqrt(1 + np.log(4) / np.log(128)),
            },
        ),
    ],
    ids=["linear", "yarn", "yarn without its magnitude", "longrope"],
)
def test_scaling_of_the_rotation_in_gguf_keys(scaling, expected, tmp_path, out):
    kit.convert(Checkpoint(fields={"rope_scaling": scaling}).write(tmp_path / "hf"), out, progress=False)
    at = "llama.rope.scaling."
    found = {key.removeprefix(at): value for key, value in kit.GGUFFile(out).metadata.items() if key.startswith(at)}
    assert found.keys() == expected.keys()
    assert {key: found[key] for key in found if key != "type"} == pytest.approx(
        {key: value for key, value in expected.items() if key != "type"}, rel=1e-6
    )
    assert found["type"] == expected["type"]


def test_both_tables_of_longrope(tmp_path, out):
    scaling = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [float(i + 1) for i in range(8)]}
    scaling["original_max_position_embeddings"] = 128
    kit.convert(Checkpoint(fields={"rope_scaling": scaling}).write(tmp_path / "hf"), out, progress=False)
    assert tensor(out, "rope_factors_long.weight").tolist() == scaling["long_factor"]
    assert tensor(out, "rope_factors_short.weight").tolist() == scaling["short_factor"]


@pytest.mark.parametrize(("field", "expected"), [("absent", 4096), (None, None), (100, 100)])
def test_the_sliding_window_is_mistrals_own(field, expected, tmp_path, out):
    # transformers' MistralConfig has a window of 4096 where config.json says nothing, and none where it says null.
    fields = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": field}
    kit.convert(Checkpoint(fields=fields).write(tmp_path / "hf"), out, progress=False)
    assert kit.GGUFFile(out).metadata.get("llama.attention.sliding_window") == expected


def test_rows_of_the_embedding_without_a_token_are_unused(tmp_path, out):
    kit.convert(Checkpoint().write(tmp_path / "hf"), out, progress=False)
    metadata = kit.GGUFFile(out).metadata
    assert list(metadata["tokenizer.ggml.tokens"])[N_TOKENS:] == [f"[PAD{N_TOKENS}]", f"[PAD{N_TOKENS + 1}]"]
    assert list(metadata["tokenizer.ggml.token_type"])[N_TOKENS:] == [gguf.TokenType.UNUSED] * 2
    assert metadata["llama.vocab_size"] == N_TOKENS + 2


def test_a_head_that_is_tied_and_derived_buffers_are_left_out(tmp_path, out):
    model = Checkpoint()
    model.weights["lm_head.weight"] = model.weights["model.embed_tokens.weight"]
    model.weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    done = kit.convert(model.write(tmp_path / "hf"), out, "f32", progress=False)
    assert set(done.skipped) == {"lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"}
    assert "output.weight" not in kit.GGUFFile(out).tensors
    assert nmse(logits(out), forward(Checkpoint(), IDS)) < NMSE


def test_a_gguf_file_in_another_type_keeps_its_metadata(tmp_path, out):
    folder = Checkpoint(n_layer=1).write(tmp_path / "hf")
    kit.convert(folder, tmp_path / "f32.gguf", "f32", progress=False)
    kit.convert(tmp_path / "f32.gguf", out, "q4_0", progress=False)
    direct = tmp_path / "direct.gguf"
    kit.convert(folder, direct, "q4_0", progress=False)
    assert out.read_bytes() == direct.read_bytes()


def test_dequantizing_a_gguf_file_gives_the_numbers_ggml_gives(tmp_path, out):
    kit.convert(Checkpoint(n_layer=1).write(tmp_path / "hf"), tmp_path / "q.gguf", "q4_1", progress=False)
    kit.convert(tmp_path / "q.gguf", out, "f32", progress=False)
    before = kit.GGUFFile(tmp_path / "q.gguf")
    assert {info.dtype for info in kit.GGUFFile(out).tensors.values()} == {"f32"}
    for name in before.tensors:
        assert np.array_equal(before.read(name), tensor(out, name)), name


def test_the_command(tmp_path, out):
    folder = Checkpoint().write(tmp_path / "hf")
    result = CliRunner().invoke(main, ["convert", str(folder), str(out), "--type", "q8_0", "-t", "1"])
    assert result.exit_code == 0 and "blk.*.ffn_up.weight" in result.output
    assert kit.GGUFFile(out).tensors["blk.0.ffn_up.weight"].dtype == "q8_0"
    result = CliRunner().invoke(main, ["convert", str(tmp_path), str(out)])
    assert result.exit_code == 1 and "config.json is not there" in result.output
