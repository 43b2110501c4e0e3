"""The magic, in a real kernel."""

from __future__ import annotations

import pathlib

import pytest

pytestmark = pytest.mark.notebook


def test_kit_memory_magic_names_the_cell_and_its_line(tmp_path: pathlib.Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    from nbclient import NotebookClient

    cells = [
        "%load_ext kit\nimport kit, numpy as np\nbackend = kit.Backend(n_threads=1)",
        "%%kit_memory found\ncontext = kit.Context(backend)\nx = context.input((5,), 'f32', name='mask')\n"
        "x.set(np.zeros(5, np.float32))\nheld = context.detach()",
        "print(found.leaks[0].where, found.leaks[0].held_by)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = [o for o in notebook.cells[1].outputs if o.output_type == "display_data"]
    assert "mask" in shown.data["text/plain"]
    assert "data:image/png" in shown.data["text/html"]
    printed = notebook.cells[2].outputs[0].text
    assert printed.startswith("In [2]:4 in <module>"), printed
    assert "__main__.held" in printed


SHELL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
def run(code):
    done = shell.run_cell(code, store_history=True)
    assert done.success, done.error_in_exec or done.error_before_exec
run("import kit, numpy as np\\nbackend = kit.Backend(n_threads=1)\\nmem = kit.Tracker().start()")
run('''def make():
    ctx = kit.Context(backend)
    ctx.input((10,), 'f32', name='mask').set(np.zeros(10, np.float32))
    return ctx.detach()
make()''')
run("mem.stop()\\n(leak,) = mem.report().leaks")
run("assert 'Out[2]' in leak.held_by and '__main__._' in leak.held_by, leak.held_by")
run("assert leak.where == 'In [2]:3 in make', leak.where")
run("assert leak.lines == (3, 5), leak.lines")  # not those of what runs the cell
run("del _, _2; Out.pop(2).close()")
run("assert not [b for b in kit.memory.live() if b.kind == 'buffer']")
"""


def test_results_of_cells_are_named_as_holders(run_script) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("IPython")
    run_script(SHELL)


def test_a_cell_that_fails_is_shown_once_and_stops_the_notebook(tmp_path: pathlib.Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    cells = ["%load_ext kit", "%%kit_memory found\n1 / 0", "print('not reached')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = str(notebook.cells[1].outputs)
    assert [output.output_type for output in notebook.cells[1].outputs].count("error") == 1
    assert text.count("division by zero") <= 2  # in the value and in the one traceback
    assert "magics.py" not in text


@pytest.mark.parametrize(
    ("line", "cell", "message"),
    [("a b", "1", "neither"), ("1bad", "1", "neither"), ("--help", "1", "neither"), ("", "await x()", "awaits")],
)
def test_what_the_magic_does_not_take_is_said(line: str, cell: str, message: str, run_script) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("IPython")
    run_script(
        "from IPython.core.error import UsageError\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'kit')\n"
        "try:\n"
        f"    shell.run_cell_magic('kit_memory', {line!r}, {cell!r})\n"
        "except UsageError as error:\n"
        f"    assert {message!r} in str(error), error\n"
        "else:\n"
        "    raise AssertionError('taken')\n"
    )
