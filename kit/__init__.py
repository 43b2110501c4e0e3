"""ggml-kit: see ggml work, step through a language model, and catch leaks.

Importing kit loads no library and no device: each name below is fetched from its
module the first time it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kit.errors import (
    ArgumentError,
    BuildError,
    BusyError,
    CacheFull,
    ClosedError,
    ContextError,
    ConversionError,
    DeviceLost,
    DTypeError,
    FetchError,
    GgmlAbort,
    GGUFError,
    KitError,
    ModelNotFound,
    NotComputedError,
    OutOfMemory,
    ShapeError,
    StateError,
    StateFileError,
    StateNotFound,
    TemplateError,
    UnknownStage,
    UnsupportedModel,
)

if TYPE_CHECKING:
    from kit import memory
    from kit.core import ops
    from kit.core.backend import Backend
    from kit.core.buffer import Buffer
    from kit.core.context import Context
    from kit.core.devices import Device, devices
    from kit.core.gguf import GGUFFile
    from kit.core.graph import Graph
    from kit.core.tensor import Tensor
    from kit.memory.tracker import Tracker
    from kit.models.chat.templates import ChatTemplate
    from kit.models.convert.convert import Conversion, convert
    from kit.models.files.store import find_model
    from kit.models.model import Model, load
    from kit.models.session.sampler import Sampler
    from kit.models.session.session import Session
    from kit.models.text.tokenizer import Tokenizer
    from kit.models.weights.preparation import Prepare

__version__ = "0.1.0"

_HOME = {
    "Backend": "kit.core.backend",
    "Buffer": "kit.core.buffer",
    "Context": "kit.core.context",
    "Device": "kit.core.devices",
    "devices": "kit.core.devices",
    "GGUFFile": "kit.core.gguf",
    "Graph": "kit.core.graph",
    "Tensor": "kit.core.tensor",
    "Tracker": "kit.memory.tracker",
    "Conversion": "kit.models.convert.convert",
    "convert": "kit.models.convert.convert",
    "Model": "kit.models.model",
    "load": "kit.models.model",
    "Sampler": "kit.models.session.sampler",
    "Prepare": "kit.models.weights.preparation",
    "Session": "kit.models.session.session",
    "find_model": "kit.models.files.store",
    "ChatTemplate": "kit.models.chat.templates",
    "Tokenizer": "kit.models.text.tokenizer",
}
_MODULES = {"ops": "kit.core.ops", "memory": "kit.memory"}

__all__ = [
    "ArgumentError",
    "Backend",
    "Buffer",
    "BuildError",
    "BusyError",
    "CacheFull",
    "ChatTemplate",
    "ClosedError",
    "Context",
    "ContextError",
    "Conversion",
    "ConversionError",
    "DTypeError",
    "Device",
    "DeviceLost",
    "FetchError",
    "GGUFError",
    "GGUFFile",
    "GgmlAbort",
    "Graph",
    "KitError",
    "Model",
    "ModelNotFound",
    "NotComputedError",
    "OutOfMemory",
    "Prepare",
    "Sampler",
    "Session",
    "ShapeError",
    "StateError",
    "StateFileError",
    "StateNotFound",
    "TemplateError",
    "Tensor",
    "Tokenizer",
    "Tracker",
    "UnknownStage",
    "UnsupportedModel",
    "__version__",
    "convert",
    "devices",
    "find_model",
    "load",
    "memory",
    "ops",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'kit' has no attribute {name!r}")
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Make the magics known: what ``%load_ext kit`` calls."""
    importlib.import_module("kit.views.magics").register(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
