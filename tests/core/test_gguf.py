"""What a GGUFFile says equals what the gguf package, an independent reader and writer, says of it."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import gguf
import numpy as np
import pytest

from kit.core.gguf import GGUFFile
from kit.errors import ClosedError, GGUFError, KitError

QUANTIZED = [
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
    "IQ4_XS",
    "IQ1_M",
    "BF16",
    "TQ1_0",
    "TQ2_0",
    "MXFP4",
    "NVFP4",
]


def write(path: pathlib.Path, values: dict[str, Any], tensors: dict[str, Any], architecture: str = "llama") -> GGUFFile:
    """Write with the gguf package (a tensor is an array or a (bytes, type) pair) and open with kit."""
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, (method, value) in values.items():
        getattr(writer, f"add_{method}")(key, value)
    for name, data in tensors.items():
        array, kind = data if isinstance(data, tuple) else (data, None)
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, np.ndarray):
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert ours == theirs
        assert type(ours) is type(theirs)


def assert_equals_reader(file: GGUFFile) -> None:
    """Compare every key and every tensor description with gguf.GGUFReader's."""
    reader = gguf.GGUFReader(str(file.path))
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert list(file.metadata) == list(fields)
    for name, field in fields.items():
        assert_same(file.metadata[name], field.contents())
    assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        info = file.tensors[tensor.name]
        assert info.ne == tuple(int(extent) for extent in tensor.shape)
        assert info.shape == info.ne[::-1]
        assert info.dtype == tensor.tensor_type.name.lower()
        assert (info.offset, info.nbytes) == (tensor.data_offset, tensor.n_bytes)
    assert file.data_offset == reader.data_offset
    assert file.alignment == reader.alignment
    assert file.n_params == sum(int(tensor.n_elements) for tensor in reader.tensors)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> GGUFFile:
    values = {
        "general.name": ("string", "tïny <b>&"),
        "a.u8": ("uint8", 255),
        "a.i8": ("int8", -128),
        "a.u16": ("uint16", 65535),
        "a.i16": ("int16", -32768),
        "a.u32": ("uint32", 2**32 - 1),
        "a.i32": ("int32", -(2**31)),
        "a.u64": ("uint64", 2**64 - 1),
        "a.i64": ("int64", -(2**63)),
        "a.f32": ("float32", 0.1),
        "a.f64": ("float64", 0.1),
        "a.bool": ("bool", False),
        "a.ints": ("array", [1, -2, 3]),
        "a.floats": ("array", [0.5, 1.5]),
        "a.bools": ("array", [True, False, True]),
        "a.plain": ("array", ["a", "", "abc"]),
        "a.strings": ("array", ["a", "", "hé", "\0inside\0", "日本"]),
    }
    tensors = {
        "blk.0.w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "blk.1.w": np.arange(12, dtype=np.float32).reshape(3, 4) * 2,
        "flat": np.ones((1, 5, 1), np.float16),
        "ids": np.arange(7, dtype=np.int32),
        "q": (np.arange(136, dtype=np.uint8).reshape(2, 68), gguf.GGMLQuantizationType.Q8_0),
    }
    return write(tmp_path / "small.gguf", values, tensors)


def test_every_value_and_tensor_equals_the_gguf_packages(file: GGUFFile) -> None:
    assert_equals_reader(file)
    assert file.architecture == "llama"
    assert file.version == 3
    assert file.nbytes == os.path.getsize(file.path)


@pytest.mark.model
def test_the_demo_model_equals_the_gguf_packages(demo_model_path: pathlib.Path) -> None:
    file = GGUFFile(demo_model_path)
    assert_equals_reader(file)
    assert {dtype: share.n_tensors for dtype, share in file.types().items()} == {
        "q4_1": 210,
        "q8_0": 1,
        "f32": 61,
    }
    assert len(file.text().splitlines()) < 40


