"""Weights joined, repacked and copied: what they may change is nothing, or as much as another kernel may.

Bounds are mean squared error over mean square, against the float64 pass of tests/models/reference.py over the
file's dequantized weights. ggml rounds activations to 8 bits with a scale per 32 for products with quantized
weights (half a step of 1/127 of the largest, squared over three: about 1e-5 a product); float16 copies round to
11 bits. Twenty products one after another stay under 3e-4; a wrong row or scale gives about 1.
"""

from __future__ import annotations

import pathlib

import gguf
import numpy as np
import pytest

import kit
from kit.core import copies
from kit.core.dtypes import dtype_of, from_array
from kit.core.repack import repack_type
from kit.models.weights.preparation import plan_preparation
from kit.models.weights.prepared import PREFILL_TOKENS

from . import tiny
from .reference import forward

IDS = [(7 * i) % 256 + 3 for i in range(PREFILL_TOKENS + 6)]
BOUND = 3e-4
JOIN = kit.Prepare(join=True, repack=False, prefill_copy=False)


def write_quantized(path: pathlib.Path, dtype: str, **sizes: object) -> tiny.Tiny:
    """Write a tiny model with its block matrices in ``dtype``; return it with the values they hold."""
    model = tiny.Tiny(**{"n_embd": 64, "n_ff": 96, **sizes})
    writer = gguf.GGUFWriter(path, "llama")
    plain = path.with_suffix(".plain")
    tiny.write(plain, model)
    for key, value in kit.GGUFFile(plain).metadata.items():
        if key != "general.architecture":
            tiny._add(writer, key, value.tolist() if isinstance(value, np.ndarray) else value)
    for name, array in model.weights.items():
        if array.ndim == 2 and name.startswith(("blk.", "output.")):
            kind = dtype_of(dtype)
            raw = from_array(array, kind, array.shape, name)
            writer.add_tensor(name, raw.reshape(len(array), -1), raw_dtype=gguf.GGMLQuantizationType[dtype.upper()])
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = kit.GGUFFile(path)
    model.weights = {name: np.asarray(file.read(name), np.float32) for name in model.weights}
    return model


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


def logits(path: pathlib.Path, prepare: object, ids: list[int] = IDS, **opened: object) -> np.ndarray:
    with kit.load(path, n_threads=1, prepare=prepare, progress=False) as model, model.session(256, **opened) as session:
        return session.run(ids).logits


@pytest.mark.parametrize("flash", [False, True], ids=["permuted", "flash"])
@pytest.mark.parametrize("kind", ["grouped", "biased", "wide-heads-untied", "all-heads-own"])
def test_joined_weights_give_every_bit_of_separate_ones(tiny_path, kind, flash):
    path = tiny_path(kind)
    assert np.array_equal(logits(path, JOIN, flash_attn=flash), logits(path, "none", flash_attn=flash))


def test_joined_quantized_weights_give_every_bit_of_separate_ones(tmp_path):
    write_quantized(tmp_path / "m.gguf", "q4_1")
    assert np.array_equal(logits(tmp_path / "m.gguf", JOIN), logits(tmp_path / "m.gguf", "none"))


def test_every_stage_of_joined_weights_is_that_of_separate_ones(tiny_path):
    runs = []
    for prepare in (JOIN, "none"):
        with kit.load(tiny_path("biased"), n_threads=1, prepare=prepare) as model:
            runs.append(model.session(64).run(IDS[:9], keep="*"))
    assert [name for name in runs[0].names if not np.array_equal(runs[0][name], runs[1][name])] == []


@pytest.mark.parametrize("stage", ["blk.0.ffn.gate", "blk.0.ffn.up", "blk.1.attn.v", "blk.1.attn.q", "blk.0.attn.k"])
def test_a_patch_of_a_joined_stage_is_seen_by_what_follows(tiny_path, stage):
    def double(value: np.ndarray) -> None:
        value[1:] *= 2

    found = []
    for prepare in (JOIN, "none"):
        with kit.load(tiny_path("grouped"), n_threads=1, prepare=prepare) as model, model.session(64) as session:
            found.append(session.run(IDS[:9], patch={stage: double}, keep=stage))
    assert np.array_equal(found[0].logits, found[1].logits) and np.array_equal(found[0][stage], found[1][stage])
    assert not np.array_equal(found[0].logits, logits(tiny_path("grouped"), "none", IDS[:9]))


