"""Every exception kit raises: each is a KitError and the builtin a Python person would catch."""

from __future__ import annotations


class KitError(Exception):
    """The base of everything kit raises on purpose."""


class ArgumentError(KitError, ValueError):
    """An argument is outside what the function accepts."""


class ShapeError(KitError, ValueError):
    """Shapes do not fit each other; the message names the tensors and their shapes."""


class DTypeError(KitError, TypeError):
    """A tensor has an element type the operation cannot take."""


class ContextError(KitError, ValueError):
    """A context refuses: it is full, fixed, or belongs to another backend."""


class ClosedError(KitError, ValueError):
    """Something was used after its close(), or after the reset() of its context."""


class NotComputedError(KitError, RuntimeError):
    """A value was read before any computation produced it."""


class BusyError(KitError, RuntimeError):
    """A resource is in the middle of other work."""


class CacheFull(KitError, RuntimeError):
    """The KV cache has no room for the tokens asked for."""


class GgmlAbort(KitError, RuntimeError):
    """ggml itself refused with an abort; the guard turned it into this exception."""


class OutOfMemory(KitError, MemoryError):
    """A device has no room; `nbytes` is what was asked for, `device` where."""

    def __init__(self, message: str, *, nbytes: int = 0, device: str = "") -> None:
        super().__init__(message)
        self.nbytes = nbytes
        self.device = device


class GGUFError(KitError, ValueError):
    """A GGUF file is not what it claims; the message names path, key or tensor, and offset."""


class MissingKey(GGUFError, KeyError):
    """A GGUF file lacks a metadata key or a tensor."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class GGUFNotFound(GGUFError, FileNotFoundError):
    """There is no file where a GGUF file was looked for."""


class ConversionError(KitError, ValueError):
    """A checkpoint cannot be converted, or reading or writing it failed; the message names file, tensor and byte."""


class GGUFReadError(GGUFError, OSError):
    """Reading tensor data failed; `filename`, `tensor`, `offset` say where, `errno` why (None: the file ended)."""

    def __init__(
        self, message: str, *, path: object = None, tensor: str = "", offset: int = 0, number: int | None = None
    ) -> None:
        super().__init__(message)
        self.filename = path
        self.tensor = tensor
        self.offset = offset
        self.errno = number

    def __str__(self) -> str:  # OSError would show its errno and file name instead of the message
        return str(self.args[0])


class UnsupportedModel(KitError, NotImplementedError):
    """A model needs something kit does not have; the message names the key or tensor."""


class UnknownStage(KitError, KeyError):
    """No stage of the model has this name or matches this pattern."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ModelNotFound(KitError, FileNotFoundError):
    """No file and no known model has this name."""


class TemplateError(KitError, ValueError):
    """A chat template is wrong, refuses the messages, or may not do what it tries; names the template and the line."""


class StateError(KitError, ValueError):
    """A saved session is not what it claims, or is another model's; names the path and what is wrong."""


class StateFileError(StateError, OSError):
    """A saved session cannot be written or read; names the path and what the system said."""

    def __str__(self) -> str:  # OSError would show its errno instead of the message
        return str(self.args[0])


class StateNotFound(StateFileError, FileNotFoundError):
    """There is no file where a saved session was looked for."""


class FetchError(KitError, ConnectionError):
    """A file could not be fetched or did not match its checksum."""


class BuildError(KitError, RuntimeError):
    """A backend could not be built here; the message says what was missing or what the compiler said."""


class DeviceLost(KitError, ConnectionError):
    """A device, or the server behind it, has gone away."""


class NativeMissing(KitError, ImportError):
    """The compiled part of kit is not there."""
