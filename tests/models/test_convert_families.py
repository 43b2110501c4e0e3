"""Mixtures of experts, windows and rotations beyond the plain ones: converted, they give the checkpoint's logits."""

from __future__ import annotations

import pytest

import kit

from .checkpoint import Checkpoint, forward
from .test_convert import IDS, NMSE, nmse

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 128, "long_factor": [4.0] * 8}
KINDS = {
    "experts": {"n_expert": 4},
    "experts, untied": {"n_expert": 3, "tied": False, "n_layer": 1},
    "biases everywhere": {"biases": True, "mlp_biases": True},
    "a window": {"fields": MISTRAL | {"sliding_window": 4}},
    "yarn": {"fields": {"rope_scaling": YARN | {"beta_fast": 4.0}}},
    "yarn without its magnitude": {"fields": {"rope_scaling": YARN | {"attention_factor": 1.0}}},
    "longrope": {"fields": {"rope_scaling": LONGROPE | {"short_factor": [1.0 + i / 4 for i in range(8)]}}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_checkpoint(kind, tmp_path):
    model = Checkpoint(**KINDS[kind])
    kit.convert(model.write(tmp_path / "hf"), tmp_path / "out.gguf", "f32", progress=False)
    with kit.load(tmp_path / "out.gguf", n_threads=1) as loaded:
        found = loaded.session(n_ctx=64).run(IDS).logits
    assert nmse(found, forward(model, IDS)) < NMSE
