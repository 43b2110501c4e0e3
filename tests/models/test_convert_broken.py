"""Broken checkpoints, failing reads and interrupts: named, and nothing is left behind. Memory stays bounded."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import struct
import threading
import tracemalloc

import numpy as np
import pytest

import kit
from kit.models.convert.config import read_config
from kit.models.convert.safetensors import Checkpoint as SafetensorsCheckpoint
from kit.models.convert.safetensors import Entry

from .checkpoint import Checkpoint, write_json, write_safetensors


@pytest.fixture
def folder(tmp_path):
    return Checkpoint(n_layer=1).write(tmp_path / "hf")


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path):
    descriptors = set(os.listdir("/proc/self/fd"))
    yield
    assert not list(tmp_path.glob(".*.part"))
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kit-convert")]


def refused(folder, error=kit.ConversionError, **options):
    """Convert in vain; returns the message, after a look that no output is there."""
    out = folder.parent / "out.gguf"
    with pytest.raises(error) as caught:
        kit.convert(folder, out, progress=False, n_threads=1, **options)
    assert isinstance(caught.value, kit.KitError)
    assert not out.exists()
    return str(caught.value)


def change_config(folder, **fields):
    path = folder / "config.json"
    write_json(path, json.loads(path.read_text()) | fields)


def change_header(folder, change):
    """Let ``change`` edit the header of the one safetensors file."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (struct.pack("<Q", 1 << 62), "a header of 4611686018427387904 bytes in a file of 8"),
        (struct.pack("<Q", 50) + b"{}", "a header of 50 bytes in a file of 10"),
        (struct.pack("<Q", 2) + b"[]", "the header is no table"),
        (struct.pack("<Q", 4) + b"{{{{", "the header is broken"),
        (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "the header is broken"),
        (struct.pack("<Q", 99000) + b"[" * 99000, "the header is broken"),
        (struct.pack("<Q", 17) + b'{"a": 1, "a": 2} ', "'a' stands there twice"),
    ],
    ids=["empty", "huge", "cut off", "a list", "no json", "no text", "deep", "twins"],
)
def test_a_header_that_is_none(raw, says, folder):
    (folder / "model.safetensors").write_bytes(raw)
    message = refused(folder)
    assert says in message and "model.safetensors" in message


def test_no_change_of_a_header_byte_is_more_than_refused(folder):
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", raw)
    rng = np.random.default_rng(0)
    for at, byte in zip(rng.integers(0, 8 + length, 300), rng.integers(0, 256, 300), strict=True):
        path.write_bytes(raw[:at] + bytes([byte]) + raw[at + 1 :])
        with contextlib.suppress(kit.KitError), SafetensorsCheckpoint(folder) as checkpoint:
            for entry in checkpoint.values():
                assert entry.where() and entry.offset <= len(raw)


def test_more_layers_than_tensors(folder):
    change_config(folder, num_hidden_layers=65536)
    assert "65536 layers, but the checkpoint has 11 tensors" in refused(folder)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (7, "no dtype, shape and data_offsets"),
        ({"dtype": "F99", "shape": [64], "data_offsets": [0, 256]}, "dtype 'F99'"),
        ({"dtype": "F32", "shape": [-64], "data_offsets": [0, 256]}, r"shape [-64]"),
        ({"dtype": "F32", "shape": [64.0], "data_offsets": [0, 256]}, "shape [64.0]"),
        ({"dtype": "F32", "shape": [1 << 61, 1 << 61], "data_offsets": [0, 256]}, "takes 256 bytes"),
        ({"dtype": "F32", "shape": [64], "data_offsets": [0, 255]}, "takes 255 bytes"),
        ({"dtype": "F32", "shape": [64], "data_offsets": [256, 0]}, "data_offsets [256, 0]"),
        ({"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}, "overlap"),
        ({"dtype": "F32", "shape": [64], "data_offsets": [1 << 40, (1 << 40) + 256]}, "it is cut off"),
        ({"dtype": "F32", "shape": [1] * 9, "data_offsets": [0, 4]}, "at most 8"),
    ],
)
def test_a_tensor_described_wrongly(facts, says, folder):
    change_header(folder, lambda header: header.update({NORM: facts}))
    message = refused(folder)
    assert says in message and NORM in message


