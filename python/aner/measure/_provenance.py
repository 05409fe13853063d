"""What a number depends on: versions, build, machine, model. Unknown text is "unknown", an unknown number -1."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ._idle import read_cpu_times, usable_cpus
from ._statistics import MISSING

UNKNOWN = "unknown"


class DescribedModel(Protocol):
    """The part of a lease that says which model it is."""

    def fingerprint(self) -> str: ...
    def device(self) -> str: ...
    def metadata(self) -> Mapping[str, Any]: ...
    def memory_summary(self) -> Mapping[str, Any]: ...
    def load_summary(self) -> Mapping[str, Any]: ...


def provenance(checkout: Path | None = None) -> dict[str, Any]:
    """What stays the same during a run. ``checkout``: the repository that the code was run from."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "aner": _aner(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": {
            "cpu": _cpu_model(),
            "architecture": platform.machine(),
            "caches": _caches(),
            "cpus_online": os.cpu_count() or MISSING,
            "cpus_usable": len(usable_cpus()),
            "cpu_quota": _cpu_quota(),
            "memory_bytes": _meminfo("MemTotal"),
            "kernel": f"{platform.system()} {platform.release()}",
        },
        "git": _git(checkout),
        "environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith(("GGML_", "LLAMA_", "OMP_"))},
    }


def machine_state() -> dict[str, Any]:
    """What changes during a run: taken before and after it."""
    times = read_cpu_times()
    try:
        load = list(os.getloadavg())
    except OSError:
        load = [MISSING] * 3
    return {
        "load_average": load,
        "stolen_seconds": times.stolen,
        "busy_seconds": times.busy,
        "memory_available_bytes": _meminfo("MemAvailable"),
        "rss_bytes": _status("VmRSS"),
        "peak_rss_bytes": _status("VmHWM"),
        "threads": _status("Threads"),
    }


def describe_model(model: DescribedModel, path: Path | None = None) -> dict[str, Any]:
    """Identity, real tensor types (in the metadata), device and memory of a loaded model."""
    return {
        "file": path.name if path else UNKNOWN,
        "bytes": path.stat().st_size if path else MISSING,
        "sha256": model.fingerprint(),
        "device": model.device(),
        "metadata": {k: v for k, v in _plain(model.metadata()).items() if k != "path"},  # a record names no folders
        "memory": _plain(model.memory_summary()),
        "load": _plain(model.load_summary()),
    }


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _aner() -> dict[str, Any]:
    package, native = (sys.modules.get(name) for name in ("aner", "aner_native"))
    build_info, system_info = getattr(package, "build_info", None), getattr(native, "system_info", None)
    return {
        "version": str(getattr(package, "__version__", UNKNOWN)),
        "build": _plain(build_info()) if callable(build_info) else UNKNOWN,
        "engine_system_info": str(system_info()).strip() if callable(system_info) else UNKNOWN,
    }


def _plain(value: Any) -> Any:
    """JSON's types only; long texts and lists (templates, vocabularies) by their size."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value] if len(value) <= 64 else f"{len(value)} items"
    if isinstance(value, str):
        return value if len(value) <= 500 else f"{len(value)} characters, SHA-256 {hashlib.sha256(value.encode()).hexdigest()}"
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found.group(1) if found else platform.processor() or UNKNOWN


def _caches() -> list[str]:
    """Of the first usable CPU, for example ``["L1 Data 32K", "L2 Unified 1024K"]``."""
    found = []
    for folder in sorted(Path(f"/sys/devices/system/cpu/cpu{usable_cpus()[0]}/cache").glob("index*")):
        level, kind, size = (_read(str(folder / name)).strip() for name in ("level", "type", "size"))
        found.append(f"L{level} {kind} {size}")
    return found


def _cpu_quota() -> float:
    """CPUs that the control group grants, the tightest on the way up; -1 for no limit or no such thing."""
    own = re.search(r"^0::(.*)$", _read("/proc/self/cgroup"), re.MULTILINE)
    quotas = []
    group = own.group(1) if own else "/"
    while True:
        limit = _read(f"/sys/fs/cgroup{group.rstrip('/')}/cpu.max").split()
        if len(limit) == 2 and limit[0] != "max":
            quotas.append(int(limit[0]) / int(limit[1]))
        if group in ("/", ""):
            break
        group = group.rpartition("/")[0]
    older = [_read(f"/sys/fs/cgroup/cpu/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if all(older) and int(older[0]) > 0:
        quotas.append(int(older[0]) / int(older[1]))
    return min(quotas, default=MISSING)


def _meminfo(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else MISSING


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)( kB)?", _read("/proc/self/status"), re.MULTILINE)
    return int(found.group(1)) * (1024 if found.group(2) else 1) if found else MISSING


def _git(checkout: Path | None) -> dict[str, Any]:
    def ask(*arguments: str) -> str | None:
        command = ["git", "-C", str(checkout), *arguments]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD") if checkout else None
    changed = ask("status", "--porcelain") if commit else None
    return {"commit": commit or UNKNOWN, "changed": UNKNOWN if changed is None else bool(changed)}
