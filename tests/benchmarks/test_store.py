"""The store of peers: what is in it is complete, made once, and a failure says what was tried."""

import multiprocessing
import pathlib
import time

import pytest

from benchmarks.peers import llamacpp, store
from benchmarks.peers.store import PeerMissing


@pytest.fixture(autouse=True)
def cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setenv("KIT_CACHE", str(tmp_path))
    monkeypatch.delenv("KIT_BENCH_LLAMACPP", raising=False)
    return tmp_path / "bench"


def test_it_is_made_once(cache: pathlib.Path) -> None:
    first = store.made_once("thing", lambda part: part.write_text("one") and None)
    again = store.made_once("thing", lambda part: part.write_text("two") and None)
    assert first == again == cache / "thing"
    assert first.read_text() == "one"


def test_a_failure_leaves_nothing_and_the_next_call_starts_afresh(cache: pathlib.Path) -> None:
    def half(part: pathlib.Path) -> None:
        part.mkdir()
        (part / "half").write_text("x")
        raise PeerMissing("the registry is down")

    with pytest.raises(PeerMissing, match="registry is down"):
        store.made_once("folder", half)
    assert not (cache / "folder").exists()

    made = store.made_once("folder", lambda part: part.mkdir())
    assert list(made.iterdir()) == []


def _make_slowly(path: str) -> None:
    def make(part: pathlib.Path) -> None:
        time.sleep(0.2)
        with open(path, "a") as file:
            file.write("made\n")
        part.mkdir()

    store.made_once("slow", make)


def test_two_processes_make_it_once(tmp_path: pathlib.Path) -> None:
    tally = tmp_path / "tally"
    processes = [multiprocessing.get_context("spawn").Process(target=_make_slowly, args=(str(tally),)) for _ in "ab"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert tally.read_text() == "made\n"


def test_a_failed_command_is_named_with_its_last_words() -> None:
    with pytest.raises(PeerMissing, match=r"(?s)sh -c.* ended with 3:\nno room"):
        store.run("sh", "-c", "echo no room; exit 3")


def test_a_command_that_is_not_there_is_named() -> None:
    with pytest.raises(PeerMissing, match="no-such-program cannot be started"):
        store.run("no-such-program")


def test_another_file_than_the_one_expected_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "sdist.tar.gz"
    path.write_bytes(b"abc")
    # the hash of "abc" is an example of FIPS 180-2
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert store.checked(path, known) == path
    with pytest.raises(PeerMissing, match=r"sdist.tar.gz: its SHA-256 is ba7816.*expected 0000"):
        store.checked(path, "0000")


def test_without_a_compiler_llama_cpp_says_what_to_do(monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PeerMissing, match=r"no C\+\+ compiler \(no-such-compiler\).*KIT_BENCH_LLAMACPP"):
        llamacpp.programs()
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


def test_a_folder_of_ones_own_must_have_the_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("KIT_BENCH_LLAMACPP", str(tmp_path))
    (tmp_path / "llama-bench").touch()
    with pytest.raises(PeerMissing, match="has no llama-completion, llama-quantize"):
        llamacpp.programs()
    for name in llamacpp.PROGRAMS:
        (tmp_path / name).touch()
    assert llamacpp.programs() == tmp_path
