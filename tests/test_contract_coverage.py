"""Every promise of docs/contract.md has a test, or stands in contract_pending.txt, and never both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def promises() -> list[str]:
    return re.findall(r"^- ([A-Z]\d+) ", (ROOT / "docs" / "contract.md").read_text("utf-8"), re.MULTILINE)


def pending() -> list[str]:
    lines = (ROOT / "tests" / "contract_pending.txt").read_text("utf-8").splitlines()
    return [word for line in lines for word in line.partition("#")[0].split()]


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The contract ids of all tests of the repository, whichever of them are run now; native cases are tests too."""
    found = tmp_path_factory.mktemp("marks") / "marks.json"
    plugins = ["-p", "no:cacheprovider", "-p", "tests.support.contract_marks"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", *plugins]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    environment = {**os.environ, "ANER_CONTRACT_MARKS": str(found), "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(found.read_text("utf-8"))  # type: ignore[no-any-return]


def test_the_contract_is_read_whole() -> None:
    ids = promises()
    assert len(ids) == len(set(ids))
    families = {one: [int(i[1:]) for i in ids if i[0] == one] for one in sorted({i[0] for i in ids})}
    assert "".join(families) == "BCEHLMOPSTVZ"
    assert all(sorted(numbers) == list(range(1, len(numbers) + 1)) for numbers in families.values())


def test_marks_and_the_pending_list_name_promises_of_the_contract(marks: dict[str, list[str]]) -> None:
    known = set(promises())
    assert {test: ids for test, ids in marks.items() if not set(ids) <= known} == {}
    assert set(pending()) <= known
    assert len(pending()) == len(set(pending()))


def test_every_promise_has_a_test_or_is_pending_and_none_is_both(marks: dict[str, list[str]]) -> None:
    tested = {one for ids in marks.values() for one in ids}
    assert {"without a test": sorted(set(promises()) - tested - set(pending()))} == {"without a test": []}
    assert {"pending, and yet with a test": sorted(set(pending()) & tested)} == {"pending, and yet with a test": []}
