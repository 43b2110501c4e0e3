"""Other packages that carry a ggml of their own, in one process with kit: neither side notices the other."""

from __future__ import annotations

import importlib.util
import pathlib
import textwrap
from typing import Any

import pytest

pytestmark = pytest.mark.peer

PROMPTS = pathlib.Path(__file__).parents[1] / "models" / "data" / "smollm2_llama_cpp.json"
WHISPER_MODEL = pathlib.Path(__file__).parents[1] / "memory" / "data" / "whisper-for-tests-tiny.en.bin"

WHISPER = """
import ctypes, os, pathlib, sys

def mapped():
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if line.count("/") and ".so" in line})

def version(path):
    function = ctypes.CDLL(path).ggml_version
    function.restype = ctypes.c_char_p
    return function().decode()

def whisper_loads():
    global whisper
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | (os.RTLD_GLOBAL if sys.argv[3] == "global" else 0))
    import _pywhispercpp as whisper
    sys.setdlopenflags(flags)

def whisper_works():
    context = whisper.whisper_init_from_file_with_params(sys.argv[1], whisper.whisper_context_default_params())
    assert whisper.whisper_n_vocab(context) == 51864
    assert whisper.whisper_pcm_to_mel(context, [0.0] * 16000, 16000, 1) == 0
    assert whisper.whisper_encode(context, 0, 1) == 0
    whisper.whisper_free(context)
"""

KIT = """
import json
import numpy as np

def kit_loads():
    global kit
    import kit, kit.core.native

def kit_works():
    with kit.Backend(n_threads=2) as backend:
        context = kit.Context(backend)
        w, x = context.input((64, 48), "f32", name="w"), context.input((16, 48), "f32", name="x")
        graph = context.graph(x @ w.T)
        a, b = np.eye(64, 48, dtype=np.float32), np.arange(16 * 48, dtype=np.float32).reshape(16, 48)
        assert np.array_equal(graph.compute(w=a, x=b).numpy(), b @ a.T)
    raw = kit.core.native.lib
    pool = raw.ggml_init({"mem_size": 1 << 16, "mem_buffer": kit.core.native.ffi.NULL, "no_alloc": True})
    t = raw.ggml_new_tensor_2d(pool, raw.GGML_TYPE_F32, 4, 3)
    try:
        raw.ggml_reshape_2d(pool, t, 7, 7)
    except kit.GgmlAbort:
        pass
    else:
        raise AssertionError("the guard is not ours any more")
    raw.ggml_free(pool)

def kit_answers():
    case = json.loads(pathlib.Path(sys.argv[4]).read_text())["prompts"][0]
    with kit.load(sys.argv[2], n_threads=2, progress=False) as model, model.session(n_ctx=256) as session:
        tokens = session.generate(case["text"], max_tokens=5, sampler=kit.Sampler(temperature=0))
        print("answer", [token.id for token in tokens])
"""

VERSIONS = """
theirs = [path for path in mapped() if "libggml-base" in path]
ours = [path for path in mapped() if "libgkit-base" in path]
print("versions", len(theirs), version(theirs[0]), len(ours), version(ours[0]),
      kit.core.native.text(kit.core.native.lib.ggml_version()))
"""

ORDERS = {
    "whisper first": "whisper_loads(); whisper_works(); kit_loads()",
    "kit first": "kit_loads(); kit_works(); whisper_loads()",
    "whisper first and idle": "whisper_loads(); kit_loads()",
    "kit first and idle": "kit_loads(); whisper_loads()",
}


@pytest.fixture(scope="module")
def answer_alone(child: Any, demo_model_path: pathlib.Path) -> str:
    """The tokens kit generates in a process of its own."""
    code = "\n".join([WHISPER, KIT, "kit_loads(); kit_answers()"])
    return str(child(code, "", demo_model_path, "", PROMPTS).stdout.strip())


@pytest.mark.model
@pytest.mark.parametrize("scope", ["local", "global"])
@pytest.mark.parametrize("order", ORDERS)
def test_whisper_and_kit_in_one_process(
    child: Any, demo_model_path: pathlib.Path, answer_alone: str, order: str, scope: str
) -> None:
    pytest.importorskip("_pywhispercpp", reason="pip install pywhispercpp")
    work = "kit_works(); whisper_works(); kit_works(); kit_answers()"
    code = "\n".join([WHISPER, KIT, ORDERS[order], work, VERSIONS])
    done = child(code, WHISPER_MODEL, demo_model_path, scope, PROMPTS, OMP_WAIT_POLICY="passive")
    answer, versions = done.stdout.splitlines()
    assert answer == answer_alone
    n_theirs, theirs, n_ours, ours, in_use = versions.split()[1:]
    assert (n_theirs, n_ours) == ("1", "1")
    assert theirs != ours == in_use


RAW = """
import ctypes, os, pathlib, sys

def theirs_load():
    global base, cpu
    folder = pathlib.Path(sys.argv[1])
    base, cpu, _ = [ctypes.CDLL(str(folder / f"lib{name}.so"), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
                    for name in ("ggml-base", "ggml-cpu", "ggml")]
    cpu.ggml_backend_cpu_init.restype = ctypes.c_void_p
    base.ggml_backend_alloc_buffer.restype = ctypes.c_void_p
    base.ggml_backend_alloc_buffer.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    base.ggml_backend_buffer_free.argtypes = base.ggml_backend_free.argtypes = [ctypes.c_void_p]
    base.ggml_set_abort_callback.restype = ctypes.c_void_p
    base.ggml_set_abort_callback.argtypes = [ctypes.c_void_p]

def theirs_work():
    backend = cpu.ggml_backend_cpu_init()
    buffer = base.ggml_backend_alloc_buffer(backend, 4096)
    assert backend and buffer
    base.ggml_backend_buffer_free(buffer)
    base.ggml_backend_free(backend)
    assert not base.ggml_set_abort_callback(None)  # ours is set in our copy only
"""


@pytest.mark.parametrize("order", ["theirs_load(); kit_loads()", "kit_loads(); theirs_load()"])
def test_the_same_ggml_once_more_for_everybody_to_see(child: Any, order: str) -> None:
    """As other bindings load theirs: with ctypes, RTLD_GLOBAL, under the common names; of the very same version."""
    found = importlib.util.find_spec("libggml")
    if found is None or found.origin is None:
        pytest.skip("pip install libggml-python")
    folder = pathlib.Path(found.origin).parent / "lib64"
    maps = """
    names = pathlib.Path("/proc/self/maps").read_text()
    print(all(f"/lib{name}.so" in names for name in ("ggml-base", "ggml-cpu", "gkit-base", "gkit-cpu")))
    """
    work = "for _ in range(3):\n    theirs_work(); kit_works()"
    done = child("\n".join([RAW, KIT, order, work, textwrap.dedent(maps)]), folder)
    assert done.stdout == "True\n"