def test_an_edit_of_a_joined_stage_at_a_pause_is_seen(tiny_path):
    found = []
    for prepare in (JOIN, "none"):
        with kit.load(tiny_path("grouped"), n_threads=1, prepare=prepare) as model, model.session(64) as session:
            walk = session.steps(IDS[:9])
            for step in walk:
                if step.name in ("blk.0.ffn.gate", "blk.1.ffn.up"):
                    step.value[:, 3] += 1
                    step.commit()
            found.append(session.last.logits)
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("dtype", "prepare"),
    [
        ("q4_0", kit.Prepare(repack=True, prefill_copy=False)),
        ("iq4_nl", kit.Prepare(repack=True, prefill_copy=False)),
        ("q4_1", kit.Prepare(prefill_copy="split")),
        ("q4_1", kit.Prepare(repack=True, prefill_copy=False)),
        ("q4_1", kit.Prepare(prefill_copy="f16")),
        ("q8_0", kit.Prepare(join=False, prefill_copy="f16")),
        ("q5_1", kit.Prepare(prefill_copy="f16")),
    ],
    ids=str,
)
def test_other_forms_stay_near_the_float_pass_over_the_same_weights(tmp_path, dtype, prepare):
    model = write_quantized(tmp_path / "m.gguf", dtype, n_layer=2)
    expected = forward(model, IDS)["logits"]
    stock = nmse(logits(tmp_path / "m.gguf", "none"), expected)
    found = nmse(logits(tmp_path / "m.gguf", prepare), expected)
    assert stock < BOUND and found < min(BOUND, 2 * stock)


@pytest.mark.parametrize("dtype", ["q4_0", "q4_1", "q8_0"])
def test_stepping_gives_what_running_gives(tmp_path, dtype):
    write_quantized(tmp_path / "m.gguf", dtype)
    with kit.load(tmp_path / "m.gguf", n_threads=1, prepare=kit.Prepare(repack=True, prefill_copy="f16")) as model:
        ran = model.session(256).run(IDS, keep="blk.1.ffn.up")
        session = model.session(256)
        stepped = {step.name: step.value for step in session.steps(IDS) if step.name == "blk.1.ffn.up"}
    assert np.array_equal(session.last.logits, ran.logits)
    assert np.array_equal(stepped["blk.1.ffn.up"], ran["blk.1.ffn.up"])


def test_a_repacked_matrix_refuses_to_be_read_and_the_file_has_it_still(tmp_path):
    write_quantized(tmp_path / "m.gguf", "q4_0")
    with kit.load(tmp_path / "m.gguf", n_threads=1) as model:
        repacked = model.prepared.weights_for(1, 1)["blk.0.ffn_down.weight"]
        assert repacked.buffer_type == "CPU_REPACK"
        for use in (repacked.numpy, lambda: repacked.set(0)):
            with pytest.raises(kit.ArgumentError, match=r"blk\.0\.ffn_down\.weight.*CPU_REPACK.*model\.weights"):
                use()
        assert model.weights["blk.0.ffn_down.weight"].numpy().shape == repacked.shape


def test_split_weights_serve_every_pass_in_place_of_the_file(tmp_path):
    model = write_quantized(tmp_path / "m.gguf", "q4_1")
    with kit.load(tmp_path / "m.gguf", n_threads=1, prepare=kit.Prepare(repack=True)) as loaded:
        assert not loaded.prepared.plan.copies
        rows = [session.run([token]).logits[0] for session in [loaded.session(64)] for token in IDS[:9]]
    assert nmse(np.stack(rows), forward(model, IDS[:9])["logits"]) < BOUND


def test_only_matrices_that_a_kernel_takes_are_repacked(tmp_path):
    write_quantized(tmp_path / "m.gguf", "q4_0", n_vocab=259 + tiny.N_WORDS, untied=True)
    assert repack_type(dtype_of("q4_0"), (64, 64)) is not None
    assert repack_type(dtype_of("q4_0"), (63, 64)) is None
    assert repack_type(dtype_of("f16"), (64, 64)) is None
    with kit.load(tmp_path / "m.gguf", n_threads=1) as model:
        ways = {part.name: part.way for part in model.prepared.plan.parts}
    assert ways["blk.1.attn_qkv.weight"] == "repacked" and ways["output.weight"] == "repacked"


@pytest.mark.parametrize(
    ("shapes", "joined"),
    [
        ({"q.weight": (64, 64), "k.weight": (32, 64), "v.weight": (32, 64)}, True),
        ({"q.weight": (64, 64), "k.weight": (32, 64), "v.weight": (32, 64), "k.scale": (1,)}, False),
        ({"q.weight": (64, 64), "k.weight": (32, 64), "v.weight": (32, 64), "k.bias": (32,)}, False),
        ({"q.weight": (64, 64), "k.weight": (32, 64)}, False),
    ],
    ids=["alike", "one has a factor", "one has a bias", "one is missing"],
)
def test_only_matrices_that_are_alike_are_joined(backend, shapes, joined):
    with kit.Context(backend) as ctx:
        weights = {f"blk.0.attn_{name}": ctx.tensor(shape).set(0) for name, shape in shapes.items()}
        plan = plan_preparation(weights, JOIN, mapped=True)
    assert ("blk.0.attn_qkv.weight" in [part.name for part in plan.parts]) == joined


