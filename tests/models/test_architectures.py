"""What sets models apart: joined tensors, experts, context-dependent rotation, windows; looked at and changed."""

from __future__ import annotations

import numpy as np
import pytest

import kit

from . import tiny
from .reference import forward, silu
from .test_reference import IDS, NMSE, nmse


@pytest.fixture
def write(tmp_path):
    """Write a tiny model, changed as wanted; return its path."""

    def written(model: tiny.Tiny, **changes):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
        tiny.write(path, model, **changes)
        return path

    return written


@pytest.fixture
def mixed(tiny_path):
    with kit.load(tiny_path("experts"), n_threads=1) as model, model.session(n_ctx=64) as session:
        yield session


@pytest.mark.parametrize(("n_ctx", "table"), [(64, "short"), (65, "long")])
def test_longrope_takes_its_long_table_for_a_context_beyond_training(tiny_path, n_ctx, table):
    tiny_model = tiny.Tiny(**tiny.KINDS["longrope-as-trained"])
    with kit.load(tiny_path("longrope-as-trained"), n_threads=1) as model, model.session(n_ctx=n_ctx) as session:
        logits = session.run(IDS).logits
    same, other = (forward(tiny_model, IDS, n)["logits"] for n in ((64, 65) if table == "short" else (65, 64)))
    assert nmse(logits, same) < NMSE < nmse(logits, other)


@pytest.mark.parametrize("flash", [False, True])
def test_a_window_is_left_out_where_llama_cpps_behaviour_is_wanted(tiny_path, flash):
    with kit.load(tiny_path("window"), n_threads=1, sliding_window=False) as model:
        assert model.config.window is None
        logits = model.session(n_ctx=64, flash_attn=flash).run(IDS).logits
    assert nmse(logits, forward(tiny.Tiny(), IDS)["logits"]) < NMSE


def test_a_window_holds_over_several_passes(tiny_path):
    with kit.load(tiny_path("window"), n_threads=1) as model:
        assert model.config.window == 4
        session = model.session(n_ctx=64)
        rows = np.concatenate([session.run(part).logits for part in (IDS[:3], IDS[3:9], IDS[9:])])
    assert nmse(rows, forward(tiny.Tiny(window=4), IDS)["logits"]) < NMSE


VIEWS = ["blk.0.attn.v", "blk.1.ffn.gate", "blk.1.ffn.up"]


@pytest.fixture(params=[("grouped", "joined"), ("experts", None)], ids=["dense", "experts"])
def pair(request, tiny_path, write):
    """Sessions of the same weights, apart and joined."""
    apart, joined = request.param
    path = tiny_path(joined) if joined else write(tiny.Tiny(**tiny.KINDS[apart], joined=True))
    with kit.load(tiny_path(apart), n_threads=1) as one, kit.load(path, n_threads=1) as other:
        yield one.session(n_ctx=64), other.session(n_ctx=64)


@pytest.mark.parametrize("n", [1, 8])
def test_stages_of_joined_tensors_are_those_of_tensors_apart(pair, n):
    apart, joined = (session.run(IDS[:n], keep="*") for session in pair)
    assert apart.names == joined.names
    assert all(nmse(joined[name], apart[name]) < 1e-10 for name in apart.names)


@pytest.mark.parametrize("name", VIEWS)
def test_a_part_of_a_joined_tensor_can_be_patched(pair, name):
    apart, joined = (session.run(IDS, keep=name, patch={name: lambda value: value * -2 + 1}) for session in pair)
    for session in pair:
        session.reset()
    plain = pair[0].run(IDS)
    assert nmse(joined[name], apart[name]) < 1e-10
    assert nmse(joined.logits, apart.logits) < 1e-10 < nmse(joined.logits, plain.logits)


@pytest.mark.parametrize("name", VIEWS)
def test_a_part_of_a_joined_tensor_can_be_changed_at_a_step(pair, name):
    for session in pair:
        for step in session.steps(IDS):
            if step.name == name:
                step.value[2:] = 0.25
                step.commit()
    apart, joined = (session.last.logits for session in pair)
    assert nmse(joined, apart) < 1e-10


def test_a_joined_tensor_may_have_its_biases_apart(tiny_path, write):
    model = tiny.Tiny(**tiny.KINDS["biased"])
    for i in range(model.n_layer):
        parts = [model.weights.pop(f"blk.{i}.attn_{part}.weight") for part in "qkv"]
        model.weights[f"blk.{i}.attn_qkv.weight"] = np.concatenate(parts)
    with kit.load(write(model), n_threads=1) as loaded:
        logits = loaded.session(n_ctx=64).run(IDS).logits
    assert nmse(logits, forward(tiny.Tiny(**tiny.KINDS["biased"]), IDS)["logits"]) < NMSE


