"""The commands on memory: what they print, what they write, and how they end."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from kit.cli import main

KIT = pathlib.Path(sys.executable).with_name("kit")

#: a program with a ggml of its own choice: what it leaks and how it ends is in its arguments
PROGRAM = """
import json, sys
import numpy as np
import kit
json.dump(sys.argv[1:], open("seen.json", "w"))
kept = []
backend = kit.Backend(n_threads=1)
for _ in range(10):
    context = kit.Context(backend)
    context.input((1000,), "f32", name="mask").set(np.zeros(1000, np.float32))  # HERE
    kept.append(context.detach()) if "leak" in sys.argv else context.close()
import builtins; builtins.kept = kept
sys.exit(7 if "fail" in sys.argv else 0)
"""


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def watch(folder: pathlib.Path, *args: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.run([KIT, "watch", *args], cwd=folder, capture_output=True, text=True, timeout=120)


def test_costs_of_chosen_sizes_as_tables() -> None:
    result = invoke("costs", "--sizes", "4KiB,64 KiB", "--repeats", 2)
    assert result.exit_code == 0
    head, *rows = result.output.splitlines()
    assert head.split() == ["total", "(p10-p90)", "4.0", "KiB", "64.0", "KiB"]
    assert {"malloc", "mmap", "locked", "pooled"} <= {row.split()[0] for row in rows if row}


def test_costs_as_json_are_the_records() -> None:
    data = json.loads(invoke("costs", "--sizes", "4096", "--repeats", 2, "--json").stdout)
    assert set(data) == {"costs", "copies", "refused"}
    assert {record["nbytes"] for record in data["costs"]} == {4096}
    assert all(record["total_ns"] > 0 and record["repeats"] == 2 for record in data["costs"])


def test_costs_as_a_page_that_loads_nothing(tmp_path: pathlib.Path) -> None:
    result = invoke("costs", "--sizes", "4096,8192", "--repeats", 2, "--json", "--html", tmp_path / "costs.html")
    page = (tmp_path / "costs.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    assert json.loads(result.stdout)["costs"]
    assert str(tmp_path / "costs.html") in result.stderr


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--sizes", "4 bananas"), 2, "no number of bytes"),
        (("--sizes", ""), 2, "no number of bytes"),
        (("--sizes", "0"), 1, "at least 1 byte"),
        (("--sizes", "1000000 GiB"), 1, "kit: "),
        (("--repeats", "0"), 2, "--repeats"),
        (("--html", "missing/costs.html"), 2, "missing"),
    ],
)
def test_costs_that_cannot_be_measured_are_refused(
    args: tuple[str, ...], code: int, says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("costs", *args)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output + result.stderr


@pytest.mark.parametrize(("args", "code"), [((), 0), (("leak",), 1), (("fail",), 7), (("leak", "fail"), 7)])
def test_watch_ends_as_the_program_did_or_with_1_for_leaks(
    tmp_path: pathlib.Path, args: tuple[str, ...], code: int
) -> None:
    done = watch(tmp_path, "--report", "out.json", "program.py", *args)
    assert done.returncode == code, done.stderr
    leaks = json.loads((tmp_path / "out.json").read_text())["leaks"]
    assert bool(leaks) == ("leak" in args)
    line = next(i for i, text in enumerate(PROGRAM.splitlines(), 1) if "# HERE" in text)
    assert (f"program.py:{line}" in done.stderr) == ("leak" in args)
    assert ("no leak" in done.stderr) == ("leak" not in args)


def test_everything_after_the_script_goes_to_the_program(tmp_path: pathlib.Path) -> None:
    args = ["--", "--report", "theirs.html", "-h", "--no-stacks", "", "ä b", "--", "-o"]
    done = watch(tmp_path, "program.py", *args)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "seen.json").read_text()) == args
    assert (tmp_path / "kit-memory.html").read_text().startswith("<!doctype html>")
    assert not (tmp_path / "theirs.html").exists()


def test_a_watched_program_writes_where_it_would(tmp_path: pathlib.Path) -> None:
    (tmp_path / "talks.py").write_text("import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    done = watch(tmp_path, "talks.py")
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\nkit watch: ")


@pytest.mark.parametrize("args", [("missing.py",), (), ("--report", "missing/out.html", "program.py"), ("--bad", "x")])
def test_watch_refuses_before_anything_runs(tmp_path: pathlib.Path, args: tuple[str, ...]) -> None:
    done = watch(tmp_path, *args)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "seen.json").exists()


def test_help_names_both() -> None:
    text = invoke("--help").output
    assert "costs" in text and "watch" in text
    assert "Options come before SCRIPT" in invoke("watch", "--help").output
