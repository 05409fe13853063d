"""Runs every case of the native test program as a test of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(os.environ.get("ANER_NATIVE_TESTS", Path(__file__).parents[2] / "build" / "native" / "aner_core_tests"))


def _cases() -> list[object]:
    if not PROGRAM.is_file():
        return []
    lines = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
    found: list[object] = []
    for line in lines:
        name, _, contract = line.partition("\t")
        ids = contract.split()
        found.append(pytest.param(name, id=name, marks=[pytest.mark.contract(*ids)] if ids else []))
    return found


def test_the_native_test_program_was_built() -> None:
    assert PROGRAM.is_file(), f"{PROGRAM} is missing: run `make native-tests`"


@pytest.mark.parametrize("name", _cases())
def test_native(name: str) -> None:
    done = subprocess.run([PROGRAM, name], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
