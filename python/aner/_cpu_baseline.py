"""Refuses, before the extension is imported, a CPU that lacks what this build was compiled for.

The build writes down what its instructions need (``_cpu_requirements``): x86-64-v3 for a portable one, the features of the machine
it was made on for a native one. Without this check the first missing instruction would end the process with SIGILL.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The first CPU's feature flags, or None where they are not known (another system than Linux on x86)."""
    if platform.machine().lower() not in {"x86_64", "amd64"} or not cpuinfo.is_file():
        return None
    for line in cpuinfo.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return None


def check(flags: frozenset[str] | None, required: Iterable[str], kind: str) -> None:
    """Raise ImportError when ``flags`` are known and one that a build of this ``kind`` requires is missing."""
    missing = [] if flags is None else [flag for flag in required if flag not in flags]
    if missing:
        raise ImportError(
            f"This CPU lacks {', '.join(missing)}, and this {kind} build of aner uses them. Build it on this machine: "
            "pip install --no-binary aner aner. (A build that must run on several machines: -C cmake.define.ANER_NATIVE=OFF, which "
            "needs x86-64-v3, CPUs since about 2013.)"
        )


def check_this_cpu() -> None:
    """Compare this machine with what the build wrote down; a source tree on the path without an installation has nothing to compare."""
    try:
        from aner import _cpu_requirements as needs
    except ImportError:
        return
    check(cpu_flags(), needs.REQUIRED, needs.KIND)
