"""What is given in place of an argument is refused by name, before anything runs, and the session stays as it was."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

import kit
from kit.checks import is_whole

HUGE = 10**400

CALLS = {
    "shift by text": lambda s: s.shift("a"),
    "shift by half": lambda s: s.shift(1.5),
    "shift away text": lambda s: s.shift(1, "a"),
    "no prompt": lambda s: s.generate(5),
    "prompt None": lambda s: s.generate(None),
    "max_tokens": lambda s: s.generate("a", max_tokens="x"),
    "stop number": lambda s: s.generate("a", stop=5),
    "stop None": lambda s: s.generate("a", stop=None),
    "sampler": lambda s: s.generate("a", sampler=5),
    "sampler 0": lambda s: s.generate("a", sampler=0),
    "prompts": lambda s: s.generate_batch(5),
    "prompts one text": lambda s: s.generate_batch("abc"),
    "prompts None": lambda s: s.generate_batch([None]),
    "prompts numbers": lambda s: s.generate_batch([1, 2]),
    "batch sampler": lambda s: s.generate_batch(["a"], sampler=5),
    "keep number": lambda s: s.run([1], keep=5),
    "keep None": lambda s: s.run([1], keep=None),
    "keep list of numbers": lambda s: s.run([1], keep=[1]),
    "patch list": lambda s: s.run([1], patch=[1]),
    "patch empty list": lambda s: s.run([1], patch=[]),
    "patch None": lambda s: s.run([1], patch={"embed": None}),
    "patch by number": lambda s: s.run([1], patch={1: abs}),
    "encode None": lambda s: s.tokenizer.encode(None),
    "decode text": lambda s: s.tokenizer.decode(["a"]),
    "decode half": lambda s: s.tokenizer.decode([1.5]),
    "decode number": lambda s: s.tokenizer.decode(5),
    "lens of text": lambda s: s.model.lens("a"),
    "flash_attn": lambda s: s.model.session(flash_attn="yes"),
    "n_ctx": lambda s: s.model.session(n_ctx=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused(session, name):
    session.run([3, 4, 5])
    with pytest.raises(kit.ArgumentError):
        CALLS[name](session)
    assert session.tokens == (3, 4, 5) and not session.branches


def test_a_cache_of_one_token_can_be_opened(model):
    with model.session(n_ctx=1) as session:
        assert len(session.run([3]).logits) == 1
    with pytest.raises(kit.ArgumentError, match="n_keep is 1"):
        model.session(n_ctx=1, on_full="shift")


def test_a_pipe_is_no_model(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(kit.ModelNotFound, match="pipe is no regular file"):
        kit.load(tmp_path / "pipe")


@pytest.mark.parametrize("index", [5, "a", None, True])
def test_no_branch_of_that_number(session, index):
    session.run([3, 4, 5])
    with session.fork(2) as branches:
        with pytest.raises(kit.ArgumentError, match="number of a branch"):
            branches.keep(index)
        branches.keep(-1)


@pytest.mark.parametrize(
    "options",
    [
        {"use_mmap": "no"},
        {"progress": "no"},
        {"sliding_window": "no"},
        {"n_threads": True},
        {"n_threads": 0},
        {"n_threads_batch": 1.0},
        {"readers": "a"},
        {"backend": "CPU"},
        {"prepare": 5},
    ],
    ids=str,
)
def test_a_model_is_loaded_with_nothing_odd(tiny_path, options):
    live = kit.memory.live()
    with pytest.raises(kit.ArgumentError, match=next(iter(options))):
        kit.load(tiny_path("grouped"), **{"progress": False} | options)
    assert kit.memory.live() == live


@pytest.mark.parametrize("name", ["n_threads", "n_threads_batch"])
def test_threads_belong_to_the_models_own_backend(tiny_path, name):
    with kit.Backend(n_threads=1) as backend, pytest.raises(kit.ArgumentError, match=name):
        kit.load(tiny_path("grouped"), backend=backend, progress=False, **{name: 1})


@pytest.mark.parametrize("settings", [{"temperature": HUGE}, {"logit_bias": {1: HUGE}}, {"top_k": -HUGE}], ids=str)
def test_a_number_no_float_holds_is_refused(settings):
    with pytest.raises(kit.ArgumentError, match="expected"):
        kit.Sampler(**settings)


def test_huge_penalties_rule_out_every_token_in_so_many_words():
    sampler = kit.Sampler(repeat_penalty=1e300, frequency_penalty=1e300, logit_bias={0: 1e300})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(kit.ArgumentError, match="too large"):
            sampler.sample(np.array([-1.0, -2.0], np.float32), [0, 1])


def test_a_whole_number_is_pythons_or_numpys_and_no_bool():
    assert [is_whole(value) for value in (1, np.int64(7), HUGE)] == [True] * 3
    assert not any(is_whole(value) for value in (0, -1, True, np.True_, 1.0, "1", None, np.float32(1)))
    assert is_whole(3, 0, 3) and not is_whole(4, 0, 3)