def test_an_unusual_alignment_is_followed(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_custom_alignment(256)
    for name in "ab":
        writer.add_tensor(name, np.full(3, ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(path)
    assert_equals_reader(file)
    assert file.read("b").tolist() == [98.0] * 3


def test_more_keys_and_tensors_than_the_first_tables_hold(tmp_path: pathlib.Path) -> None:
    values = {f"k.{i}": ("uint32", i) for i in range(1500)}
    tensors = {f"t.{i}": np.full(1, i, np.float32) for i in range(1100)}
    file = write(tmp_path / "many.gguf", values, tensors)
    assert file.metadata["k.1499"] == 1499
    assert file.read("t.1099").tolist() == [1099.0]
    assert len(file.text().splitlines()) < 40


def test_a_file_without_tensors_opens(tmp_path: pathlib.Path) -> None:
    file = write(tmp_path / "vocab.gguf", {"a.u8": ("uint8", 1)}, {})
    assert (len(file.tensors), file.n_params, file.types(), file.metadata["a.u8"]) == (0, 0, {}, 1)
    assert "0 tensors" in file.text()


def test_arrays_are_read_when_asked_for(file: GGUFFile) -> None:
    assert file.metadata.is_loaded("a.u8")
    assert not file.metadata.is_loaded("a.strings")
    assert file.metadata.type_text("a.strings") == "str[5]"
    assert file.html().count("(not read)") == 5
    assert file.metadata["a.strings"] is file.metadata["a.strings"]
    assert file.metadata.is_loaded("a.strings")


def test_number_arrays_cannot_be_written(file: GGUFFile) -> None:
    with pytest.raises(ValueError, match="read-only"):
        file.metadata["a.ints"][0] = 9


def test_an_open_gguf_file_holds_no_descriptor(file: GGUFFile) -> None:
    before = os.listdir("/proc/self/fd")
    file.metadata["a.strings"]
    file.read("q")
    assert os.listdir("/proc/self/fd") == before
    with file.reading(), file.reading():
        assert len(os.listdir("/proc/self/fd")) == len(before) + 1
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("kind", QUANTIZED)
def test_tensors_are_dequantized_as_the_gguf_package_does(kind: str, tmp_path: pathlib.Path) -> None:
    number = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[number]
    blocks = np.random.default_rng(7).integers(0, 256, (3, 512 // block * block_bytes), np.uint8)
    file = write(tmp_path / "q.gguf", {}, {"w": (blocks, number)})
    with np.errstate(invalid="ignore"):  # random scales hold infinities
        expected = gguf.quants.dequantize(blocks, number)  # numpy code of its own
    ours = file.read("w")
    assert (ours.dtype, ours.shape) == (np.float32, (3, 512))
    np.testing.assert_array_equal(ours, expected)


def test_types_numpy_has_stay_as_they_are(file: GGUFFile) -> None:
    assert file.read("flat").dtype == np.float16
    assert file.read("flat").shape == (1, 5, 1)
    assert file.read("ids").tolist() == list(range(7))
    np.testing.assert_array_equal(file.read("blk.1.w"), np.arange(12, dtype=np.float32).reshape(3, 4) * 2)


def test_missing_names_suggest_near_ones(file: GGUFFile) -> None:
    with pytest.raises(KeyError) as caught:
        file.metadata["general.nam"]
    assert isinstance(caught.value, GGUFError)
    assert str(file.path) in str(caught.value)
    assert "did you mean 'general.name'" in str(caught.value)
    with pytest.raises(GGUFError, match=r"no tensor 'blk.0.x'; did you mean 'blk.0.w'"):
        file.read("blk.0.x")
    assert file.metadata.get("no", 3) == 3
    assert "no" not in file.metadata


def test_use_after_close_raises(file: GGUFFile) -> None:
    metadata = file.metadata
    with file:
        pass
    file.close()
    for use in (
        lambda: file.metadata,
        lambda: file.tensors,
        lambda: file.read("q"),
        lambda: metadata["a.u8"],
        lambda: file.__enter__(),
    ):
        with pytest.raises(ClosedError, match=r"small\.gguf"):
            use()
    assert "(closed)" in repr(file)


def test_a_file_that_was_replaced_is_not_mixed_with_the_old_one(file: GGUFFile) -> None:
    other = file.path.with_suffix(".new")
    other.write_bytes(file.path.read_bytes())
    os.replace(other, file.path)
    with pytest.raises(GGUFError, match="another file"):
        file.metadata["a.strings"]
    file.path.unlink()
    with pytest.raises(FileNotFoundError):
        file.read("q")


def test_views_escape_what_the_file_says(tmp_path: pathlib.Path) -> None:
    values = {
        "general.name": ("string", "<script>alert(1)</script>\x1b[31m"),
        "k.<img src=x>": ("string", "'\"&"),
        "a.strings": ("array", ["<i>"]),
    }
    file = write(tmp_path / "<evil>.gguf", values, {"<b>": np.ones(1, np.float32)})
    file.metadata["a.strings"]
    page = file._repr_html_()
    for tag in ("<script", "<img", "<evil", "<b>", "<i>"):
        assert tag not in page
    assert "\x1b" not in page + repr(file)
    assert "&lt;script&gt;" in page


def test_long_texts_are_read_late_and_shown_short(tmp_path: pathlib.Path) -> None:
    file = write(tmp_path / "long.gguf", {"k": ("string", "x" * 100_000)}, {})
    assert not file.metadata.is_loaded("k")
    assert len(file.metadata["k"]) == 100_000
    assert max(map(len, file.text().splitlines())) < 250


def test_text_that_is_no_utf8_is_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "odd.gguf"
    write(path, {"k": ("string", "ab")}, {})
    path.write_bytes(path.read_bytes().replace(b"\2\0\0\0\0\0\0\0ab", b"\2\0\0\0\0\0\0\0a\xff"))
    assert GGUFFile(path).metadata["k"] == "a�"


def test_gguf_errors_are_kit_errors_and_value_errors() -> None:
    assert issubclass(GGUFError, KitError)
    assert issubclass(GGUFError, ValueError)
