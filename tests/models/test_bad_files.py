"""Files that are no model kit can run: one exception that says what is wrong, and nothing left behind."""

from __future__ import annotations

import gc
import os
import re
import shutil

import numpy as np
import pytest

import kit
from kit.errors import GGUFNotFound, MissingKey

from . import tiny
from .tiny import UNSET


def fails(path, error: type[Exception], *words: str) -> str:
    """Load ``path``; it must raise ``error`` (and a KitError) with ``words``, and leave no memory and no file open."""
    gc.collect()
    live, files = kit.memory.live(), len(os.listdir("/proc/self/fd"))
    for use_mmap in (True, False):
        with pytest.raises(error) as caught:
            kit.load(path, use_mmap=use_mmap, progress=False, n_threads=1)
        message = str(caught.value)
        assert isinstance(caught.value, kit.KitError) and [word for word in words if word not in message] == [], message
    del caught
    assert kit.memory.live() == live and len(os.listdir("/proc/self/fd")) == files
    return message


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


@pytest.mark.model
def test_the_demo_model_cut_at_every_64_kib(demo_model_path, path):
    shutil.copy(demo_model_path, path)
    size = path.stat().st_size
    live, files = kit.memory.live(), len(os.listdir("/proc/self/fd"))
    backend = kit.Backend(n_threads=1)
    told = 0
    for length in range(size // 65536 * 65536, -1, -65536):
        os.truncate(path, length)
        with pytest.raises(kit.GGUFError, match=re.escape(str(path))) as caught:
            kit.load(path, backend=backend)
        told += bool(re.search(r"byte|empty|short", str(caught.value)))
    del caught
    assert told == size // 65536 + 1
    backend.close()
    assert kit.memory.live() == live and len(os.listdir("/proc/self/fd")) == files


def test_a_tiny_model_cut_anywhere(tiny_path, path):
    whole = tiny_path("grouped").read_bytes()
    rng = np.random.default_rng(0)
    with kit.Backend(n_threads=1) as backend:
        for length in sorted(rng.choice(len(whole), 300, replace=False)):
            path.write_bytes(whole[:length])
            with pytest.raises(kit.GGUFError, match=r"model\.gguf"):
                kit.load(path, backend=backend)


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"", "empty"), (b"GG", "byte"), (b"PK\x03\x04" + bytes(100), "magic"), (b"not a model" * 50, "magic")],
)
def test_what_is_no_gguf_file(path, content, word):
    path.write_bytes(content)
    fails(path, kit.GGUFError, "model.gguf")


@pytest.mark.parametrize("version", [0, 1, 4, 2**30 + 1])
def test_another_version_is_named(tiny_path, path, version):
    whole = bytearray(tiny_path("grouped").read_bytes())
    whole[4:8] = version.to_bytes(4, "little")
    path.write_bytes(whole)
    fails(path, kit.GGUFError, "model.gguf", "version", str(version))


def test_a_file_that_is_not_there(path):
    fails(path, FileNotFoundError, str(path))
    assert issubclass(GGUFNotFound, kit.GGUFError)


def test_a_folder_is_no_file(tmp_path):
    fails(tmp_path, kit.KitError, str(tmp_path), "folder")


@pytest.mark.parametrize("architecture", ["mamba", "llama4", "gpt2"])
def test_another_architecture_is_named(path, architecture):
    tiny.write(path, tiny.Tiny(), architecture=architecture)
    fails(path, kit.UnsupportedModel, "model.gguf", repr(architecture), "kit runs llama")


def drop(model: tiny.Tiny, name: str) -> None:
    del model.weights[name]


REQUIRED = ["token_embd.weight", "output_norm.weight", "blk.1.attn_k.weight", "blk.0.ffn_norm.weight"]


@pytest.mark.parametrize("name", [*REQUIRED, "blk.1.ffn_down.weight"])
def test_a_missing_tensor_is_named(path, name):
    model = tiny.Tiny()
    drop(model, name)
    tiny.write(path, model)
    fails(path, MissingKey, "model.gguf", repr(name))


@pytest.mark.parametrize(
    ("name", "shape", "found", "expected"),
    [
        ("blk.1.attn_k.weight", (64, 64), "[64, 64]", "[64, 32]"),
        ("blk.0.ffn_up.weight", (64, 96), "[96, 64]", "[64, 96]"),
        ("blk.0.attn_norm.weight", (63,), "[63]", "[64]"),
        ("blk.0.attn_q.weight", (2, 64, 64), "[64, 64, 2]", "[64, 64]"),
        ("output_norm.weight", (1, 64, 1, 2), "[2, 1, 64, 1]", "[64]"),
        ("token_embd.weight", (264, 32), "[32, 264]", "[64, 264]"),
        ("output.weight", (100, 64), "[64, 100]", "[64, 264]"),
        ("rope_freqs.weight", (16,), "[16]", "[8]"),
        ("blk.0.attn_q.bias", (32,), "[32]", "[64]"),
    ],
)
def test_a_wrong_shape_is_named_with_the_one_expected(path, name, shape, found, expected):
    model = tiny.Tiny()
    model.weights[name] = np.zeros(shape, np.float32)
    tiny.write(path, model)
    fails(path, kit.GGUFError, "model.gguf", repr(name), found, f"expected {expected}")