def test_a_truncated_shard_names_the_tensor_that_is_cut(folder):
    path = folder / "model.safetensors"
    os.truncate(path, path.stat().st_size - 10)
    assert re.search(r"tensor 'model.norm.weight' ends at byte \d+, the file has \d+: it is cut off", refused(folder))


def test_a_missing_shard(tmp_path):
    folder = Checkpoint(n_layer=1).write(tmp_path / "hf", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors: the checkpoint's index names this file" in refused(
        folder, kit.ModelNotFound
    )


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "..", "", 7])
def test_an_index_that_leaves_its_folder(name, folder):
    write_json(folder / "model.safetensors.index.json", {"weight_map": {NORM: name}})
    assert "no name of a file here" in refused(folder)


def test_an_index_that_is_wrong_about_a_tensor(tmp_path):
    folder = Checkpoint(n_layer=1).write(tmp_path / "hf", shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.gone.weight"] = "model-00001-of-00002.safetensors"
    write_json(folder / "model.safetensors.index.json", index)
    assert "'model.gone.weight' is said to be in model-00001-of-00002.safetensors, but is not" in refused(folder)


def test_a_tensor_in_two_shards(tmp_path):
    model = Checkpoint(n_layer=1)
    folder = model.write(tmp_path / "hf", shards=2)
    write_safetensors(folder / "model-00002-of-00002.safetensors", model.weights)
    assert "is in model-00001-of-00002.safetensors too" in refused(folder)


def test_a_folder_of_pickles(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "never pickles" in refused(folder, kit.ModelNotFound)


def test_a_missing_tensor_by_both_its_names(tmp_path):
    model = Checkpoint(n_layer=1)
    del model.weights["model.layers.0.self_attn.k_proj.weight"]
    message = refused(model.write(tmp_path / "hf"))
    assert "model.layers.0.self_attn.k_proj.weight (blk.0.attn_k.weight)" in message


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.q_proj.weight", "model.layers.0.self_attn.q_norm.weight", "strange"]
)
def test_a_tensor_no_llama_has(name, tmp_path):
    model = Checkpoint(n_layer=1)
    model.weights[name] = np.ones((64, 64), np.float32)
    assert repr(name) in refused(model.write(tmp_path / "hf"), kit.UnsupportedModel)


def test_a_tensor_no_llama_has_of_a_type_that_is_not_read(folder):
    def change(header):
        header["strange"] = {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}

    change_header(folder, change)
    assert "'strange'" in refused(folder, kit.UnsupportedModel)


def test_a_tensor_of_another_shape(tmp_path):
    model = Checkpoint(n_layer=1)
    model.weights[NORM] = np.ones(65, np.float32)
    assert "'model.norm.weight' has shape (65,); the config says (64,)" in refused(model.write(tmp_path / "hf"))


def test_a_missing_expert(tmp_path):
    model = Checkpoint(n_layer=1, n_expert=3)
    del model.weights["model.layers.0.block_sparse_moe.experts.1.w2.weight"]
    assert "expert 1 of blk.0.ffn_down_exps.weight is missing" in refused(model.write(tmp_path / "hf"))


def test_weights_stored_as_whole_numbers(folder):
    def change(header):
        header[NORM]["dtype"] = "I32"

    change_header(folder, change)
    assert "has dtype I32" in refused(folder, kit.UnsupportedModel)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, kit.UnsupportedModel, "GPT2LMHeadModel"),
        ({"model_type": "gemma"}, kit.UnsupportedModel, "model_type is 'gemma'"),
        ({"hidden_act": "gelu"}, kit.UnsupportedModel, "hidden_act is 'gelu'"),
        ({"logit_scale": 0.5}, kit.UnsupportedModel, "'logit_scale' (0.5) is unknown"),
        ({"quantization_config": {"bits": 4}}, kit.UnsupportedModel, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, kit.UnsupportedModel, "partial_rotary_factor"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, kit.UnsupportedModel, "'dynamic'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "x": 1}}, kit.UnsupportedModel, "'x' (1)"),
        ({"rope_scaling": {"rope_type": "linear"}}, kit.ConversionError, "factor"),
        ({"rope_scaling": [1]}, kit.ConversionError, "rope_scaling is [1]"),
        ({"rope_scaling": []}, kit.ConversionError, "rope_scaling is []"),
        ({"rope_scaling": {"rope_type": "llama3"}}, kit.ConversionError, "original_max_position_embeddings"),
        (
            {"rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 64}},
            kit.ConversionError,
            "factor of the rotation is None",
        ),
        ({"eos_token_id": [1, 2, "x"]}, kit.ConversionError, "eos_token_id is [1, 2, 'x']; expected a token id"),
        ({"eos_token_id": -1}, kit.ConversionError, "eos_token_id is -1"),
        ({"bos_token_id": 10**9}, kit.ConversionError, "bos_token_id is 1000000000"),
        ({"hidden_size": "64"}, kit.ConversionError, "hidden_size is '64'"),
        ({"num_hidden_layers": 10**9}, kit.ConversionError, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, kit.ConversionError, "does not divide 4 heads"),
        ({"rms_norm_eps": -1}, kit.ConversionError, "rms_norm_eps is -1"),
        ({"tie_word_embeddings": "yes"}, kit.ConversionError, "tie_word_embeddings is 'yes'"),
        ({"tie_word_embeddings": False}, kit.ConversionError, "lm_head.weight (output.weight)"),
        ({"num_attention_heads": 10**6}, kit.ConversionError, "hidden_size"),
    ],
)
def test_a_config_kit_cannot_convert(fields, error, says, folder):
    change_config(folder, **fields)
    if "num_attention_heads" in fields:
        change_config(folder, head_dim=None, num_key_value_heads=None)
        says = "head_dim is 0"
    assert says in refused(folder, error)


