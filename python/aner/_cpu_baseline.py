"""Refuses, before the extension is imported, a CPU that lacks what a portable build was compiled for.

A native build runs where it was built; a portable one (``ANER_NATIVE=OFF``) needs x86-64-v3 on x86. Without this check the first
such instruction would end the process with SIGILL.
"""

from __future__ import annotations

import platform
from pathlib import Path

#: Flags of /proc/cpuinfo that x86-64-v3 and the baseline's kernels need.
BASELINE = ("avx", "avx2", "bmi2", "f16c", "fma", "sse4_2")


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The first CPU's feature flags, or None where they are not known (another system than Linux on x86)."""
    if platform.machine().lower() not in {"x86_64", "amd64"} or not cpuinfo.is_file():
        return None
    for line in cpuinfo.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return None


def check(flags: frozenset[str] | None) -> None:
    """Raise ImportError when ``flags`` are known and one of the baseline is missing."""
    missing = [] if flags is None else [flag for flag in BASELINE if flag not in flags]
    if missing:
        raise ImportError(
            f"This CPU lacks {', '.join(missing)}, which aner's portable build needs (x86-64-v3, CPUs since about 2013). "
            "Build it for this CPU from source: pip install --no-binary aner aner"
        )