def test_an_unknown_tensor_is_named(path):
    model = tiny.Tiny()
    model.weights["blk.0.attn_sinks.weight"] = np.zeros(4, np.float32)
    tiny.write(path, model)
    fails(path, kit.UnsupportedModel, "model.gguf", "'blk.0.attn_sinks.weight' is none kit knows")


@pytest.mark.parametrize(
    "name", ["blk.0.attn_norm.weight", "blk.0.attn_q.weight", "token_embd.weight", "blk.1.attn_v.bias"]
)
@pytest.mark.parametrize("dtype", [np.int32, np.float64, np.int8])
def test_a_type_no_operation_takes_is_refused(path, name, dtype):
    model = tiny.Tiny(biases=True)
    model.weights[name] = model.weights[name].astype(dtype)
    tiny.write(path, model)
    fails(
        path,
        kit.UnsupportedModel,
        "model.gguf",
        repr(name),
        {"int32": "i32", "float64": "f64", "int8": "i8"}[dtype.__name__],
    )


NONE = [0, -3, 10**9, "many", 1.5, [1, 2]]
COUNTS = ["block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "feed_forward_length"]


@pytest.mark.parametrize("key", [*COUNTS, "attention.key_length", "rope.dimension_count"])
@pytest.mark.parametrize("value", NONE, ids=repr)
def test_a_count_that_is_none_is_named(path, key, value):
    tiny.write(path, tiny.Tiny(), **{key.replace(".", "__"): value})
    message = fails(path, kit.KitError, "model.gguf")
    assert re.search(rf"llama\.{key}|tensor '", message), message


@pytest.mark.parametrize("key", COUNTS)
def test_a_count_within_reach_that_no_tensor_bears_out_is_refused_at_once(path, key):
    tiny.write(path, tiny.Tiny(), **{key.replace(".", "__"): 1 << 24})
    message = fails(path, kit.GGUFError, "model.gguf")
    assert re.search(rf"llama\.{key}|tensor '", message), message


NUMBERS = ["attention.layer_norm_rms_epsilon", "rope.freq_base"]


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, "small", [1.0]], ids=repr)
def test_a_number_that_is_none_is_named(path, key, value):
    tiny.write(path, tiny.Tiny(), **{key.replace(".", "__"): value})
    message = fails(path, kit.GGUFError, "model.gguf")
    assert key.split(".")[-1] in message or ("epsilon" in message and "rope base" in message)


@pytest.mark.parametrize("key", [*COUNTS[:3], COUNTS[4], NUMBERS[0], "context_length"])
def test_a_missing_key_is_named(path, key):
    tiny.write(path, tiny.Tiny(), **{key.replace(".", "__"): UNSET})
    fails(path, MissingKey, "model.gguf", f"llama.{key}")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"attention__head_count_kv": 3}, kit.GGUFError, ["head_count_kv is 3", "4 heads"]),
        ({"rope__dimension_count": 7}, kit.GGUFError, ["rope.dimension_count is 7", "even"]),
        ({"rope__dimension_count": 32}, kit.GGUFError, ["rope.dimension_count is 32", "16"]),
        ({"attention__value_length": 8}, kit.UnsupportedModel, ["value_length"]),
        ({"attention__head_count": [4, 2]}, kit.GGUFError, ["blk.1.attn_q.weight", "[64, 32]"]),
        ({"attention__head_count": [4, 4, 4]}, kit.GGUFError, ["head_count has 3 values", "2 blocks"]),
        ({"attention__head_count_kv": [2, 3]}, kit.GGUFError, ["head_count_kv is 3 in block 1", "4 heads"]),
        ({"feed_forward_length": [96, 0]}, kit.GGUFError, ["feed_forward_length[1] is 0"]),
        ({"expert_count": 4}, kit.GGUFError, ["expert_used_count is 0"]),
        ({"expert_count": 4, "expert_used_count": 5}, kit.GGUFError, ["expert_used_count is 5"]),
        ({"expert_used_count": 2}, kit.GGUFError, ["expert_used_count is 2"]),
        ({"expert_count": 4, "expert_used_count": 2}, MissingKey, ["blk.0.ffn_gate_inp.weight"]),
        ({"expert_count": 4, "expert_used_count": [2, 1]}, kit.UnsupportedModel, ["expert_used_count", "layers"]),
        ({"expert_count": "four"}, kit.GGUFError, ["expert_count"]),
        ({"expert_count": [4, 3]}, kit.UnsupportedModel, ["expert_count"]),
        ({"rope__scaling__type": "dynamic"}, kit.UnsupportedModel, ["rope.scaling.type", "dynamic", "yarn"]),
        ({"rope__scaling__type": "longrope"}, MissingKey, ["rope_factors_long.weight"]),
        ({"rope__scaling__type": "yarn", "rope__scaling__factor": 0.5}, kit.GGUFError, ["rope.scaling", "at least 1"]),
        ({"rope__scaling__type": "yarn", "rope__scaling__yarn_attn_factor": 2.0}, kit.UnsupportedModel, ["yarn_attn"]),
        ({"rope__scaling__yarn_ext_factor": 0.5}, kit.UnsupportedModel, ["yarn_ext_factor", "expected 1"]),
        ({"rope__dimension_sections": [4, 4]}, kit.UnsupportedModel, ["rope.dimension_sections"]),
        ({"attention__sliding_window": -1}, kit.GGUFError, ["sliding_window"]),
        ({"attention__sliding_window_pattern": 4}, kit.UnsupportedModel, ["sliding_window_pattern"]),
        ({"attention__temperature_scale": 0.1}, kit.UnsupportedModel, ["temperature_scale"]),
        ({"logit_scale": 0.5}, kit.UnsupportedModel, ["logit_scale is 0.5", "0 or 1"]),
        ({"expert_gating_func": 2}, kit.UnsupportedModel, ["expert_gating_func is 2"]),
        ({"embedding_length_out": 32}, kit.UnsupportedModel, ["embedding_length_out"]),
        ({"a_key_of_the_future": 1}, kit.UnsupportedModel, ["a_key_of_the_future", "may change the results"]),
        ({"rope__scaling__type": 3}, kit.UnsupportedModel, ["rope.scaling.type"]),
        ({"rope__scaling__type": ["a", "b"]}, kit.UnsupportedModel, ["rope.scaling.type"]),
        ({"rope__scaling__factor": 0.0}, kit.GGUFError, ["rope.scaling.factor"]),
        ({"rope__scaling__factor": float("nan")}, kit.GGUFError, ["rope.scaling.factor"]),
        ({"rope__scaling__factor": -4.0}, kit.GGUFError, ["out of range"]),
        ({"context_length": 0}, kit.GGUFError, ["context_length is 0"]),
    ],
)
def test_contradictions_and_missing_features_are_named(path, changes, error, words):
    tiny.write(path, tiny.Tiny(), **changes)
    fails(path, error, "model.gguf", *words)


