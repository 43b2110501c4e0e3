"""How times become figures."""

import pathlib

import pytest

from benchmarks import engine, machine
from benchmarks.engine import Comparison, Work
from benchmarks.measure import samples
from benchmarks.settings import Setting


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Comparison:
    monkeypatch.setattr(engine.files, "bytes_per_token", lambda path: 100_000_000)
    monkeypatch.setattr(engine.files, "multiply_adds", lambda path, n: n * 1e8)
    monkeypatch.setattr(engine.files, "contents", lambda path: "Q4_1 100%")
    times = {
        "decode a": [2.0, 1.0, 4.0],
        "decode b": [1.9, 3.0, 2.5],
        "decode peer": [3.0, 4.0, 3.5],
        "prefill a": [2.0, 1.0, 4.0],
        "prefill peer": [2.0, 2.0, 2.0],
        "memory": [0.1, 0.2, 0.05],
        "arithmetic": [0.02, 0.01, 0.04],
    }
    return Comparison(pathlib.Path("model.gguf"), times, Work(rounds=3, n_decode=100, n_prefill=200))


def test_medians_are_compared(table: Comparison) -> None:
    figure = table.figure("decode", "decode", "a", "peer", engine.FASTER)
    assert (figure.ours_s, figure.peer_s, figure.value) == (2.0, 3.5, 2.0 / 3.5)
    assert figure.met
    assert "50.0 (25.0-100.0) against 28.6 (25.0-33.3) tok/s: 1.75x" in figure.note


def test_as_fast_is_not_faster(table: Comparison) -> None:
    assert table.figure("prefill", "prefill", "a", "peer", engine.AS_FAST).met
    assert not table.figure("prefill", "prefill", "a", "peer", engine.FASTER).met


def test_the_fastest_is_by_median(table: Comparison) -> None:
    assert table.fastest("decode", ["peer", "b", "a"]) == "a"


def test_shares_of_what_the_machine_can_do(table: Comparison) -> None:
    # 100 tokens of 0.1 GB in 2 s are 5 GB/s, of 10 GB/s; 200 tokens of 0.2 GFLOP in 2 s are 20 GFLOP/s, of 100
    assert "50% of 10.0 GB/s" in table.figure("decode", "decode", "a", "peer", 1).note
    assert "20% of 100 GFLOP/s" in table.figure("prefill", "prefill", "a", "peer", 1).note


def test_every_candidate_takes_its_turn_in_every_round() -> None:
    turns: list[str] = []
    times = samples({name: lambda name=name: turns.append(name) or 1.0 for name in "abc"}, 2)
    assert "".join(turns) == "abc" + "bca" + "cab"
    assert times == {"a": [1.0, 1.0], "b": [1.0, 1.0], "c": [1.0, 1.0]}


def test_the_probe_counts_what_it_does(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    monkeypatch.setattr(machine, "_N_BYTES", 1 << 22)
    monkeypatch.setattr(machine, "_N_TURNS", 1000)
    probe = machine.Probe()
    assert probe.read_bytes_per_s(1) > 1e6
    assert probe.multiply_adds_per_s(2) > 1e5


def test_more_is_asked_where_something_was_built(table: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "OURS", (Setting("default"), Setting("built", plain=False)))
    speeds = {"default, flash": 2.0, "default, no flash": 2.4, "built, flash": 1.5, "built, no flash": 1.1}
    times = {f"{kind} {key}": [s] for kind in ("decode", "prefill") for key, s in speeds.items()}
    times |= {"prefill peer": [2.0], "decode peer": [1.2], "prefill transformers": [1.0], "decode transformers": [9.0]}
    table = Comparison(pathlib.Path("model.gguf"), times | {"memory": [0.1], "arithmetic": [0.1]}, Work(1, 128, 512))
    figures = engine._type_figures(table, "Q4_1", {"prefill": ["peer"], "decode": ["peer"]}, Work(1, 128, 512))
    assert [(figure.name, figure.ours_s, figure.peer, figure.met) for figure in figures] == [
        ("Q4_1 decode 128", 1.1, "peer", True),
        ("Q4_1 prefill 512, no build, no copy", 2.0, "peer", True),
        ("Q4_1 prefill 512, with a build or a copy", 1.1, "peer", True),
        ("Q4_1 prefill 512, our fastest against the fastest", 1.1, "transformers", False),
        ("Q4_1 decode 128", 1.1, "transformers", True),
    ]
