"""Split GGUF files, as the gguf package writes them: one table from any part, and every way the parts can disagree."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
from typing import Any

import gguf
import numpy as np
import pytest

from kit.core.gguf import GGUFFile
from kit.core.gguf_names import PartName
from kit.errors import ClosedError, GGUFError, GGUFNotFound

TENSORS = {f"blk.{i}.w": np.arange(i, i + 64, dtype=np.float32).reshape(2, 32) for i in range(7)}


def write(path: pathlib.Path, *, per_part: int = 3, tensors: dict[str, Any] | None = None, empty: bool = False) -> None:
    """Write ``path``-00001-of-0000N by the gguf package."""
    writer = gguf.GGUFWriter(str(path), "llama", split_max_tensors=per_part, small_first_shard=empty)
    writer.add_string("general.name", "a split one")
    writer.add_array("some.numbers", [1, 2, 3])
    for name, data in (TENSORS if tensors is None else tensors).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_part(path: pathlib.Path, values: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Write one file with keys of our choice: numbers as u16 or i32 for the count of tensors, anything else as text."""
    writer = gguf.GGUFWriter(str(path), "llama")
    for key, value in values.items():
        if not isinstance(value, int):
            writer.add_string(key, value)
        elif key == "split.tensors.count":
            writer.add_int32(key, value)
        else:
            writer.add_uint16(key, value)
    for name, data in tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def parts(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    write(tmp_path / "m.gguf")
    return [tmp_path / f"m-{number:05}-of-00003.gguf" for number in (1, 2, 3)]


def keys(number: int, **changes: Any) -> dict[str, Any]:
    """The keys of part ``number`` of `parts`; dots of ``changes`` as underscores, None leaves one out."""
    values = {"split.no": number - 1, "split.count": 3, "split.tensors.count": 7}
    values |= {key.replace("_", "."): value for key, value in changes.items()}
    return {key: value for key, value in values.items() if value is not None}


def some(*numbers: int) -> dict[str, Any]:
    return {f"blk.{i}.w": TENSORS[f"blk.{i}.w"] for i in numbers}


@pytest.mark.parametrize("opened", [0, 1, 2])
def test_any_part_opens_all_of_them(parts: list[pathlib.Path], opened: int) -> None:
    file = GGUFFile(parts[opened])
    assert file.path == parts[0]
    assert file.metadata["general.name"] == "a split one"
    assert [part.path for part in file.parts] == parts
    assert [part.n_tensors for part in file.parts] == [3, 3, 1]
    assert file.nbytes == sum(path.stat().st_size for path in parts)
    assert list(file.tensors) == list(TENSORS)
    for i, (name, values) in enumerate(TENSORS.items()):
        assert file.tensors[name].part == i // 3 + 1
        assert file.tensors[name].path == parts[i // 3]
        np.testing.assert_array_equal(file.read(name), values)


def test_each_tensor_lies_where_the_gguf_package_finds_it(parts: list[pathlib.Path]) -> None:
    file = GGUFFile(parts[0])
    for path in parts:
        for theirs in gguf.GGUFReader(str(path)).tensors:
            ours = file.tensors[theirs.name]
            assert (ours.path, ours.offset, ours.nbytes) == (path, theirs.data_offset, theirs.n_bytes)


def test_a_first_part_without_tensors(tmp_path: pathlib.Path) -> None:
    write(tmp_path / "m.gguf", empty=True)
    file = GGUFFile(tmp_path / "m-00001-of-00004.gguf")
    assert [part.n_tensors for part in file.parts] == [0, 3, 3, 1]
    np.testing.assert_array_equal(file.read("blk.6.w"), TENSORS["blk.6.w"])


def test_the_views_say_which_part_a_tensor_is_in(parts: list[pathlib.Path]) -> None:
    file = GGUFFile(parts[0])
    assert re.search(r"parts +3, .*3 tensors in .*, 1 tensors in", file.text())
    assert re.search(r"blk\.\*\.w .* in parts 1 to 3", file.text())
    assert parts[2].name in file.html()
    assert "parts" not in GGUFFile(parts[0], whole=False).text()


def test_one_part_can_be_looked_at_alone(parts: list[pathlib.Path]) -> None:
    parts[0].unlink()
    file = GGUFFile(parts[1], whole=False)
    assert list(file.tensors) == [f"blk.{i}.w" for i in (3, 4, 5)]
    assert file.metadata["split.no"] == 1
    assert [part.path for part in file.parts] == [parts[1]]


def test_reading_keeps_all_parts_open_and_close_closes_all(parts: list[pathlib.Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = GGUFFile(parts[0])
    with file.reading():
        assert len(os.listdir("/proc/self/fd")) == before + 3
        np.testing.assert_array_equal(file.read("blk.4.w"), TENSORS["blk.4.w"])
    assert len(os.listdir("/proc/self/fd")) == before
    file.close()
    with pytest.raises(ClosedError):
        file.read("blk.4.w")


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_part_is_named(parts: list[pathlib.Path], gone: int) -> None:
    parts[gone].unlink()
    opened = parts[(gone + 1) % 3]
    with pytest.raises(GGUFNotFound, match=rf"{parts[gone].name}: part {gone + 1} of .* is missing"):
        GGUFFile(opened)


def test_a_part_that_is_cut_is_named(parts: list[pathlib.Path]) -> None:
    os.truncate(parts[1], parts[1].stat().st_size - 40)
    with pytest.raises(GGUFError, match=parts[1].name):
        GGUFFile(parts[0])


def test_a_copy_of_one_part_under_another_ones_name(parts: list[pathlib.Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(GGUFError, match=rf"{parts[2].name}: key 'split.no' is 1, expected 2"):
        GGUFFile(parts[0])


def test_a_part_renamed_to_something_else(parts: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    lone = parts[0].rename(tmp_path / "model.gguf")
    with pytest.raises(GGUFError, match=r"model\.gguf: key 'split.count' is 3.*-00001-of-00003\.gguf"):
        GGUFFile(lone)


def test_a_name_that_says_another_number_of_parts(parts: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    renamed = parts[0].rename(tmp_path / "m-00001-of-00002.gguf")
    with pytest.raises(GGUFError, match=r"of-00002\.gguf: key 'split.count' is 3"):
        GGUFFile(renamed)


def test_a_whole_file_may_be_called_like_a_part(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    write_part(path, {}, some(0))
    assert [part.path for part in GGUFFile(path).parts] == [path]


@pytest.mark.parametrize(
    ("changes", "tensors", "words"),
    [
        ({"split_no": None}, (3, 4, 5), ["key 'split.no' is missing"]),
        ({"split_no": "one"}, (3, 4, 5), ["key 'split.no'", "type str"]),
        ({"split_no": 0}, (3, 4, 5), ["key 'split.no' is 0, expected 1"]),
        ({"split_count": 4}, (3, 4, 5), ["key 'split.count' is 4, expected 3"]),
        ({"split_tensors_count": 9}, (3, 4, 5), ["key 'split.tensors.count' is 9", "different models"]),
        ({"general_name": "another"}, (3, 4, 5), ["key 'general.name'", "another value"]),
        ({"some_numbers": "text"}, (3, 4, 5), ["key 'some.numbers'", "another value"]),
        ({}, (2, 3, 4), ["tensor 'blk.2.w' is also in 'm-00001-of-00003.gguf'"]),
    ],
)
def test_parts_that_contradict_each_other(
    parts: list[pathlib.Path], changes: dict[str, Any], tensors: tuple[int, ...], words: list[str]
) -> None:
    write_part(parts[1], keys(2, **changes), some(*tensors))
    with pytest.raises(GGUFError) as caught:
        GGUFFile(parts[0])
    assert [word for word in [parts[1].name, *words] if word not in str(caught.value)] == []


def test_parts_with_too_few_tensors_in_all(parts: list[pathlib.Path]) -> None:
    write_part(parts[1], keys(2), some(3, 4))
    with pytest.raises(GGUFError, match=r"'split.tensors.count' is 7, but its 3 parts hold 6 tensors"):
        GGUFFile(parts[0])


def test_a_key_only_a_later_part_has_is_named_in_the_log(
    parts: list[pathlib.Path], caplog: pytest.LogCaptureFixture
) -> None:
    write_part(parts[1], keys(2, extra_key="x"), some(3, 4, 5))
    assert len(GGUFFile(parts[0]).tensors) == 7
    assert "'extra.key' is not in the first part" in caplog.text


def test_a_count_no_folder_could_hold_ends_at_the_first_missing_part(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "m-00001-of-65535.gguf"
    write_part(path, {"split.no": 0, "split.count": 65535, "split.tensors.count": 7}, some(0))
    with pytest.raises(GGUFNotFound, match=r"m-00002-of-65535\.gguf"):
        GGUFFile(path)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("m-00002-of-00003.gguf", PartName("m", 2, 3)),
        ("a-00001-of-00002-00001-of-00009.gguf", PartName("a-00001-of-00002", 1, 9)),
        ("m-00000-of-00003.gguf", None),
        ("m-00004-of-00003.gguf", None),
        ("m-0001-of-0003.gguf", None),
        ("-00001-of-00003.gguf", None),
        ("m-00001-of-00003.gguf.part", None),
        ("m-０0001-of-00003.gguf", None),
    ],
)
def test_names_of_parts(name: str, parsed: PartName | None) -> None:
    assert PartName.parse(name) == parsed
    assert parsed is None or parsed.other(parsed.number) == name