def test_experts_are_joined_expert_by_expert(backend):
    with kit.Context(backend) as ctx:
        values = {name: np.random.default_rng(len(name)).random((3, 8, 32), np.float32) for name in ("gate", "up")}
        weights = {f"blk.0.ffn_{name}_exps.weight": ctx.tensor((3, 8, 32)).set(v) for name, v in values.items()}
        (part,) = plan_preparation(weights, JOIN, mapped=True).parts
        target = ctx.tensor(part.shape, name=part.name).set(0)
        copies.join(target, [weights[name] for name in part.sources])
        assert part.name == "blk.0.ffn_gate_up_exps.weight"
        assert np.array_equal(target.numpy(), np.concatenate([values["gate"], values["up"]], axis=1))


def test_the_budget_is_kept_and_what_it_refused_is_told(tmp_path):
    write_quantized(tmp_path / "m.gguf", "q4_0")
    with kit.load(tmp_path / "m.gguf", n_threads=1, prepare=kit.Prepare(memory_budget=20_000)) as model:
        held = sum(buffer.nbytes for buffer in model.prepared.context.buffers)
        assert 0 < held <= 20_000 and model.prepared.nbytes <= 20_000
        assert "over the memory budget" in repr(model.prepared)
        assert np.array_equal(model.session(256).run(IDS).logits.shape, (len(IDS), model.config.n_vocab))
    with kit.load(tmp_path / "m.gguf", n_threads=1, prepare=kit.Prepare(memory_budget=0)) as model:
        assert model.prepared.nbytes == 0 and not model.prepared.context.buffers


def test_what_is_said_is_what_is_held(tmp_path):
    write_quantized(tmp_path / "m.gguf", "q4_1")
    with kit.load(tmp_path / "m.gguf", n_threads=1, prepare=kit.Prepare(prefill_copy="f16")) as model:
        held = sum(buffer.nbytes for buffer in model.prepared.context.buffers)
        padding = 64 * len(model.prepared.plan.parts + model.prepared.plan.copies)
        assert model.prepared.nbytes <= held <= model.prepared.nbytes + padding
        text = repr(model.prepared)
    assert "blk.*.ffn_gate_up.weight (2)" in text and "float16 copy" in text


def test_weights_that_were_read_are_not_held_twice(tmp_path):
    write_quantized(tmp_path / "m.gguf", "q4_0")
    with kit.load(tmp_path / "m.gguf", n_threads=1, use_mmap=False) as model:
        assert {part.way for part in model.prepared.plan.parts} <= {"file", "in place"}


def test_closing_the_model_frees_what_was_prepared(tmp_path):
    write_quantized(tmp_path / "m.gguf", "q4_1")
    before = {str(resource) for resource in kit.memory.live()}
    model = kit.load(tmp_path / "m.gguf", n_threads=1)
    assert any("prepared" in resource.owner for resource in kit.memory.live())
    model.close()
    assert {str(resource) for resource in kit.memory.live()} <= before
    assert model.prepared.context.closed


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    from kit.models.weights import prepared

    write_quantized(tmp_path / "m.gguf", "q4_0")
    before = {str(resource) for resource in kit.memory.live()}

    def fail(*args: object) -> None:
        raise kit.OutOfMemory("no room")

    monkeypatch.setitem(prepared._WAYS, "repacked", fail)
    with pytest.raises(kit.OutOfMemory):
        kit.load(tmp_path / "m.gguf", n_threads=1)
    assert {str(resource) for resource in kit.memory.live()} <= before


@pytest.mark.parametrize(
    "wrong",
    ["fast", 3, kit.Prepare(join="yes"), kit.Prepare(prefill_copy="f64"), kit.Prepare(memory_budget=-1)],
    ids=str,
)
def test_what_is_no_choice_is_refused(tiny_path, wrong):
    with pytest.raises(kit.ArgumentError, match="give"):
        kit.load(tiny_path("grouped"), prepare=wrong)


def test_prefill_and_decode_have_threads_of_their_own(tiny_path):
    from kit.core.compute import lib

    with kit.load(tiny_path("grouped"), n_threads=1, n_threads_batch=2) as model, model.session(256) as session:
        one = session.run(IDS).logits
        used = model.backend.state.n_threads
        session.run([5])
        assert (used, model.backend.state.n_threads) == (2, 1)
        assert lib.kit_pool_threads() >= 2
    assert np.array_equal(one, logits(tiny_path("grouped"), "auto"))
    with pytest.raises(kit.ArgumentError, match="n_threads_batch is 0"):
        kit.Backend(n_threads_batch=0)
