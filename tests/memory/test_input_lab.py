"""Inputs of a token, leaked or freed, in locked or ordinary memory. Growth and locks are the kernel's counts."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import kit
from kit.memory import InputLab, input_lab
from kit.memory.cost_chart import _binary_step

N_CTX, N_TOKENS = 4120, 200  # a mask of 16,480 bytes, as in Ollama's report
PAGE = 4096


@pytest.fixture(scope="module")
def session() -> Iterator[SimpleNamespace]:
    """What the lab looks at in a session, without a model's weights."""
    with kit.Backend(n_threads=1) as backend:
        yield SimpleNamespace(n_ctx=N_CTX, model=SimpleNamespace(backend=backend))


@pytest.fixture(scope="module")
def lab(session: SimpleNamespace) -> InputLab:
    return input_lab(session, N_TOKENS)


def test_four_legs(lab: InputLab) -> None:
    assert {(leg.leak, leg.memory) for leg in lab} == {
        (leak, memory) for leak in (False, True) for memory in ("host buffer", "ordinary memory")
    }


def test_leaked_inputs_grow_by_their_bytes_and_freed_ones_do_not(lab: InputLab) -> None:
    for leg in lab:
        whole = leg.nbytes_per_token * N_TOKENS
        if leg.leak:
            assert 0.9 * whole < leg.growth_nbytes < 2 * whole
            assert leg.r_squared > 0.9 and leg.growth_per_token > 0.9 * leg.nbytes_per_token
        else:
            assert leg.growth_nbytes < 1 << 20


def test_only_leaked_host_buffers_stay_locked(lab: InputLab) -> None:
    for leg in lab:
        pages = -(-leg.nbytes_per_token // PAGE) * PAGE
        locked = leg.leak and leg.got == "locked pages"
        assert leg.locked_nbytes == (pages * N_TOKENS if locked else 0)


def test_what_stands_in_for_a_missing_host_buffer_is_said(lab: InputLab) -> None:
    if kit.devices()[0].host_buffer_type is None:
        leg = lab.leg(leak=True, memory="host buffer")
        assert leg.got == "locked pages" and "no host buffer type" in leg.note and leg.note in lab.text()


def test_everything_leaked_is_freed_at_the_end(session: SimpleNamespace) -> None:
    before = kit.memory.live()
    input_lab(session, 20)
    assert kit.memory.live() == before


def test_an_interrupt_frees_what_was_leaked_so_far(session: SimpleNamespace) -> None:
    before = kit.memory.live()
    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            input_lab(session, 1_000_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert kit.memory.live() == before


def test_every_form_is_whole(lab: InputLab) -> None:
    assert lab.png().startswith(b"\x89PNG") and lab.svg().lstrip().startswith("<?xml")
    assert json.loads(lab.json())["legs"][0]["n_tokens"] == N_TOKENS
    page = lab.html()
    assert "http:" not in page and "https:" not in page and "leak, host buffer" in page
    assert "a token's inputs take" in lab.conclusion and lab.conclusion in lab.text()


def test_senseless_arguments_are_named(session: SimpleNamespace, lab: InputLab) -> None:
    with pytest.raises(kit.ArgumentError, match="n_tokens"):
        input_lab(session, 1)
    with pytest.raises(kit.ArgumentError, match="no leg in 'swap'"):
        lab.leg(leak=True, memory="swap")


@pytest.mark.model
def test_a_session_lends_its_backend_and_is_not_changed() -> None:
    try:
        model = kit.load("smollm2-135m")
    except kit.FetchError as error:
        pytest.skip(f"the demo model is not here and cannot be fetched: {error}")
    with model, model.session(n_ctx=256) as session:
        seen = session.run("Hello").tokens
        lab = input_lab(session, 20)
        assert lab[0].nbytes_per_token == 3 * 64 + 256 * 4
        assert session.tokens == tuple(seen) and session.run(" there").logits.shape[0] >= 1


def test_the_picture_names_what_stands_in_for_a_host_buffer(lab: InputLab) -> None:
    picture = lab.svg()
    for leg in lab:
        assert leg.shown.splitlines()[0] in picture  # matplotlib writes each label down as a comment
        assert (leg.got in leg.shown) == bool(leg.note)


@pytest.mark.parametrize(
    ("most", "step"), [(0, 0.5), (4096, 1024), (800_000, 200 * 1024), (3 << 20, 1 << 20), (9 << 30, 5 << 30)]
)
def test_ticks_of_bytes_are_round_in_their_unit(most: int, step: float) -> None:
    assert _binary_step(most) == step
