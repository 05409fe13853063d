"""What ``aner doctor`` looks at: the build, the machine, how busy it is. -1 or "unknown": cannot be read."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import aner_native

import aner
from aner.measure import MISSING, machine_state, provenance, read_cpu_times, usable_cpus, window_between

#: The engine's name of a CPU feature that its kernels use, and the operating system's.
FEATURES = {
    "AVX": "avx", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma", "BMI2": "bmi2", "AVX_VNNI": "avx_vnni", "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
    "NEON": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp", "MATMUL_INT8": "i8mm", "SVE": "sve", "SME": "sme",
}  # fmt: skip
_WINDOW_S = 0.5
_ACCELERATORS = {"nvidia": "/proc/driver/nvidia/version", "amd": "/dev/kfd"}
_DISTURBING = ("GGML_", "LLAMA_")


def examine() -> dict[str, Any]:
    """Everything but the model; watches the CPUs for half a second."""
    before = read_cpu_times()
    time.sleep(_WINDOW_S)
    window = window_between(before, read_cpu_times())
    record, state = provenance(), machine_state()
    machine = record["machine"]
    build = aner.build_info()
    used = set(re.findall(r"(\w+) = [1-9]", aner_native.system_info()))
    has = {name for name, flag in FEATURES.items() if flag in _cpu_flags()}
    return {
        "build": build,
        "devices": aner_native.devices(),
        "accelerators_seen": _accelerators(),
        "cpu": {
            "model": machine["cpu"],
            "architecture": machine["architecture"],
            "caches": machine["caches"],
            "features_used": [name for name in FEATURES if name in used],
            "features_unused": [name for name in FEATURES if name in has - used],
            "kernels": sorted(used & {"LLAMAFILE", "REPACK", "ACCELERATE", "KLEIDIAI"}),
        },
        "cpus": {
            "machine": machine["cpus_online"],
            "affinity": machine["cpus_usable"],
            "quota": machine["cpu_quota"],
            "cores": _cores(),
            "usable": aner_native.usable_cpus(),
            "governors": _governors(),
        },
        "memory": {
            "total_bytes": machine["memory_bytes"],
            "available_bytes": state["memory_available_bytes"],
            "limit_bytes": _memory_limit(),
        },
        "now": {
            "watched_seconds": round(window.seconds, 3),
            "others_share": round(window.foreign_share, 4),
            "stolen_share": round(window.stolen_share, 4),
            "load_average": state["load_average"],
        },
        "environment": {name: value for name, value in record["environment"].items() if name.startswith(_DISTURBING)},
        "kernel": machine["kernel"],
        "python": record["python"],
    }


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _cpu_flags() -> frozenset[str]:
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return frozenset(found.group(1).split() if found else ())


def _cores() -> int:
    """Physical cores among the CPUs of this process."""
    topology = [f"/sys/devices/system/cpu/cpu{cpu}/topology" for cpu in usable_cpus()]
    cores = {(_read(f"{folder}/physical_package_id"), _read(f"{folder}/core_id")) for folder in topology}
    return MISSING if ("", "") in cores else len(cores)


def _governors() -> list[str]:
    found = {_read(f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor") for cpu in usable_cpus()}
    return sorted(found - {""})


def _accelerators() -> list[str]:
    """Hardware that another build could use, as far as the operating system shows it."""
    found = [name for name, path in _ACCELERATORS.items() if os.path.exists(path)]
    if sys.platform == "darwin" and os.uname().machine == "arm64":
        found.append("apple")
    return found


def _memory_limit() -> int:
    """The tightest limit of a control group on the way up, in bytes."""
    limits = []
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        root, file = {"": ("/sys/fs/cgroup", "memory.max"), "memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")}.get(
            controllers, ("", "")
        )
        while root:
            text = _read(f"{root}{group.rstrip('/')}/{file}")
            if text.isdigit() and int(text) < 2**60:  # above: the kernel's way of saying none
                limits.append(int(text))
            if group in ("/", ""):
                break
            group = group.rpartition("/")[0]
    return min(limits, default=MISSING)
