"""The hunt for a leak runs from the first cell to the last in a real kernel, and finds what it says."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import time

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

NOTEBOOK = pathlib.Path(__file__).parents[2] / "notebooks" / "03_memory_and_leaks.ipynb"
MASK, TOKEN = 4120 * 4, 32  # bytes of the inputs of a pass; the token's 4 are padded to ggml's alignment on a CPU
N_PASSES = 200

pytestmark = [pytest.mark.notebook, pytest.mark.model]

needs_whisper = pytest.mark.skipif(
    importlib.util.find_spec("_pywhispercpp") is None, reason="pywhispercpp is a test dependency; pip install it"
)


@pytest.fixture(scope="module")
def hunt(demo_model_path: pathlib.Path, one_cpu: None) -> NotebookNode:
    """The executed notebook."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    started = time.perf_counter()
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    notebook.metadata["seconds"] = time.perf_counter() - started
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def cell_with(notebook: NotebookNode, source: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source)


def printed(notebook: NotebookNode, source: str) -> str:
    cell = cell_with(notebook, source)
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def shown(notebook: NotebookNode, source: str) -> NotebookNode:
    return next(output.data for output in cell_with(notebook, source).outputs if "data" in output)


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not outputs(notebook)
    assert {cell.get("execution_count") for cell in notebook.cells} == {None}


def test_it_takes_less_than_a_minute_and_a_half(hunt: NotebookNode) -> None:
    assert hunt.metadata["seconds"] < 90


def test_no_cell_fails_or_warns(hunt: NotebookNode) -> None:
    kinds = [(output.output_type, output.get("name")) for output in outputs(hunt)]
    assert not [kind for kind in kinds if kind[0] == "error" or kind[1] == "stderr"]


def test_the_leak_shows_in_the_system_and_is_gone_when_fixed(hunt: NotebookNode) -> None:
    leaky, fixed = (
        float(re.findall(r"2,000 passes: resident memory ([+-][\d.]+) MiB", printed(hunt, source))[0])
        for source in ("def resident", "clean = tracker.report()")
    )
    assert leaky > 0.9 * 2_000 * (MASK + TOKEN) / 2**20
    assert fixed < 1


def test_count_bytes_slope_holder_and_line_of_the_leak_are_exact(hunt: NotebookNode) -> None:
    text = printed(hunt, "leak = found.leaks[0]")
    assert f"{N_PASSES} buffers, {N_PASSES * (MASK + TOKEN):,} bytes, of token and 1 more" in text
    assert f"growth: {MASK + TOKEN:,} bytes a pass, R² 1.00" in text
    assert "__main__.results" in text
    defined = cell_with(hunt, "results.append(ctx.detach())")
    line = next(i for i, line in enumerate(defined.source.splitlines(), 1) if "mask.set(" in line)
    assert f"In [{defined.execution_count}]:{line} in one_pass" in text


def test_the_magic_shows_the_same_with_a_still(hunt: NotebookNode) -> None:
    report = shown(hunt, "%%kit_memory")
    assert f"{N_PASSES} buffers of 'token and 1 more'" in report["text/plain"]
    assert "data:image/png;base64," in report["text/html"]


def test_contexts_were_freed_and_buffers_were_not(hunt: NotebookNode) -> None:
    text = printed(hunt, "freed = Counter(")
    assert re.search(rf"context +made +{N_PASSES}, freed +{N_PASSES}\n", text)
    assert re.search(rf"buffer +made +{N_PASSES}, freed +0\n", text)


def test_the_fixed_pass_leaves_nothing(hunt: NotebookNode) -> None:
    text = printed(hunt, "clean = tracker.report()")
    assert "leaks: [] - live at the end: 0 bytes" in text
    assert f"(-{N_PASSES}) buffer" in text


