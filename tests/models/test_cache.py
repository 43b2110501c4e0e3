"""Cache types, padding, micro-batches, what is allocated; the reference is the float64 pass of reference.py."""

from __future__ import annotations

import numpy as np
import pytest

import kit
from kit.models.cache.cache import CacheTypes

from . import tiny
from .reference import forward

IDS = [1, 100, 7, 42, 42, 250, 3, 99, 180, 12, 5]
SAMPLE = kit.Sampler(temperature=0)

# Mean squared error over mean square of the logits. What a type rounds by, relative and squared: f16 2**-22, bf16
# 2**-16, q8_0 about 1e-5 of the block's largest, q4_0 about 3e-3 of it; attention averages, residuals dilute.
NMSE = {"f32": 1e-6, "f16": 2e-6, "bf16": 1e-4, "q8_0": 1e-4, "q4_0": 3e-2}


def nmse(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.mean((found - expected) ** 2) / np.mean(expected**2))


@pytest.fixture
def wide(tiny_path):
    """Heads of 32, a whole block of every cache type."""
    with kit.load(tiny_path("wide-heads-untied"), n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def expected():
    return forward(tiny.Tiny(**tiny.KINDS["wide-heads-untied"]), IDS)


@pytest.mark.parametrize("flash", [None, True])
@pytest.mark.parametrize("kind", NMSE)
def test_logits_of_every_cache_type_are_near_the_reference(wide, expected, kind, flash):
    with wide.session(n_ctx=64, flash_attn=flash, cache_type=kind) as session:
        whole = session.run(IDS).logits
        assert nmse(whole, expected["logits"]) < NMSE[kind]
        session.reset()
        one_by_one = np.concatenate([session.run([token]).logits for token in IDS])
        assert nmse(one_by_one, expected["logits"]) < NMSE[kind]


def test_coarser_types_err_more(wide, expected):
    errors = []
    for kind in ("f16", "q8_0", "q4_0"):
        with wide.session(n_ctx=64, cache_type=kind, flash_attn=True) as session:
            errors.append(nmse(session.run(IDS).logits, expected["logits"]))
    assert errors[0] * 4 < errors[1] and errors[1] * 4 < errors[2]


@pytest.mark.parametrize("types", [("q8_0", "f16"), ("f16", "q8_0"), ("f32", "bf16"), ("q4_0", "f32")])
def test_keys_and_values_may_differ_in_type(wide, expected, types):
    bound = max(NMSE[kind] for kind in types)
    with wide.session(n_ctx=64, cache_type_k=types[0], cache_type_v=types[1]) as session:
        assert (session.cache.k[0].dtype, session.cache.v[0].dtype) == types
        assert nmse(session.run(IDS).logits, expected["logits"]) < bound


@pytest.mark.parametrize("kind", NMSE)
def test_scores_can_be_looked_at_over_every_cache_type(wide, expected, kind):
    with wide.session(n_ctx=64, flash_attn=True, cache_type=kind) as session:
        scores = session.run(IDS, keep="blk.0.attn.scores")["blk.0.attn.scores"]
    assert nmse(scores, expected["blk.0.attn.scores"]) < NMSE[kind]
    assert np.allclose(scores.sum(-1), 1, atol=1e-5)


def test_the_bytes_of_a_cache_are_those_of_its_types(wide):
    for kind, bits in (("f32", 32), ("f16", 16), ("bf16", 16), ("q8_0", 8.5), ("q4_0", 4.5)):
        with wide.session(n_ctx=256, cache_type=kind) as session:
            assert session.cache.nbytes == 256 * 2 * wide.config.n_layer * wide.config.n_embd_kv * bits / 8
            assert session.cache.nbytes == 256 * CacheTypes(kind, kind).token_nbytes(wide.config)
            assert f"of {kind}" in repr(session)


@pytest.mark.parametrize(
    ("kind", "flash", "chosen", "why"),
    [
        ("f16", None, "permuted", "default"),
        ("f16", True, "flash", "asked"),
        ("f16", False, "permuted", "declined"),
        ("q8_0", None, "flash", "q8_0 values"),
        ("q4_0", True, "flash", "asked"),
    ],
)
def test_the_implementation_is_chosen_with_its_reason(wide, kind, flash, chosen, why):
    with wide.session(n_ctx=64, flash_attn=flash, cache_type=kind) as session:
        assert session.attention.kind == chosen and why in session.attention.reason
        assert f"{chosen} attention" in repr(session)


def test_quantized_keys_alone_keep_the_scores_in_the_pass(wide):
    with wide.session(n_ctx=64, cache_type_k="q8_0") as session:
        assert session.attention.kind == "permuted"


def test_quantized_values_without_flash_are_refused(wide):
    before = kit.memory.live()
    with pytest.raises(kit.ArgumentError, match=r"cache_type_v='q4_0'.*flash"):
        wide.session(n_ctx=64, flash_attn=False, cache_type="q4_0")
    assert kit.memory.live() == before


def test_a_type_that_does_not_fit_the_heads_is_refused_by_name(model):
    before = kit.memory.live()
    assert model.config.head_dim == 16
    with pytest.raises(kit.DTypeError, match=r"cache_type_k='q8_0' packs 32 elements.*have 16"):
        model.session(n_ctx=64, cache_type="q8_0")
    with pytest.raises(kit.DTypeError, match=r"cache_type_v='q4_0'"):
        model.session(n_ctx=64, cache_type_v="q4_0")
    assert kit.memory.live() == before


@pytest.mark.parametrize("kind", ["q5_k", "i32", "half", 16, ""])
def test_another_type_is_refused_by_name(model, kind):
    with pytest.raises(kit.DTypeError, match=rf"cache_type_v is {kind!r}; give one of f16"):
        model.session(n_ctx=64, cache_type_v=kind) if kind else CacheTypes(v=kind)


@pytest.mark.parametrize("flash", [None, True])
def test_micro_batches_give_the_logits_and_stages_of_one_pass(model, flash):
    ids = [3 + i % 256 for i in range(100)]
    names = ["blk.*.attn.scores", "blk.1.resid", "norm"]
    with model.session(n_ctx=128, flash_attn=flash) as whole:
        expected = whole.run(ids, keep=names)
    with model.session(n_ctx=128, n_batch=64, n_ubatch=16, flash_attn=flash) as session:
        assert nmse(session.run(ids).logits, expected.logits) < NMSE["f16"]
        session.reset()
        run = session.run(ids, keep=names)
        assert all(nmse(run[name], expected[name]) < NMSE["f16"] for name in expected.names)
        session.reset()
        last = session.run(ids, keep="norm", logits="last")
        assert nmse(last.logits, expected.logits[-1:]) < NMSE["f16"] and last["norm"].shape == (1, 64)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_micro_batch_that_is_none_is_refused(model, size):
    with pytest.raises(kit.ArgumentError, match=r"n_ubatch is .*whole number"):
        model.session(n_ctx=64, n_ubatch=size)


def allocations(memory: kit.Tracker) -> list[str]:
    """What was allocated but for the metadata of graphs."""
    events = [event for event in memory.report().events if event.action == "alloc" and event.size]
    return [str(event) for event in events if event.kind != "context" and event.purpose != "metadata"]


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_nothing_is_allocated_after_open(wide, kind):
    with wide.session(n_ctx=300, n_ubatch=32, cache_type=kind) as session, kit.Tracker() as memory:
        session.run([3 + i % 256 for i in range(250)])
        session.run([9, 8, 7], keep=["blk.*.resid", "blk.*.attn.q"], logits="last")
        list(session.generate([5], max_tokens=30, sampler=SAMPLE))
    assert allocations(memory) == []


def test_the_passes_that_are_kept_are_few(model):
    with model.session(n_ctx=512) as session:

        def contexts() -> int:
            return sum(resource.kind == "context" for resource in kit.memory.live())

        for n in range(1, 12):
            session.run([7] * n)
        before = contexts()
        for n in range(12, 24):
            session.run([7] * n)
        assert contexts() == before


@pytest.fixture
def windowed(tiny_path):
    """A sliding window of 4 tokens."""
    with kit.load(tiny_path("window"), n_threads=1) as model:
        assert model.config.window == 4
        yield model


def inside(scores: np.ndarray) -> np.ndarray:
    """Full causal scores over the last 4 tokens alone: a softmax over fewer is the same, scaled to 1."""
    n = scores.shape[-1]
    distance = np.arange(n)[:, None] - np.arange(n)[None, :]
    kept = scores * (distance < 4)
    return kept / kept.sum(-1, keepdims=True)


@pytest.mark.parametrize("flash", [None, True])
def test_a_sliding_window_is_full_attention_cut_to_the_window(tiny_path, windowed, flash):
    with kit.load(tiny_path("window"), n_threads=1, sliding_window=False) as full, full.session(n_ctx=64) as session:
        expected = session.run(IDS, keep="blk.*.attn.scores", patch={"blk.*.attn.scores": inside})
    with windowed.session(n_ctx=64, flash_attn=flash) as session:
        run = session.run(IDS, keep="blk.*.attn.scores")
        assert nmse(run["blk.1.attn.scores"], expected["blk.1.attn.scores"]) < NMSE["f16"]
        assert nmse(run.logits, expected.logits) < NMSE["f16"]
        session.reset()
        one_by_one = np.concatenate([session.run([token]).logits for token in IDS])
        assert nmse(one_by_one, expected.logits) < NMSE["f16"]


@pytest.mark.parametrize("flash", [None, True])
def test_behind_a_sliding_window_cells_are_used_again(windowed, flash):
    ids = [3 + (7 * i) % 256 for i in range(60)]
    with windowed.session(n_ctx=64, flash_attn=flash) as roomy, windowed.session(n_ctx=12, flash_attn=flash) as small:
        expected = roomy.run(ids).logits
        rows = [small.run(ids[start : start + 5]).logits for start in range(0, 60, 5)]
        assert nmse(np.concatenate(rows), expected) < NMSE["f16"]
        assert small.tokens == tuple(ids) and small.cache.n_used <= 12
        with pytest.raises(kit.CacheFull, match="n_ctx=12"):
            small.run([5] * 13)


def test_an_interrupted_batch_leaves_no_token_in_the_cache(model, monkeypatch):
    with model.session(n_ctx=128, n_ubatch=16) as session:
        session.run(IDS)
        compute, calls = model.backend.compute, []

        def third_fails(graph, watch=None):
            calls.append(graph)
            if len(calls) == 3:
                raise KeyboardInterrupt
            compute(graph, watch)

        monkeypatch.setattr(model.backend, "compute", third_fails)
        with pytest.raises(KeyboardInterrupt):
            session.run([5] * 60)
        monkeypatch.undo()
        assert session.cache.n_used == len(IDS) == session.n_past
        after = session.run([5, 6]).logits
        session.reset()
        assert nmse(after, session.run([*IDS, 5, 6]).logits[-2:]) < NMSE["f16"]
