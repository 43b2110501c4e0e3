"""From a Hugging Face checkpoint to a GGUF file, in constant memory; or from one GGUF file to another type."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from kit.core.gguf import GGUFFile
from kit.core.gguf_source import Source
from kit.errors import ArgumentError, ConversionError
from kit.models.convert.config import read_config
from kit.models.convert.gguf import header_copier, plan_gguf
from kit.models.convert.plan import PlannedTensor
from kit.models.convert.safetensors import Checkpoint
from kit.models.convert.tensors import plan_tensors
from kit.models.convert.types import Target, file_type, target_type
from kit.models.convert.vocab import read_vocab
from kit.models.convert.write import write
from kit.models.files.replace import place_for
from kit.units import bytes_text, shape_text


@dataclass(frozen=True)
class ConvertedTensor:
    """A row of the table: GGUF's name, numpy shape, type before and after, bytes after, why not the type asked for."""

    name: str
    shape: tuple[int, ...]
    source_dtype: str
    dtype: str
    nbytes: int
    reason: str = ""


@dataclass(frozen=True)
class Conversion:
    """What ``convert`` wrote: the file, its size, its tensors in order, and what of the source it left out."""

    path: Path
    dtype: str
    nbytes: int
    tensors: tuple[ConvertedTensor, ...]
    skipped: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the table: one line per kind of tensor, blocks folded together."""
        rows: dict[tuple[str, ...], list[ConvertedTensor]] = {}
        for tensor in self.tensors:
            folded = ".".join("*" if part.isdecimal() else part for part in tensor.name.split("."))
            key = (folded, shape_text(tensor.shape), tensor.source_dtype, tensor.dtype, tensor.reason)
            rows.setdefault(key, []).append(tensor)
        lines = [f"{self.path.name}: {self.dtype}, {len(self.tensors)} tensors, {bytes_text(self.nbytes)}", ""]
        cells = [("tensor", "count", "shape", "from", "to", "bytes", "")]
        for (name, shape, source, dtype, reason), group in rows.items():
            total = bytes_text(sum(tensor.nbytes for tensor in group))
            cells.append((name, str(len(group)), shape, source, dtype, total, reason))
        widths = [max(len(row[i]) for row in cells) for i in range(6)]
        for row in cells:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            lines.append(f"{line}  {row[6]}".rstrip())
        if self.skipped:
            lines += ["", f"not needed: {', '.join(self.skipped)}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text()


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    dtype: str = "f16",
    *,
    progress: bool = True,
    n_threads: int | None = None,
    ignore: Iterable[str] = (),
) -> Conversion:
    """Write the Hugging Face checkpoint, or the GGUF file, ``source`` as the GGUF file ``out``.

    Args:
        source: a folder with config.json, safetensors and a tokenizer, of the llama family; or a GGUF file, whose
            metadata are kept and whose matrices ggml dequantizes first (what they lost at their first quantization
            stays lost).
        out: the file to write, replaced if it is there; it appears when it is whole, or not at all.
        dtype: what matrices become: f32, f16, bf16, a quantized type of ggml, or a mix of llama.cpp's (q4_K_M, q4_K_S,
            q5_K_M, q5_K_S); vectors and norms stay f32, and the result says which matrices became something else,
            and why.
        progress: show a bar.
        n_threads: how many threads convert; a few slabs of half a million elements each are in memory at a time.
        ignore: fields that are known not to matter: unknown ones of config.json, ids of tokens, chat_template.

    Raises:
        ModelNotFound: no such folder, or a file is missing from it.
        UnsupportedModel: an architecture, field, tensor or tokenizer kit cannot convert; named.
        ConversionError: a file contradicts itself, or reading or writing failed; file, tensor and byte named.
        DTypeError: no type weights can be converted to.
    """
    folder, target, wanted = Path(source), place_for(out, ConversionError), target_type(dtype)
    if n_threads is not None and n_threads < 1:
        raise ArgumentError(f"n_threads is {n_threads}; expected at least 1")
    if folder.is_file():
        return _from_gguf(folder, target, wanted, progress, n_threads)
    return _from_folder(folder, target, wanted, progress, n_threads, ignore)


def _from_gguf(path: Path, target: Path, wanted: Target, progress: bool, n_threads: int | None) -> Conversion:
    if target.exists() and os.path.samefile(path, target):
        raise ConversionError(f"{target} is the file to convert; give another name for the result")
    file = GGUFFile(path)
    source = Source(path)
    with source.reading():
        tensors = plan_gguf(source, file.metadata, wanted)
        header, alignment = header_copier(source, wanted, tensors), file.alignment
        write(target, header, tensors, progress=progress, n_threads=n_threads, alignment=alignment)
    return _result(target, wanted, tensors, ())


def _from_folder(
    folder: Path, target: Path, wanted: Target, progress: bool, n_threads: int | None, ignore: Iterable[str]
) -> Conversion:
    ignore = frozenset(ignore)
    config = read_config(folder, ignore)
    with Checkpoint(folder) as checkpoint:
        tensors, skipped = plan_tensors(checkpoint, config, wanted)
        metadata = {
            "general.type": "model",
            "general.name": os.fsencode(folder.resolve().name).decode("utf-8", "replace"),
            "general.file_type": file_type(wanted),
            "general.quantization_version": gguf.GGML_QUANT_VERSION,
            **{f"{config.architecture}.{key}": value for key, value in config.metadata.items()},
            **read_vocab(folder, config.n_vocab, config.token_ids, ignore),
        }
        write(
            target,
            _header_writer(config.architecture, metadata, tensors),
            tensors,
            progress=progress,
            n_threads=n_threads,
        )
    return _result(target, wanted, tensors, skipped)


def _result(target: Path, wanted: Target, tensors: Sequence[PlannedTensor], skipped: Sequence[str]) -> Conversion:
    rows = (
        ConvertedTensor(item.name, item.shape, item.source_dtype, item.dtype.name, item.nbytes, item.reason)
        for item in tensors
    )
    return Conversion(target, wanted.name, target.stat().st_size, tuple(rows), tuple(skipped))


def _header_writer(
    architecture: str, metadata: dict[str, Any], tensors: Sequence[PlannedTensor]
) -> Callable[[Path], None]:
    """Return what writes the header with the `gguf` package."""

    def write_header(path: Path) -> None:
        writer = gguf.GGUFWriter(None, architecture)
        for key, value in metadata.items():
            _add(writer, key, value)
        for tensor in tensors:
            # ggml's number, not the package's enumeration, which may be older than ggml
            writer.add_tensor_info(tensor.name, tensor.shape, None, tensor.nbytes, tensor.dtype.id)
        try:
            writer.write_header_to_file(path)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
        except (struct.error, OverflowError, UnicodeEncodeError) as error:
            raise ConversionError(f"{path}: a value of the metadata has no form in GGUF: {error}") from error
        finally:
            writer.close()

    return write_header


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
