"""GGUF files that other tools have left on this machine, under the names those tools use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.core.gguf_names import PartName
from kit.files import cache_folder
from kit.models.files.catalog import KNOWN


@dataclass(frozen=True)
class LocalModel:
    """A model file on this machine; of a split one its first part, with the bytes of all.

    name: as its tool calls it (`llama3.2:1b`, `org/repo/file.gguf`).  tool: who put it there.
    """

    name: str
    path: Path
    nbytes: int
    tool: str

    @property
    def keys(self) -> tuple[str, ...]:
        """Names it can be asked for by, the full one first: also file, stem and `org/repo` alone.

        The number of a part may be left out.
        """
        full = self.name.removesuffix(".gguf")
        file = full.rpartition("/")[2]
        keys = [self.name, full, file + ".gguf", file]
        if part := PartName.parse(file + ".gguf"):
            keys += [part.prefix + ".gguf", part.prefix]
        if self.tool == "ollama":
            keys = [self.name, self.name.removesuffix(":latest")]
        elif full.count("/") >= 2:
            org, repo = full.split("/")[:2]
            keys += [f"{org}/{repo}", repo]
        return tuple(dict.fromkeys(key.casefold() for key in keys))


@dataclass(frozen=True)
class Place:
    """A folder that may hold models, whose it is, and how to read it."""

    tool: str
    folder: Path
    scan: Callable[[Path], Iterator[tuple[str, Path]]]


def places() -> list[Place]:
    """Where models are looked for, in this order; the folders need not exist."""
    home = Path.home()
    cache = _environment_folder("XDG_CACHE_HOME") or home / ".cache"
    hf_home = _environment_folder("HF_HOME") or cache / "huggingface"
    hub = _environment_folder("HF_HUB_CACHE") or _environment_folder("HUGGINGFACE_HUB_CACHE") or hf_home / "hub"
    ollama = _environment_folder("OLLAMA_MODELS")
    ollama_places = [ollama] if ollama else [home / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    return [
        Place("kit", cache_folder() / "models", _scan_files),
        Place("huggingface", hub, _scan_hub),
        *(Place("ollama", folder, _scan_ollama) for folder in ollama_places),
        Place("lmstudio", home / ".lmstudio/models", _scan_files),
        Place("lmstudio", home / ".cache/lm-studio/models", _scan_files),
        Place("llama.cpp", _environment_folder("LLAMA_CACHE") or cache / "llama.cpp", _scan_files),
    ]


def local_models() -> list[LocalModel]:
    """Every GGUF file found in the folders of kit, Hugging Face, Ollama, LM Studio and llama.cpp.

    Sorted by tool in the order they are searched, then by name. Folders that are absent or cannot
    be read are passed over; nothing is opened but Ollama's small manifests.
    """
    fetched = {model.filename: model.name for model in KNOWN.values() if model.is_fetched}
    found: list[LocalModel] = []
    seen: set[tuple[str, str]] = set()
    for place in places():
        for name, path in sorted(place.scan(place.folder)):
            label = fetched.get(name, name) if place.tool == "kit" else name
            try:
                nbytes = _n_bytes(path)
            except OSError:
                continue  # a link whose file is gone
            if (place.tool, label) not in seen:
                seen.add((place.tool, label))
                found.append(LocalModel(label, path, nbytes, place.tool))
    return found


def _environment_folder(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(value).expanduser() if value else None


def _scan_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """All *.gguf below a folder, named by their path in it; of a split file the first part that is there."""
    for place, _, names in os.walk(folder):
        for name in _without_later_parts(name for name in names if name.endswith(".gguf")):
            path = Path(place, name)
            yield path.relative_to(folder).as_posix(), path


def _without_later_parts(names: Iterable[str]) -> Iterator[str]:
    """Yield the names of a folder, of the parts of one split file only the lowest there is."""
    firsts: dict[tuple[str, int], PartName] = {}
    for name in names:
        part = PartName.parse(name)
        if part is None:
            yield name
        elif (first := firsts.setdefault((part.prefix, part.count), part)).number > part.number:
            firsts[first.prefix, first.count] = part
    yield from (part.other(part.number) for part in firsts.values())


def _same_model(one: PartName | None, other: PartName) -> bool:
    return one is not None and one != other and (one.prefix, one.count) == (other.prefix, other.count)


def _n_bytes(path: Path) -> int:
    """Bytes of a file; of a part, those of all parts that are there. Raises OSError where the file is gone."""
    nbytes = path.stat().st_size
    part = PartName.parse(path.name)
    if part is not None:
        for other in path.parent.iterdir():
            if _same_model(PartName.parse(other.name), part) and other.exists():
                nbytes += other.stat().st_size
    return nbytes


def _scan_hub(hub: Path) -> Iterator[tuple[str, Path]]:
    """Hugging Face: models--ORG--REPO/snapshots/REVISION/FILE; the revision of `main` wins."""
    for repo in sorted(hub.glob("models--*")):
        name = repo.name.removeprefix("models--").replace("--", "/")
        revisions = sorted((repo / "snapshots").glob("*"))
        main = _first_line(repo / "refs/main")
        revisions.sort(key=lambda revision: revision.name != main)
        files: dict[str, Path] = {}
        for revision in revisions:
            for inner, path in _scan_files(revision):
                files.setdefault(inner, path)
        yield from ((f"{name}/{inner}", path) for inner, path in files.items())


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _scan_ollama(folder: Path) -> Iterator[tuple[str, Path]]:
    """Ollama: manifests/HOST/NAMESPACE/MODEL/TAG is JSON that points to blobs/sha256-HEX."""
    manifests = folder / "manifests"
    for place, _, names in os.walk(manifests):
        parts = Path(place).relative_to(manifests).parts
        for tag in names:
            digest = _model_digest(Path(place, tag))
            if digest and len(parts) >= 2:
                yield _ollama_name(parts, tag), folder / "blobs" / f"sha256-{digest}"


def _ollama_name(parts: tuple[str, ...], tag: str) -> str:
    if parts[0] == "registry.ollama.ai":
        parts = parts[2:] if parts[1] == "library" else parts[1:]
    return f"{'/'.join(parts)}:{tag}"


def _model_digest(manifest: Path) -> str | None:
    """Hex digest of the model layer; None for anything that is no manifest (the file is untrusted)."""
    try:
        layers = json.loads(manifest.read_bytes())["layers"]
        digests = [
            layer["digest"] for layer in layers if layer.get("mediaType") == "application/vnd.ollama.image.model"
        ]
        match = re.fullmatch("sha256[:-]([0-9a-f]{64})", digests[0])
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    return match[1] if match else None
