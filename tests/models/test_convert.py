"""Checkpoints become GGUF files that give the same logits; tokenizers, types, tables."""

from __future__ import annotations

import numpy as np
import pytest

import kit

from .checkpoint import Checkpoint, forward

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
    "new spelling of the rotation": {
        "fields": {"rope_parameters": LLAMA3 | {"rope_theta": 10000.0}, "rope_theta": "absent"}
    },
}


def nmse(found, expected):
    assert found.shape == expected.shape
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


def logits(path):
    with kit.load(path, n_threads=1) as model:
        return model.session(n_ctx=64).run(IDS).logits


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_checkpoint(kind, tmp_path):
    model = Checkpoint(**KINDS[kind])
    out = tmp_path / "out.gguf"
    kit.convert(model.write(tmp_path / "hf"), out, "f32", progress=False)
    assert nmse(logits(out), forward(model, IDS)) < NMSE


def test_a_sharded_checkpoint_gives_the_same_file(tmp_path):
    model = Checkpoint()
    for shards in (1, 3):
        kit.convert(
            model.write(tmp_path / str(shards) / "hf", shards=shards), tmp_path / f"{shards}.gguf", progress=False
        )
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()