def test_what_is_alike_in_every_layer_may_be_given_per_layer(path):
    tiny.write(path, tiny.Tiny(), attention__head_count=[4, 4], attention__head_count_kv=[2, 2], expert_count=0)
    with kit.load(path, n_threads=1) as model:
        assert (model.config.n_head, model.config.n_head_kv) == (4, 2)


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**32 - 1])
def test_a_window_wider_than_any_text_leaves_nothing_out(path, window):
    tiny.write(path, tiny.Tiny())
    with kit.load(path, n_threads=1) as model, model.session(n_ctx=8) as session:
        expected = session.run([1, 2, 3]).logits
    tiny.write(path, tiny.Tiny(), attention__sliding_window=window)
    with kit.load(path, n_threads=1) as model, model.session(n_ctx=8) as session:
        assert np.array_equal(session.run([1, 2, 3]).logits, expected)


def test_keys_that_change_nothing_are_no_hindrance(path):
    harmless = {"vocab_size": 264, "tensor_data_layout": "Meta AI original pth", "logit_scale": 1.0, "expert_count": 0}
    tiny.write(path, tiny.Tiny(), **harmless, rope__scaling__finetuned=1, attention__sliding_window=0)
    with kit.load(path, n_threads=1) as model:
        assert model.config.window is None


def test_one_tensor_an_expert_is_refused_with_what_to_do(path):
    model = tiny.Tiny()
    model.weights["blk.0.ffn_gate.0.weight"] = model.weights.pop("blk.0.ffn_gate.weight")
    tiny.write(path, model, expert_count=4, expert_used_count=2)
    fails(path, kit.UnsupportedModel, "model.gguf", "'blk.0.ffn_gate.0.weight'", "convert the model again")


def test_a_model_without_a_vocabulary_runs_ids_and_refuses_text(path):
    tiny.write(path, tiny.Tiny(), vocab=False)
    with kit.load(path, n_threads=1) as model, model.session(n_ctx=64) as session:
        run = session.run([1, 2, 3], keep="blk.*.resid")
        assert run.pieces == () and run.logits.shape == (3, 264)
        for use in (session.run, session.steps, session.generate):
            with pytest.raises(MissingKey, match=r"model\.gguf: tokenizer\.ggml\.model is missing"):
                use("text")
        assert session.steps([4]).finish().logits.shape == (1, 264)


def test_a_load_after_a_thousand_refusals_works(tiny_path, path):
    whole = tiny_path("grouped").read_bytes()
    path.write_bytes(whole[:1000])
    with kit.Backend(n_threads=1) as backend:
        for _ in range(1000):
            with pytest.raises(kit.GGUFError):
                kit.load(path, backend=backend)
        path.write_bytes(whole)
        with kit.load(path, backend=backend) as model:
            assert np.isfinite(model.session(n_ctx=64).run([1, 2]).logits).all()