STRANGE = [None, True, -1, 0, 1, 2**40, 10**400, 0.5, 1e300, float("nan"), "x", [], [1], {}, {"rope_type": []}]
SCALINGS = [
    {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 128, "low_freq_factor": 1.0}
    for kind in ("default", "linear", "llama3", "yarn", "longrope")
]


def test_no_value_of_a_field_is_more_than_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    cases = [config | {name: value} for name in config for value in STRANGE]
    for scaling in SCALINGS:
        names = [*scaling, "high_freq_factor", "beta_fast", "mscale", "short_factor", "attention_factor", "truncate"]
        cases += [config | {"rope_scaling": scaling | {name: value}} for name in names for value in STRANGE]
    for case in cases:
        (folder / "config.json").write_text(json.dumps(case))
        with contextlib.suppress(kit.KitError):
            for value in read_config(folder).metadata.values():
                if not isinstance(value, str):
                    struct.pack("<I" if isinstance(value, int) else "<f", value)  # as GGUF holds it


def test_a_template_that_is_no_text(folder):
    write_json(folder / "tokenizer_config.json", {"chat_template": "{{ '\ud800' }}"})
    assert "has no form in GGUF" in refused(folder)


@pytest.mark.parametrize("template", ["{% if %}", "a" * (1 << 20) + "{{ messages }}"], ids=["broken", "too long"])
def test_a_template_kit_could_not_load_is_refused_or_left_out(template, folder, tmp_path):
    (folder / "chat_template.jinja").write_text(template)
    assert "tokenizer.chat_template" in refused(folder)
    kit.convert(folder, tmp_path / "out.gguf", progress=False, n_threads=1, ignore=["chat_template"])
    assert "tokenizer.chat_template" not in kit.GGUFFile(tmp_path / "out.gguf").metadata


def test_an_id_that_is_none_can_be_left_out(folder, tmp_path):
    write_json(folder / "generation_config.json", {"eos_token_id": 10**9})
    assert "generation_config.json: eos_token_id" in refused(folder)
    kit.convert(folder, tmp_path / "out.gguf", progress=False, n_threads=1, ignore=["eos_token_id"])


def test_a_config_that_holds_null_is_there(folder):
    (folder / "config.json").write_text("null")
    assert "config.json holds null" in refused(folder)


@pytest.mark.parametrize("dtype", [None, 5])
def test_a_type_that_is_no_name(dtype, folder):
    assert "no name of a type" in refused(folder, kit.DTypeError, dtype=dtype)


def test_an_unknown_field_can_be_waved_through(folder):
    change_config(folder, favourite_colour="blue")
    assert "--ignore favourite_colour" in refused(folder, kit.UnsupportedModel)
    kit.convert(folder, folder.parent / "out.gguf", progress=False, ignore=["favourite_colour"])


def test_a_folder_that_is_none(tmp_path):
    assert "config.json is not there" in refused(tmp_path / "nowhere", kit.ModelNotFound)


