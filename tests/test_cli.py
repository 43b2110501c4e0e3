"""The command line: through click's runner where that is enough, as the real program where it matters."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner, Result

import kit
from kit.cli import main

#: what matplotlib says once on a new machine, if that takes it long
FONTS = "Matplotlib is building the font cache; this may take a moment.\n"
KIT = pathlib.Path(sys.executable).with_name("kit")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def program(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [KIT, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=300)


@pytest.fixture
def tiny_file(tmp_path: pathlib.Path) -> pathlib.Path:
    """A GGUF file whose texts try to steer a terminal."""
    import gguf
    import numpy as np

    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("\x1b[2Jtiny\u202e")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(100)])
    for name in ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "output_norm.weight"):
        writer.add_tensor(name, np.zeros((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_version() -> None:
    assert invoke("--version").output == f"kit, version {kit.__version__}\n"


def test_help_names_every_command() -> None:
    text = invoke("--help").output
    assert set(main.commands) == {
        "backend",
        "bench",
        "chat",
        "convert",
        "costs",
        "demo",
        "devices",
        "gguf",
        "model",
        "run",
        "step",
        "watch",
    }
    assert all(re.search(rf"^  {name} +\S", text, re.MULTILINE) for name in main.commands)


def test_importing_it_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import kit.cli; took = time.perf_counter() - start; "
        "heavy = {'numpy', 'rich', 'matplotlib', 'tokenizers', 'gguf', 'kit._native'} & set(sys.modules); "
        "print(took, sorted(heavy))"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout for _ in range(3)]
    assert all(run.split(" ", 1)[1] == "[]\n" for run in runs)
    assert min(float(run.split()[0]) for run in runs) < 0.3


def test_devices_lists_the_cpu_and_what_it_can() -> None:
    result = invoke("devices")
    assert result.exit_code == 0
    assert "CPU.0" in result.output
    assert all(feature in result.output for feature in kit.devices()[0].features)


def test_gguf_folds_blocks_and_escapes(tiny_file: pathlib.Path) -> None:
    result = invoke("gguf", tiny_file)
    assert result.exit_code == 0
    assert re.search(r"blk\.\*\.attn_q\.weight +x 2 +f32 +\[32, 4\]", result.output)
    assert "\\x1b[2Jtiny\\u202e" in result.output
    assert not [c for c in result.output if not c.isprintable() and c != "\n"]


def test_gguf_lists_every_tensor_when_asked(tiny_file: pathlib.Path) -> None:
    output = invoke("gguf", tiny_file, "--tensors").output
    assert "blk.0.attn_q.weight" in output
    assert "blk.1.attn_q.weight" in output


def test_gguf_shows_the_parts_of_a_split_file_from_any_of_them(tmp_path: pathlib.Path) -> None:
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=2)
    for i in range(3):
        writer.add_tensor(f"blk.{i}.w", np.zeros(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    second = tmp_path / "m-00002-of-00002.gguf"
    output = invoke("gguf", second).output
    assert re.search(r"1 +m-00001-of-00002\.gguf +2 ", output)
    assert re.search(r"2 +m-00002-of-00002\.gguf +1 ", output)
    assert re.search(r"blk\.\*\.w +x 3 .* parts 1 to 2", output)
    data = json.loads(invoke("gguf", second, "--json").output)
    assert [tensor["part"] for tensor in data["tensors"]] == [1, 1, 2]
    assert [part["n_tensors"] for part in data["parts"]] == [2, 1]
    assert re.search(r"blk\.2\.w .* 2$", invoke("gguf", second, "--tensors").output, re.MULTILINE)


def test_gguf_as_json_says_what_the_file_says(tiny_file: pathlib.Path) -> None:
    data = json.loads(invoke("gguf", tiny_file, "--json").output)
    file = kit.GGUFFile(tiny_file)
    assert data["metadata"]["general.name"] == file.metadata["general.name"]
    assert data["metadata"]["tokenizer.ggml.tokens"]["count"] == 100
    assert data["metadata"]["tokenizer.ggml.tokens"]["first"][:2] == ["t0", "t1"]
    assert [(t["name"], t["offset"]) for t in data["tensors"]] == [(i.name, i.offset) for i in file.tensors.values()]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("gguf", "no-such-model"), "no file and no model is called 'no-such-model'"),
        (("gguf", __file__), "not a GGUF file"),
        (("run", __file__, "x"), "not a GGUF file"),
        (("step", "./missing.gguf", "x"), "there is no file missing.gguf"),
        (("model", "get", "smollm3"), "knows no model 'smollm3'"),
        (("demo", "--model", __file__), "not a GGUF file"),
    ],
)
def test_errors_are_told_without_a_traceback(
    args: tuple[str, ...], says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith("kit: ")
    assert says in result.stderr
    assert "Traceback" not in result.output + result.stderr


def test_debug_shows_the_traceback() -> None:
    result = program("gguf", __file__, KIT_DEBUG="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "GGUFError" in result.stderr


def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path: pathlib.Path) -> None:
    started = time.perf_counter()
    result = invoke("demo", "--out", tmp_path / "missing" / "page.html")
    assert result.exit_code == 2
    assert "missing" in result.stderr
    assert time.perf_counter() - started < 2


def test_models_are_listed_with_their_state(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "some-model.gguf").write_bytes(b"GGUF")
    output = invoke("model", "list").output
    assert re.search(r"smollm2-135m +93\.8 MiB +not fetched", output)
    assert re.search(r"some-model\.gguf +4 B +llama\.cpp", output)


@pytest.mark.model
def test_get_prints_the_path(demo_model_path: pathlib.Path) -> None:
    result = program("model", "get", "smollm2-135m")
    assert result.returncode == 0
    assert pathlib.Path(result.stdout.strip()).samefile(demo_model_path)


@pytest.mark.model
def test_run_gives_the_text_on_stdout_and_figures_on_stderr(demo_model_path: pathlib.Path) -> None:
    result = program("run", demo_model_path, "The capital of France is", "-n", 2, "--temperature", 0, "-t", 1)
    assert result.returncode == 0
    assert result.stdout == " Paris.\n"
    assert result.stderr.startswith("2 tokens, ")


@pytest.mark.model
def test_the_same_seed_gives_the_same_text(demo_model_path: pathlib.Path) -> None:
    args = ("run", demo_model_path, "Once upon a time", "-n", 8, "--seed", 3, "-t", 1, "--n-ctx", 64)
    first, second = invoke(*args), invoke(*args)
    assert first.exit_code == 0
    assert first.stdout == second.stdout != "\n"


@pytest.mark.model
def test_run_ends_before_a_stop_text_and_shows_the_likeliest_tokens(demo_model_path: pathlib.Path) -> None:
    args = ("run", demo_model_path, "The capital of France is", "--temperature", 0, "-t", 1, "--n-ctx", 64)
    result = invoke(*args, "-n", 8, "--stop", ".", "--logprobs", 2)
    assert result.exit_code == 0 and result.stdout == " Paris\n"
    # 7042 and 260 are the likeliest in llama.cpp's logits too (smollm2_llama_cpp.json).
    assert re.search(r"^␣Paris +\d\d%   ␣Paris \d\d%  ␣the +\d+%$", result.stderr, re.MULTILINE)


@pytest.mark.model
def test_chat_answers_line_by_line_and_remembers(demo_model_path: pathlib.Path) -> None:
    lines = "What is the capital of France? Answer in one word.\n\nAnd of Italy?\n"
    args = ["chat", str(demo_model_path), "-n", "12", "--temperature", "0", "-t", "1", "--n-ctx", "256"]
    result = CliRunner().invoke(main, args, input=lines)
    first, second, *_ = result.stdout.splitlines()
    assert result.exit_code == 0 and "Paris" in first and "Rome" in second
    assert result.stderr.count("tokens, ") == 2


@pytest.mark.model
def test_chat_leaves_out_the_oldest_exchange_where_the_cache_is_full(demo_model_path: pathlib.Path) -> None:
    args = ["chat", str(demo_model_path), "-n", "4", "--temperature", "0", "-t", "1", "--n-ctx", "64"]
    result = CliRunner().invoke(main, args, input="Say one.\nSay two.\nSay three.\n" + "word " * 80 + "\nSay four.\n")
    assert result.exit_code == 0
    assert "are left out" in result.stderr and result.stderr.count("a second") == 4
    assert "the cache holds n_ctx=64" in result.stderr


@pytest.mark.model
def test_an_interrupt_ends_the_answer_and_not_the_chat(demo_model_path: pathlib.Path) -> None:
    command = [KIT, "chat", str(demo_model_path), "-n", "2000", "--temperature", "0", "-t", "1"]
    started = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=0
    )
    try:
        assert started.stdin and started.stdout and started.stderr
        started.stdin.write("Count from one to one thousand, one number a line.\n")
        assert started.stdout.read(1)
        started.send_signal(signal.SIGINT)
        assert "tokens, " in started.stderr.readline()
        _, errors = started.communicate("", timeout=60)
        assert started.returncode == 0 and errors == ""
    finally:
        started.kill()
        started.communicate()


def test_output_that_cannot_be_written_is_said_in_a_line(tiny_file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A limit of no bytes a file stands for a full disk."""
    command = f'ulimit -f 0; exec "{KIT}" gguf "{tiny_file}" --json > "{tmp_path / "out"}"'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert done.stderr == "kit: [Errno 27] File too large\n"


