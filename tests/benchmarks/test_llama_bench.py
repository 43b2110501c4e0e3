"""What llama-bench is asked, and what its answer says.

data/llama-bench.json is what the llama-bench of llama-cpp-python 0.3.36 printed for
``-p 32 -n 8 -t 2,1 -fa on,off -r 3 -o json`` and the demo model.
"""

import json
import pathlib

import pytest

import kit
from benchmarks import files
from benchmarks.peers import llama_bench, llamacpp
from benchmarks.peers.llama_bench import Options
from benchmarks.peers.store import PeerMissing

RECORDED = (pathlib.Path(__file__).parent / "data" / "llama-bench.json").read_text(encoding="utf-8")


def test_every_test_of_a_run_is_read() -> None:
    results = llama_bench.parse(RECORDED)
    asked = {(r.n_prompt, r.n_gen, r.n_threads, r.flash) for r in results}
    assert asked == {(p, n, t, f) for p, n in ((32, 0), (0, 8)) for t in (1, 2) for f in (True, False)}
    assert len(results) == len(asked)


def test_times_are_those_of_the_repetitions() -> None:
    for result, row in zip(llama_bench.parse(RECORDED), json.loads(RECORDED), strict=True):
        assert len(result.samples_ns) == 3
        assert result.mean_s == pytest.approx(row["avg_ns"] / 1e9, rel=1e-6)
        # llama-bench's own speed is the mean of the repetitions' speeds
        speeds = [(result.n_prompt + result.n_gen) / ns * 1e9 for ns in result.samples_ns]
        assert sum(speeds) / 3 == pytest.approx(row["avg_ts"], rel=1e-3)


@pytest.mark.parametrize(
    "text", ["", "[{]", "{}", '[{"n_prompt": 1}]', RECORDED.replace("samples_ns", "samples"), '["row"]', "[null]"]
)
def test_another_output_is_refused(text: str) -> None:
    if text == "{}":
        assert llama_bench.parse(text) == []
        return
    with pytest.raises(PeerMissing, match="llama-bench's output is not what was expected"):
        llama_bench.parse(text)


def test_settings_reach_the_command_line() -> None:
    options = Options(1, flash=False, n_ubatch=128, repack=False)
    line = llama_bench.command(pathlib.Path("llama-bench"), pathlib.Path("m.gguf"), options, prefill=512)
    assert " ".join(line) == "llama-bench -m m.gguf -t 1 -fa off -ub 128 --repack 0 -p 512 -n 0 -r 1 -o json"
    assert str(options) == "llama-bench, 1 thread, no flash, ubatch 128, no repack"


@pytest.mark.long
@pytest.mark.model
def test_llama_bench_itself_answers() -> None:
    program = llamacpp.programs() / "llama-bench"
    path = files.model_file("Q4_1")
    assert llama_bench.measure(program, path, Options(1), prefill=16) > 0
    assert llama_bench.measure(program, path, Options(1, flash=False), decode=4) > 0
    with pytest.raises(PeerMissing, match="no-such-file"):
        llama_bench.measure(program, pathlib.Path("no-such-file.gguf"), Options(1), decode=4)


def test_the_demo_model_is_the_q4_1_file(demo_model_path: pathlib.Path) -> None:
    assert files.model_file("Q4_1") == kit.find_model("smollm2-135m") == demo_model_path
    assert files.contents(demo_model_path) == "Q4_1 69%, Q8_0 31%"
