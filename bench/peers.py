#!/usr/bin/env python3
"""Builds the upstream programs that the benchmarks compare with, from the pinned tree, unpatched.

    python bench/peers.py llama-bench                     the fair peer: the flags of cmake/LlamaCpp.cmake
    python bench/peers.py llama-bench --variant stock     upstream's own defaults (shared libraries, OpenMP)
    python bench/peers.py llama-server llama-batched-bench

Built in build/peers/<hash>/, where the hash covers the variant, the pin, the compiler, its environment and the CPU. A second
call takes seconds: cmake and ninja see what changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "vendor" / "llama.cpp"
TREE = ROOT / "build" / "llama.cpp-full"
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server")
VARIANTS = {
    "same-flags": "same pin, compiler and flags as aner, unpatched",
    "stock": "same pin and compiler, upstream's default options (shared libraries, OpenMP), unpatched",
}


@dataclass(frozen=True)
class Peer:
    """One built program, with what a record has to say about it."""

    program: str
    variant: str
    path: Path
    commit: str
    compiler: str
    flags: str
    sha256: str

    def facts(self) -> dict[str, str]:
        """For a record: everything but the path, with the variant spelled out."""
        return {**asdict(self), "path": self.path.name, "variant_means": VARIANTS[self.variant]}


def missing_tools() -> list[str]:
    """What this machine lacks to build a peer, each with what to do about it; empty when it can."""
    lacks = []
    if shutil.which("cmake") is None:
        lacks.append("cmake (3.21 or newer): pip install cmake")
    for variable, default in (("CC", "cc"), ("CXX", "c++")):
        compiler = os.environ.get(variable, default)
        if shutil.which(compiler.split()[0]) is None:
            lacks.append(f"a C++17 compiler ({compiler!r} is not on the PATH): for example apt-get install g++")
    if not (shutil.which("ninja") or shutil.which("make")):
        lacks.append("ninja or make: pip install ninja")
    return lacks


def pinned_commit() -> str:
    found = re.search(r"ANER_ENGINE_COMMIT\s+([0-9a-f]{7,40})\)", (ROOT / "cmake" / "LlamaCpp.cmake").read_text())
    return found.group(1) if found else "unknown"


def compiler_version() -> str:
    compiler = os.environ.get("CXX", "c++").split()
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]


def cpu_identity() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


def build_folder(variant: str) -> Path:
    key = hashlib.sha256(variant.encode() + (VENDOR / "requirements.txt").read_bytes())
    for text in (compiler_version(), cpu_identity(), *(os.environ.get(v, "") for v in ("CC", "CXX", "CFLAGS", "CXXFLAGS"))):
        key.update(text.encode() + b"\0")
    return ROOT / "build" / "peers" / key.hexdigest()[:16]


def flags_of(folder: Path) -> str:
    """The compile options of one kernel source, as the build really used them."""
    for entry in json.loads((folder / "compile_commands.json").read_text()):
        if entry["file"].endswith("ggml-cpu/ops.cpp"):
            words = [w for w in entry["command"].split()[1:] if w.startswith(("-O", "-f", "-m", "-D", "-std"))]
            return " ".join(words)
    return "unknown"


def run(command: list[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "SOURCE_DATE_EPOCH"}  # it would turn -march=native off
    environment["GIT_CEILING_DIRECTORIES"] = str(TREE.parent)
    done = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout[-4000:]}")


def build(program: str, variant: str = "same-flags") -> Peer:
    """The program, brought up to date; ends the process with the reason when it cannot be built."""
    lacks = missing_tools()
    if lacks:
        sys.exit(f"{program} cannot be built here. Missing:\n  " + "\n  ".join(lacks))
    folder = build_folder(variant)
    path = folder / "bin" / program
    if not path.is_file():
        print(f"building {program} ({variant}): several minutes on two cores, once", file=sys.stderr)
    run([sys.executable, str(VENDOR / "unpack.py"), "full", str(TREE)])
    configure = ["cmake", "-S", str(ROOT / "bench" / "llama_peers"), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DANER_LLAMA_CPP_DIR={TREE}", f"-DPEER_VARIANT={variant}", f"-DPEER_COMMIT={pinned_commit()}"]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    if shutil.which("ccache"):
        configure += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    run(configure)
    run(["cmake", "--build", str(folder), "--target", program, "--parallel", str(os.cpu_count() or 1)])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Peer(program, variant, path, pinned_commit(), compiler_version(), flags_of(folder), digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", choices=PROGRAMS)
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="same-flags")
    chosen = parser.parse_args()
    for program in chosen.programs:
        peer = build(program, chosen.variant)
        print(json.dumps({**peer.facts(), "path": str(peer.path)}, indent=1))


if __name__ == "__main__":
    main()