@pytest.mark.model
def test_step_by_block_and_by_stage(demo_model_path: pathlib.Path) -> None:
    args = ("step", demo_model_path, "The capital of France is", "--n-ctx", 64, "-t", 1)
    blocks = invoke(*args).output
    assert len(blocks.splitlines()) == 1 + 33  # a head; embed, 30 blocks, norm, logits
    assert re.search(r"blk\.29\.resid +\(5, 576\).*␣Paris +\d\d%", blocks)
    stages = json.loads(invoke(*args, "--level", "stage", "--json").output)
    assert len(stages["rows"]) == 423
    assert stages["rows"][-1]["says"] == " Paris"
    assert not kit.memory.live()


@pytest.mark.model
def test_an_interrupt_ends_with_130(demo_model_path: pathlib.Path) -> None:
    command = [KIT, "run", demo_model_path, "Once upon a time", "-n", "100000", "--n-ctx", "8192", "-t", "1"]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.read(3)  # it is at work
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors


@pytest.mark.model
def test_the_demo_tells_the_whole_tour(demo_model_path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    page = tmp_path / "page.html"
    started = time.perf_counter()
    result = program("demo", "--out", page, "--model", demo_model_path, "-t", 1)
    assert time.perf_counter() - started < 600
    assert result.returncode == 0
    assert result.stderr.replace(FONTS, "") == ""
    for fact in ("CPU.0", "134.5M parameters in 272 tensors", "kv cache", "The capital of France is Paris."):
        assert fact in result.stdout
    assert len(re.findall(r"^blk\.\d+ +14 ", result.stdout, re.MULTILINE)) == 30
    assert "after close: nothing is live" in result.stdout
    assert "\x1b" not in result.stdout

    html = page.read_text(encoding="utf-8")
    assert "The capital of France is</span> Paris." in html
    stages = re.findall(r'<span class="name" title="([^"]+)">', html)
    with kit.load(demo_model_path, n_threads=1) as model, model.session(n_ctx=16) as session:
        assert set(stages) == set(session.stages)
    assert "After close: nothing is live." in html
    assert "<script" not in html
    assert "http://" not in html
    assert "https://" not in html
    assert 100_000 < len(html) < 2_000_000
