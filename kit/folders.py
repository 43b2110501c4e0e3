"""Where kit keeps what it fetched or built."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Folder for fetched and built files: $KIT_CACHE, or the user's cache folder of this system."""
    chosen = os.environ.get("KIT_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("ggml-kit")