def test_only_a_mixture_has_experts_to_look_at(session, mixed):
    assert [name for name in mixed.stages if name.endswith(".experts")] == ["blk.0.ffn.experts", "blk.1.ffn.experts"]
    assert mixed.stages.index("blk.0.ffn.experts") == mixed.stages.index("blk.0.ffn.norm") + 1
    with pytest.raises(kit.UnknownStage, match=r"'\*\.experts'"):
        session.run(IDS, keep="*.experts")


def test_two_experts_of_four_share_each_token(mixed):
    shares = mixed.run(IDS, keep="*.experts")["blk.1.ffn.experts"]
    assert shares.shape == (len(IDS), 4)
    assert ((shares > 0).sum(1) == 2).all() and np.allclose(shares.sum(1), 1, atol=1e-6)


def expert(model: tiny.Tiny, block: int, number: int, h: np.ndarray) -> np.ndarray:
    gate, up, down = (model.weights[f"blk.{block}.ffn_{part}_exps.weight"][number] for part in ("gate", "up", "down"))
    return (silu(h @ gate.T) * (h @ up.T)) @ down.T


@pytest.mark.parametrize("chosen", [{3: 1.0}, {0: 0.5, 2: -1.5}, {}], ids=["one", "two", "none"])
def test_patched_shares_choose_other_experts(mixed, chosen):
    model, name = tiny.Tiny(**tiny.KINDS["experts"]), "blk.1.ffn."
    shares = np.zeros((len(IDS), 4), np.float32)
    for number, weight in chosen.items():
        shares[:, number] = weight
    run = mixed.run(IDS, keep=[name + "norm", name + "out"], patch={name + "experts": shares})
    expected = sum((weight * expert(model, 1, number, run[name + "norm"]) for number, weight in chosen.items()), 0.0)
    assert np.abs(run[name + "out"] - expected).max() < 2e-3


def test_an_expert_can_be_switched_off_at_a_step(mixed):
    for step in mixed.steps(IDS):
        if step.name == "blk.1.ffn.experts":
            step.value[:, 2] = 0
            step.commit()
    walked = mixed.last.logits
    mixed.reset()

    def off(shares):
        shares[:, 2] = 0

    assert np.array_equal(mixed.run(IDS, patch={"blk.1.ffn.experts": off}).logits, walked)


@pytest.mark.parametrize("kind", ["grouped", "experts", "joined-experts"])
def test_a_factor_beside_a_tensor_multiplies_its_product(write, kind):
    scaled, plain = tiny.Tiny(**tiny.KINDS[kind]), tiny.Tiny(**tiny.KINDS[kind])
    factors = {"attn_output": 2.0, "ffn_down": 0.5} if not plain.n_expert else {"ffn_down_exps": [1.0, 2.0, -1.0, 0.5]}
    if kind == "joined-experts":
        factors = {"ffn_gate_up_exps": np.linspace(0.5, 2, 8)}
    for name, factor in factors.items():
        array = np.ravel(np.asarray(factor, np.float32))
        scaled.weights |= {f"blk.1.{name}.scale": array, f"blk.1.{name}.input_scale": np.full_like(array, 7)}
        for part in [name] if name != "ffn_gate_up_exps" else ["ffn_gate_exps", "ffn_up_exps"]:
            weight = plain.weights[f"blk.1.{part}.weight"]
            weight *= array.reshape(-1, *[1] * (weight.ndim - 1))
    with kit.load(write(scaled), n_threads=1) as model:
        logits = model.session(n_ctx=64).run(IDS).logits
    assert nmse(logits, forward(plain, IDS)["logits"]) < NMSE


def test_the_largest_sizes_stand_for_the_model(tiny_path):
    with kit.load(tiny_path("sizes-per-block"), n_threads=1) as model:
        config = model.config
        assert [(s.n_head, s.n_head_kv, s.n_ff) for s in config.layers] == [(4, 2, 96), (2, 1, 32), (6, 6, 64)]
        assert (config.n_head, config.n_head_kv, config.n_ff, config.n_embd_kv) == (6, 6, 96, 96)
        session = model.session(n_ctx=64)
        assert [keys.shape[-1] for keys in session.cache.k] == [32, 16, 96]


@pytest.mark.parametrize("kind", ["experts", "sizes-per-block", "joined", "mistral3"])
def test_the_lens_and_generation_work_on_every_kind(tiny_path, kind):
    with kit.load(tiny_path(kind), n_threads=1) as model:
        session = model.session(n_ctx=64)
        run = session.run(IDS, keep="blk.*.resid")
        last = model.lens_logits(run[run.names[-1]])
        assert nmse(last, run.logits) < 1e-10
        first = next(session.generate(max_tokens=1, sampler=kit.Sampler(temperature=0)))
        assert first.id == run.logits[-1].argmax()
