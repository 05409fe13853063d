"""``aner doctor``: what it sees is there, and what it advises follows from it."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aner_native
import pytest

import aner
from aner.cli._advice import advice
from aner.cli._machine import FEATURES

Synthetic = Callable[[str], Path]

_ON_ONE_CPU = (
    "import os, runpy; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    "runpy.run_module('aner', run_name='__main__', alter_sys=True)"
)

#: A machine with nothing to complain about.
FINE: dict[str, Any] = {
    "build": {
        "native": True, "compiler": "GNU 13", "build_type": "Release", "flags": "-O3", "engine_origin": "pinned",
        "backends": ["cpu"],
    },
    "accelerators_seen": [],
    "cpu": {"features_unused": []},
    "cpus": {"machine": 8, "affinity": 8, "quota": -1, "cores": 8, "usable": 8, "governors": ["performance"]},
    "memory": {"available_bytes": 8 << 30, "limit_bytes": -1},
    "now": {"others_share": 0.01, "stolen_share": 0.0},
    "environment": {},
}  # fmt: skip


def doctor(*arguments: str, program: tuple[str, ...] = ("-m", "aner")) -> str:
    done = subprocess.run([sys.executable, *program, "doctor", *arguments], capture_output=True, timeout=120, check=True)
    assert done.stderr == b""
    return done.stdout.decode()


def test_it_reports_the_build_and_the_machine() -> None:
    facts = json.loads(doctor("--json"))
    assert facts["build"] == aner.build_info()
    assert facts["cpus"]["machine"] == os.cpu_count()
    assert facts["cpus"]["affinity"] == len(os.sched_getaffinity(0))
    assert facts["cpus"]["usable"] == aner_native.usable_cpus()
    assert facts["devices"][0]["name"] == "cpu"
    flags = Path("/proc/cpuinfo").read_text()
    assert all(f" {FEATURES[name]} " in flags.replace("\n", " ") for name in facts["cpu"]["features_used"])
    assert facts["memory"]["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    text = doctor()
    assert facts["build"]["compiler"] in text
    assert facts["cpu"]["model"] in text
    assert "llama.cpp" in text


def test_it_sees_that_only_some_cpus_may_be_used() -> None:
    facts = json.loads(doctor("--json", program=("-c", _ON_ONE_CPU)))
    assert (facts["cpus"]["affinity"], facts["cpus"]["usable"]) == (1, 1)
    assert any("may run on 1 of" in one["text"] for one in facts["advice"]) is (os.cpu_count() != 1)


def test_it_sees_a_busy_neighbour() -> None:
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        facts = json.loads(doctor("--json"))
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert facts["now"]["others_share"] > 0.05
    assert any(one["topic"] == "busy" for one in facts["advice"])


def test_it_tries_a_model(synthetic: Synthetic) -> None:
    tried = json.loads(doctor(str(synthetic("llama")), "--context", "512", "--json"))["model"]
    assert (tried["device"], tried["kv_cache_type"]) == ("cpu", "f16")
    assert tried["prefill_tokens_per_second"] > 0
    assert tried["decode_tokens_per_second"] > 0
    assert tried["needed_bytes"] > synthetic("llama").stat().st_size / 2
    assert "tokens/s" in doctor(str(synthetic("llama")), "--context", "16")


def test_a_machine_without_faults_gets_no_advice() -> None:
    assert advice(FINE) == []


@pytest.mark.parametrize(
    ("change", "topic", "said"),
    [
        (
            {"build": {"native": False}, "cpu": {"features_unused": ["AVX512"]}},
            "build",
            "portable build, and the CPU has AVX512",
        ),
        ({"cpu": {"features_unused": ["AMX_INT8"]}}, "build", "GNU 13 did not use it"),
        ({"build": {"build_type": "Debug"}}, "build", "Debug"),
        ({"build": {"flags": "-O1 -fsanitize=address"}}, "build", "sanitizers"),
        ({"build": {"engine_origin": "custom"}}, "engine", "patches"),
        ({"accelerators_seen": ["nvidia"]}, "accelerator", "ANER_CUDA=ON"),
        ({"now": {"others_share": 0.4}}, "busy", "40%"),
        ({"now": {"stolen_share": 0.1}}, "busy", "hypervisor"),
        ({"cpus": {"affinity": 2, "cores": 2}}, "cpus", "2 of 8"),
        ({"cpus": {"quota": 2.5, "usable": 3}}, "cpus", "2 may be faster"),
        ({"cpus": {"cores": 4}}, "cpus", "aner takes 4 threads"),
        ({"cpus": {"governors": ["powersave"]}}, "governor", "powersave"),
        ({"model": {"needed_bytes": 9 << 30}}, "memory", "9.0 GiB"),
        ({"model": {"needed_bytes": 5 << 30}, "memory": {"limit_bytes": 4 << 30}}, "memory", "there are 4.0"),
        ({"environment": {"GGML_CPU_DISABLE_FUSION": "1"}}, "environment", "GGML_CPU_DISABLE_FUSION"),
    ],
)
def test_each_fault_gets_its_own_advice(change: dict[str, Any], topic: str, said: str) -> None:
    facts = copy.deepcopy(FINE)
    for name, values in change.items():
        facts[name] = {**facts.get(name, {}), **values} if isinstance(values, dict) else values
    (found,) = advice(facts)
    assert found["topic"] == topic
    assert said in found["text"]


def test_an_accelerator_that_the_build_can_use_is_no_fault() -> None:
    facts = copy.deepcopy(FINE) | {"accelerators_seen": ["nvidia"]}
    facts["build"]["backends"] = ["cpu", "cuda"]
    assert advice(facts) == []
