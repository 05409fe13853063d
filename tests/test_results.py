"""The results page and the README's table say what the records say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_results_page_and_the_readme_are_what_the_records_say() -> None:
    done = subprocess.run([sys.executable, ROOT / "bench" / "report.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
