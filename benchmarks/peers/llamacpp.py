"""llama.cpp, built for this machine from the source distribution of llama-cpp-python: about ten minutes, once."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from benchmarks.peers import store
from benchmarks.peers.store import PeerMissing

VERSION = "0.3.36"
_SDIST = f"llama_cpp_python-{VERSION}.tar.gz"
_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_BUILDERS = ("cmake>=3.25,<5", "ninja>=1.11")
_OFF = ("LLAMA_BUILD_TESTS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_APP", "LLAMA_OPENSSL")
PROGRAMS = ("llama-bench", "llama-completion", "llama-quantize")


def programs() -> Path:
    """Return the folder of llama.cpp's programs, building them if they are missing.

    The build is llama.cpp's own default for a CPU: release, native instructions, OpenMP where the compiler has it,
    repacked weights and llamafile's kernels. Raises PeerMissing without a compiler or where the build fails.
    """
    if chosen := os.environ.get("KIT_BENCH_LLAMACPP"):
        return _all_there(Path(chosen).expanduser())
    return _all_there(store.made_once(f"llamacpp-{VERSION}", _build))


def _all_there(folder: Path) -> Path:
    missing = [name for name in PROGRAMS if not (folder / name).is_file()]
    if missing:
        raise PeerMissing(f"{folder} has no {', '.join(missing)}; set KIT_BENCH_LLAMACPP to a folder that has them")
    return folder


def _build(part: Path) -> None:
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler.split()[0]):
        raise PeerMissing(
            f"llama.cpp has to be built and there is no C++ compiler ({compiler}); install one (Debian: g++), "
            "or set KIT_BENCH_LLAMACPP to a folder with llama-bench, llama-completion and llama-quantize"
        )
    builders = store.environment("builders", *_BUILDERS).parent
    sdist = store.fetched_sdist(f"llama-cpp-python=={VERSION}", _SDIST, _SHA256)
    work = store.folder() / "llamacpp-build"
    shutil.rmtree(work, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    source = work / _SDIST.removesuffix(".tar.gz") / "vendor" / "llama.cpp"
    store.run(
        *(builders / "cmake", "-S", source, "-B", work / "out", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"),
        *(f"-DCMAKE_MAKE_PROGRAM={builders / 'ninja'}", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=ON"),
        *("-DCMAKE_BUILD_RPATH=$ORIGIN", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"),
        *(f"-D{name}=OFF" for name in _OFF),
    )
    jobs = str(max(1, min(os.cpu_count() or 1, 8)))
    store.run(builders / "cmake", "--build", work / "out", "-j", jobs, "--target", *PROGRAMS)
    shutil.copytree(work / "out" / "bin", part, symlinks=True)
    shutil.rmtree(work)