def test_values_that_are_no_numbers(tmp_path):
    model = Checkpoint(n_layer=1)
    model.weights["model.layers.0.mlp.up_proj.weight"][7, 3] = np.nan
    message = refused(model.write(tmp_path / "hf"))
    assert re.search(r"tensor 'model.layers.0.mlp.up_proj.weight' at byte \d+: the row holds values", message)


def test_values_too_large_for_the_type(tmp_path):
    model = Checkpoint(n_layer=1)
    model.weights["model.layers.0.mlp.up_proj.weight"][7, 3] = 1e6
    assert "values too large for f16; convert to bf16 or f32" in refused(model.write(tmp_path / "hf"))


@pytest.mark.parametrize("name", ["q9_0", "q8_K", "q8_1", "i32", "iq1_s"])
def test_a_type_weights_cannot_have(name, folder):
    assert name in refused(folder, kit.DTypeError, dtype=name)


def test_a_target_that_cannot_be_written(folder, tmp_path):
    for out, says in ((tmp_path / "no" / "out.gguf", "there is no folder"), (folder, "is no regular file")):
        with pytest.raises(kit.ConversionError, match=says):
            kit.convert(folder, out, progress=False)


def test_a_full_disk_leaves_nothing(folder, tmp_path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write then fails with EFBIG instead
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        assert "writing failed: File too large" in refused(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


def test_a_file_that_shrinks_while_it_is_read(folder, monkeypatch):
    rows = Entry.rows

    def shrink_first(self, first, count):
        os.truncate(self.path, self.offset + 10)
        return rows(self, first, count)

    monkeypatch.setattr(Entry, "rows", shrink_first)
    message = refused(folder)
    assert re.search(r"model.safetensors: tensor '.*' at byte \d+: \d+ bytes expected, \d+ found", message)


def test_a_read_that_fails(folder, monkeypatch):
    raw = Entry.raw

    def on_a_directory(self, first, count):
        directory = os.open(folder, os.O_RDONLY)
        os.dup2(directory, self.file.fileno())  # reading it is an error of the system
        os.close(directory)
        return raw(self, first, count)

    monkeypatch.setattr(Entry, "raw", on_a_directory)
    assert re.search(r"safetensors: tensor '.*' at byte \d+: reading failed: Is a directory", refused(folder))


def test_an_interrupt_in_the_middle(tmp_path, monkeypatch):
    folder = Checkpoint(n_layer=4).write(tmp_path / "hf")
    reads, rows = [], Entry.rows

    def interrupt_later(self, first, count):
        reads.append(self.name)
        if len(reads) == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return rows(self, first, count)

    monkeypatch.setattr(Entry, "rows", interrupt_later)
    with pytest.raises(KeyboardInterrupt):
        kit.convert(folder, tmp_path / "out.gguf", "q4_0", progress=False, n_threads=2)
    assert 20 <= len(reads) < 30
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_a_failure_keeps_the_file_that_was_there(folder, tmp_path):
    out = tmp_path / "out.gguf"
    kit.convert(folder, out, progress=False)
    before = out.read_bytes()
    os.truncate(folder / "model.safetensors", 10_000)
    with pytest.raises(kit.ConversionError):
        kit.convert(folder, out, progress=False)
    assert out.read_bytes() == before


def test_a_gguf_file_is_not_converted_onto_itself(folder, tmp_path):
    out = tmp_path / "out.gguf"
    kit.convert(folder, out, progress=False)
    with pytest.raises(kit.ConversionError, match="give another name"):
        kit.convert(out, out, "q8_0", progress=False)


def test_memory_is_bounded_by_slabs_not_tensors(tmp_path):
    model = Checkpoint(n_layer=1, n_embd=256, n_ff=1)
    model.n_ff = 32768
    for name, shape in (("gate_proj", (32768, 256)), ("up_proj", (32768, 256)), ("down_proj", (256, 32768))):
        model.weights[f"model.layers.0.mlp.{name}.weight"] = np.full(shape, 0.5, np.float32)  # 32 MiB each
    folder = model.write(tmp_path / "hf")
    model.weights.clear()
    kit.convert(folder, tmp_path / "first.gguf", "q4_0", progress=False, n_threads=1)
    tracemalloc.start()
    kit.convert(folder, tmp_path / "out.gguf", "q4_0", progress=False, n_threads=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # one slab is 2 MiB as float32; half of one tensor
