"""The native test program under sanitizers: our own sources, no engine. Builds in ``build/asan`` and ``build/tsan``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def _tool(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert found is not None, f"{name} is needed: pip install {name}"
    return found


def _run(command: list[str | Path], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-8000:]}"


@pytest.mark.contract("E2", "Z1")
@pytest.mark.parametrize(
    ("preset", "sanitizers"), [("asan", ("address", "undefined")), ("tsan", ("thread",))], ids=["asan+ubsan", "tsan"]
)
def test_the_cases_of_the_core_pass_without_a_report_of(preset: str, sanitizers: tuple[str, ...]) -> None:
    build = ROOT / "build" / preset
    _run([_tool("cmake"), "--preset", preset, f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"])
    _run([_tool("cmake"), "--build", build, "--target", "aner_core_tests"])
    for entry in json.loads((build / "compile_commands.json").read_text()):
        missing = [kind for kind in sanitizers if f"-fsanitize={kind}" not in entry["command"]]
        assert not missing, f"{entry['file']} is compiled without {missing}"
    _run([build / "aner_core_tests"], {"UBSAN_OPTIONS": "print_stacktrace=1", "TSAN_OPTIONS": "halt_on_error=1"})
