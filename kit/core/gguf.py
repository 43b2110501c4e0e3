"""GGUF files: what is in them, without loading them."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from kit.core import gguf_view
from kit.core.gguf_metadata import Metadata, TensorTable
from kit.core.gguf_parts import GGUFPart, open_parts
from kit.core.gguf_source import TensorInfo, TypeShare, type_shares
from kit.core.gguf_weights import read_tensor

__all__ = ["GGUFFile", "GGUFPart", "TensorInfo", "TypeShare"]


class GGUFFile:
    """The metadata and the tensor table of a GGUF file; of a split one (``NAME-00001-of-00003.gguf``) from any part.

    All parts of a split file are looked for beside the one given, and ``tensors`` is the table of them all;
    ``whole=False`` opens that one file alone.

    Opening walks the whole header with a checker of kit's own, which compares every size with the size of the
    file, and then has ggml's reader read it. An open GGUFFile holds no file and no native memory, so it need
    not be closed; ``close()`` drops what was read and makes later use raise ClosedError.

    Raises GGUFError where the file is no sound GGUF file (the message names the path, the key or tensor and
    the byte), GGUFNotFound, a FileNotFoundError too, where there is none.
    """

    def __init__(self, path: str | os.PathLike[str], *, whole: bool = True) -> None:
        self._parts = open_parts(path, whole=whole)
        self._source = self._parts.first
        self._metadata = self._parts.metadata
        self._tensors = TensorTable(self._source, self._parts.tensors)
        self._records = self._parts.records()

    @property
    def path(self) -> pathlib.Path:
        """Where the file lies; of a split file, its first part."""
        return self._source.path

    @property
    def version(self) -> int:
        """The version of the GGUF format, 2 or 3."""
        return self._source.header.version

    @property
    def alignment(self) -> int:
        """Tensor data start at multiples of this many bytes, counted from ``data_offset``."""
        return self._source.header.alignment

    @property
    def nbytes(self) -> int:
        """The size of the file; of a split file, of all its parts together."""
        return self._parts.nbytes

    @property
    def parts(self) -> tuple[GGUFPart, ...]:
        """The files, in order; one where the file is not split."""
        return self._records

    @property
    def data_offset(self) -> int:
        """The byte of ``path`` at which the header ends and tensor data begin."""
        return self._source.header.data_offset

    @property
    def metadata(self) -> Metadata:
        """Values by key, in file order; arrays are read at their first use."""
        self._source.require_open()
        return self._metadata

    @property
    def tensors(self) -> TensorTable:
        """TensorInfo by name, in file order."""
        self._source.require_open()
        return self._tensors

    @property
    def architecture(self) -> str:
        """``general.architecture``; MissingKey where the file has none."""
        return str(self.metadata["general.architecture"])

    @property
    def n_params(self) -> int:
        """The number of elements of all tensors."""
        return sum(info.n_elements for info in self.tensors.values())

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._source.closed

    def types(self) -> dict[str, TypeShare]:
        """Return, by tensor type, how many tensors and bytes it has; most bytes first."""
        return type_shares(self.tensors.values())

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Return a copy of one tensor in numpy order.

        f16, f32, f64 and integers keep their type, all other types become float32 as ggml converts them.
        Raises MissingKey for an unknown name, DTypeError for a type ggml cannot convert, GGUFError where the
        file cannot be read or is another one by now.
        """
        info = self.tensors[name]
        return read_tensor(self._parts.source_of(info), info)

    @contextlib.contextmanager
    def reading(self) -> Iterator[GGUFFile]:
        """Keep the file, or all its parts, open within the block, for reading many arrays or tensors."""
        with contextlib.ExitStack() as opened:
            for source in self._parts.sources:
                opened.enter_context(source.reading())
            yield self

    def close(self) -> None:
        """Drop what was read; later use raises ClosedError. May be called again."""
        self._metadata.forget()
        for source in self._parts.sources:
            source.closed = True

    def __enter__(self) -> GGUFFile:
        self._source.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def text(self) -> str:
        """Return a table of fewer than 40 lines: what the file is, its first keys, its tensors by block."""
        return gguf_view.text_of(self._parts)

    def html(self) -> str:
        """Return the same with all keys and all tensors to unfold."""
        return gguf_view.html_of(self._parts)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()
