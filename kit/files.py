"""Where kit keeps what it fetched or built, and what tells one file from another."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Folder for fetched and built files: $KIT_CACHE, or the user's cache folder of this system."""
    chosen = os.environ.get("KIT_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("ggml-kit")


def sha256(path: Path) -> str:
    """The file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