@needs_whisper
def test_whispers_contexts_by_owner_are_those_its_own_change_says(hunt: NotebookNode) -> None:
    """whisper.cpp's pull request 2525: three contexts less for each state, four stay, one for each scheduler."""
    rows = dict(re.findall(r"^([a-z ,]+?) +\d+ +(\d+)$", printed(hunt, "def owner_of"), re.MULTILINE))
    assert rows == {"reading the model": "1", "kv caches": "0", "graphs, to measure them": "0", "schedulers": "4"}
    assert re.search(r"kv caches +3 +0", printed(hunt, "def owner_of"))


@needs_whisper
def test_the_bytes_of_its_caches_are_those_whisper_logs(hunt: NotebookNode) -> None:
    text = printed(hunt, "whisper says")
    found = re.findall(r"(kv \w+) +whisper says +([\d.]+) MB, tracked +([\d,]+) bytes", text)
    assert [name for name, _, _ in found] == ["kv self", "kv cross", "kv pad"]
    assert all(round(int(nbytes.replace(",", "")) / 1e6, 2) == float(said) for _, said, nbytes in found)
    assert "left after whisper_free: []" in text


def test_reset_does_not_care_how_large_the_room_is(hunt: NotebookNode) -> None:
    text = printed(hunt, "def three_ways")
    rows = {
        room: [float(x) for x in re.findall(r"([\d.]+) us", rest)]
        for room, rest in re.findall(r"^(\d+ [KM]iB)(.*)$", text, re.MULTILINE)
    }
    assert list(rows) == ["16 KiB", "1 MiB", "128 MiB"]
    _, init, reset = rows["128 MiB"]
    assert init > 5 * reset
    assert reset < 5 * max(rows["16 KiB"][2], 0.1)


def test_a_context_grows_and_a_reset_keeps_its_pools(hunt: NotebookNode) -> None:
    text = printed(hunt, "GrowthView.watch")
    before, after = map(
        int, re.findall(r"pools after 5,000 tensors: (\d+); after a reset and 5,000 more: (\d+)", text)[0]
    )
    assert before == after > 4
    assert f"{{'growing': {before}}}" in text
    assert len(shown(hunt, "GrowthView.watch")["image/png"]) > 10_000


def test_costs_and_lab_are_shown_as_text_and_picture(hunt: NotebookNode) -> None:
    costs, lab = shown(hunt, "kit.memory.costs("), shown(hunt, "kit.memory.input_lab(")
    assert all(kind in costs["text/plain"] for kind in ("malloc", "mmap", "locked", "pooled", "CPU.0"))
    for leg in ("free, ordinary memory", "free, host buffer", "leak, ordinary memory", "leak, host buffer"):
        assert leg in lab["text/plain"]
    assert all("data:image/png;base64," in data["text/html"] for data in (costs, lab))
    ratio = re.findall(r"([\d,]+) x a pool that is kept", printed(hunt, "taken anew"))[0]
    assert int(ratio.replace(",", "")) > 10


def test_tokens_take_no_buffer_and_at_the_end_nothing_is_live(hunt: NotebookNode) -> None:
    text = printed(hunt, "left after the model was closed")
    assert "8 tokens: 0 buffers," in text
    assert "left after the model was closed: []" in text
    assert shown(hunt, "backend.close()\nkit.memory.live()")["text/plain"] == "nothing is live"


def test_without_pywhispercpp_the_section_says_what_to_install(one_cpu: None) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell_with(notebook, source) for source in ("%load_ext kit", "import _pywhispercpp")]
    cells += [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.startswith("if whisper:")]
    cells.append(cell_with(notebook, "def owner_of"))
    hidden = nbformat.v4.new_code_cell("import sys\nsys.modules['_pywhispercpp'] = None")
    short = nbformat.v4.new_notebook(cells=[hidden, *cells])
    try:
        NotebookClient(short, timeout=100, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    except CellExecutionError as error:
        pytest.fail(str(error))
    assert "pip install pywhispercpp" in printed(short, "import _pywhispercpp")
