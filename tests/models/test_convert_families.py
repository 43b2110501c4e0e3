"""Mixtures of experts, windows and rotations beyond the plain ones: converted, they give the checkpoint's logits."""

from __future__ import annotations

import numpy as np
import pytest

import kit

from .checkpoint import Checkpoint, forward, write_json
from .test_convert import IDS as FEW
from .test_convert import NMSE, nmse

IDS = 3 * FEW  # beyond the original context of Ministral 3

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 128, "long_factor": [4.0] * 8}
MINISTRAL3 = {
    "architectures": ["Ministral3ForCausalLM"],
    "model_type": "ministral3",
    "rope_theta": "absent",
    "rope_parameters": {
        "rope_type": "yarn",
        "type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.5,
    },
}
KINDS = {
    "experts": {"n_expert": 4},
    "experts, untied": {"n_expert": 3, "tied": False, "n_layer": 1},
    "biases everywhere": {"biases": True, "mlp_biases": True},
    "a window": {"fields": MISTRAL | {"sliding_window": 4}},
    "yarn": {"fields": {"rope_scaling": YARN | {"beta_fast": 4.0}}},
    "yarn without its magnitude": {"fields": {"rope_scaling": YARN | {"attention_factor": 1.0}}},
    "ministral 3": {"fields": MINISTRAL3},
    "longrope": {"fields": {"rope_scaling": LONGROPE | {"short_factor": [1.0 + i / 4 for i in range(8)]}}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_checkpoint(kind, tmp_path):
    model = Checkpoint(**KINDS[kind])
    kit.convert(model.write(tmp_path / "hf"), tmp_path / "out.gguf", "f32", progress=False)
    with kit.load(tmp_path / "out.gguf", n_threads=1) as loaded:
        found = loaded.session(n_ctx=64).run(IDS).logits
    assert nmse(found, forward(model, IDS)) < NMSE


def test_the_language_part_of_a_checkpoint_that_reads_images(tmp_path):
    model = Checkpoint(fields=MISTRAL | {"sliding_window": None}, tied=False)
    plain = tmp_path / "plain.gguf"
    kit.convert(model.write(tmp_path / "1" / "hf"), plain, "f32", progress=False)
    for prefix, head in (("language_model.model.", "language_model."), ("model.language_model.", "")):
        both = Checkpoint(fields=MISTRAL | {"sliding_window": None}, tied=False)
        both.weights = {
            name.replace("model.", prefix) if name.startswith("model.") else head + name: value
            for name, value in model.weights.items()
        }
        both.weights |= {f"vision_tower.{i}.weight": np.ones((4, 4), np.float32) for i in range(2)}
        folder = both.write(tmp_path / "2" / "hf")
        text = model.config | {"architectures": None}
        write_json(
            folder / "config.json",
            {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text},
        )
        done = kit.convert(folder, tmp_path / "out.gguf", "f32", progress=False)
        assert done.skipped == ("vision_tower.*",)
        expected, found = kit.GGUFFile(plain), kit.GGUFFile(tmp_path / "out.gguf")
        assert found.architecture == "mistral3"
        assert all(np.array_equal(found.read(name), expected.read(name)) for name in expected.tensors)
