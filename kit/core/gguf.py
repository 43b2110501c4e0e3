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
from kit.core.gguf_source import Source, TensorInfo, TypeShare, type_shares
from kit.core.gguf_weights import read_tensor

__all__ = ["GGUFFile", "TensorInfo", "TypeShare"]


class GGUFFile:
    """The metadata and the tensor table of a GGUF file.

    Opening walks the whole header with a checker of kit's own, which compares every size with the size of the
    file, and then has ggml's reader read it. An open GGUFFile holds no file and no native memory, so it need
    not be closed; ``close()`` drops what was read and makes later use raise ClosedError.

    Raises GGUFError where the file is no sound GGUF file (the message names the path, the key or tensor and
    the byte), GGUFNotFound, a FileNotFoundError too, where there is none.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._source = Source(path)
        self._metadata = Metadata(self._source)
        self._tensors = TensorTable(self._source)

    @property
    def path(self) -> pathlib.Path:
        """Where the file lies."""
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
        """The size of the file."""
        return self._source.header.nbytes

    @property
    def data_offset(self) -> int:
        """The byte at which the header ends and tensor data begin."""
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
        return read_tensor(self._source, self.tensors[name])

    @contextlib.contextmanager
    def reading(self) -> Iterator[GGUFFile]:
        """Keep the file open within the block, for reading many arrays or tensors."""
        with self._source.reading():
            yield self

    def close(self) -> None:
        """Drop what was read; later use raises ClosedError. May be called again."""
        self._metadata.forget()
        self._source.closed = True

    def __enter__(self) -> GGUFFile:
        self._source.require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def text(self) -> str:
        """Return a table of fewer than 40 lines: what the file is, its first keys, its tensors by block."""
        return gguf_view.text_of(self._source, self._metadata)

    def html(self) -> str:
        """Return the same with all keys and all tensors to unfold."""
        return gguf_view.html_of(self._source, self._metadata)

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return self.html()
