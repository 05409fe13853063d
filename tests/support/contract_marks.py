"""A pytest plugin: writes the contract ids of every collected test, by test, to the file named by ``ANER_CONTRACT_MARKS``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    found = {item.nodeid: [str(one) for mark in item.iter_markers("contract") for one in mark.args] for item in session.items}
    Path(os.environ["ANER_CONTRACT_MARKS"]).write_text(json.dumps(found), "utf-8")
