#!/usr/bin/env python3
"""Brings the pinned llama.cpp tree: download by hash, unpack the needed subset, verify its digest, copy and patch.

Subcommands, each idempotent:
    source DEST         the subset that aner builds from, pristine, checked against tree.sha256
    full DEST           the whole tree (tools, chat templates), for the benchmarks' peers and some tests
    patched SRC DEST    a copy of SRC with every patch of patches/ applied, in order; unchanged files keep their times
    digest TREE         prints the tree digest of a directory
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
INNER = "vendor/llama.cpp/"  # where the engine lies inside the sdist
KEPT_BACKENDS = ("ggml-cpu", "ggml-cuda", "ggml-metal", "ggml-vulkan")
KEPT_FOLDERS = ("cmake/", "include/", "src/", "ggml/cmake/", "ggml/include/", "licenses/")
KEPT_FILES = ("CMakeLists.txt", "LICENSE", "AUTHORS", "ggml/CMakeLists.txt")
DROPPED = ("ggml/src/ggml-cpu/spacemit/", "ggml/src/ggml-cpu/kleidiai/")


def is_needed(path: str) -> bool:
    """Whether ``path`` (relative, posix) belongs to the subset that aner builds from and ships in its sdist."""
    if path.startswith(DROPPED):
        return False
    if path in KEPT_FILES or path.startswith(KEPT_FOLDERS):
        return True
    if not path.startswith("ggml/src/"):
        return False
    rest = path[len("ggml/src/") :]
    return "/" not in rest or rest.split("/", 1)[0] in KEPT_BACKENDS


def files_of(tree: Path) -> Iterator[Path]:
    return iter(sorted(p for p in tree.rglob("*") if p.is_file()))


def digest_of(tree: Path) -> str:
    """SHA-256 over the sorted list of ``sha256  path`` lines; times and modes do not count."""
    outer = hashlib.sha256()
    for path in files_of(tree):
        inner = hashlib.sha256(path.read_bytes()).hexdigest()
        outer.update(f"{inner}  {path.relative_to(tree).as_posix()}\n".encode())
    return outer.hexdigest()


def download(into: Path) -> Path:
    """Fetch the pinned sdist with pip, which refuses any other content than the locked hash."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python"]
    command += ["--require-hashes", "--dest", str(into), "-r", str(HERE / "requirements.txt")]
    try:
        import scikit_build_core  # noqa: F401  (present in our own build environment: no second one is needed)
    except ImportError:
        pass
    else:
        command.append("--no-build-isolation")
    done = subprocess.run(command, capture_output=True, text=True)
    found = sorted(into.glob("llama_cpp_python-*.tar.gz"))
    if done.returncode != 0 or not found:
        sys.exit(
            "The pinned llama.cpp could not be downloaded with pip.\n"
            f"  asked for: {(HERE / 'requirements.txt').read_text().strip()}\n"
            f"  pip said:  {done.stderr.strip()[-2000:]}\n"
            "  Build from aner's own sdist (it carries the tree), or name a tree you have:\n"
            "  pip install . -C cmake.define.ANER_LLAMA_CPP_DIR=/path/to/llama.cpp"
        )
    return found[0]


def extract(sdist: Path, dest: Path, wanted: Callable[[str], bool]) -> None:
    with tarfile.open(sdist) as archive:
        for member in archive:
            _, _, path = member.name.partition("/" + INNER)
            if not member.isfile() or not path or ".." in path or not wanted(path):
                continue
            target = dest / path
            target.parent.mkdir(parents=True, exist_ok=True)
            data = archive.extractfile(member)
            assert data is not None  # isfile() above
            target.write_bytes(data.read())
    if wanted is is_needed:  # the root CMakeLists adds this folder whatever is built
        (dest / "vendor").mkdir(exist_ok=True)
        (dest / "vendor" / "CMakeLists.txt").write_text("# Nothing of vendor/ is needed to build the library.\n")


def bring(dest: Path, wanted: Callable[[str], bool], check: bool) -> None:
    expected = (HERE / "tree.sha256").read_text().split()[0]
    if dest.is_dir():
        if not check or digest_of(dest) == expected:
            return
        sys.exit(
            f"{dest} is not the pinned llama.cpp tree: its digest differs from tree.sha256.\n"
            "  Remove that folder to have it unpacked again, or build from it as your own tree with\n"
            f"  -C cmake.define.ANER_LLAMA_CPP_DIR={dest}"
        )
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent) as work:
        tree = Path(work) / "tree"
        tree.mkdir()
        extract(download(Path(work)), tree, wanted)
        if check and digest_of(tree) != expected:
            sys.exit(f"The unpacked llama.cpp tree has digest {digest_of(tree)}, tree.sha256 says {expected}.")
        os.replace(tree, dest)


def apply_patch(patch: str, tree: Path, name: str) -> None:
    """Apply one unified diff exactly: every context line must be where the diff says, no fuzz, no offset."""
    for part in re.split(r"(?m)^--- ", patch)[1:]:
        header, *lines = part.splitlines(keepends=True)
        path = lines[0].removeprefix("+++ ").split()[0].removeprefix("b/")
        old = (tree / path).read_text().splitlines(keepends=True)
        new: list[str] = []
        at = 0
        for line in lines[1:]:
            if line.startswith("@@"):
                start = int(line.split()[1].split(",")[0].lstrip("-")) - 1
                new += old[at:start]
                at = start
            elif line[0] in " -":
                if at >= len(old) or old[at] != line[1:]:
                    sys.exit(f"{name} does not apply: {path}:{at + 1} is not {line[1:].rstrip()!r} ({header.strip()})")
                if line[0] == " ":
                    new.append(line[1:])
                at += 1
            elif line[0] == "+":
                new.append(line[1:])
        (tree / path).write_text("".join(new + old[at:]))


def patched(source: Path, dest: Path) -> None:
    patches = sorted((HERE / "patches").glob("*.patch"))
    stamp = digest_of(source) + "".join(hashlib.sha256(p.read_bytes()).hexdigest() for p in patches)
    mark = dest.parent / (dest.name + ".stamp")
    if mark.is_file() and mark.read_text() == stamp and dest.is_dir():
        return
    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=dest.parent) as work:
        tree = Path(work) / "tree"
        shutil.copytree(source, tree)
        for patch in patches:
            apply_patch(patch.read_text(), tree, patch.name)
        if dest.is_dir():  # keep the times of what did not change, so that only that is rebuilt
            for path in files_of(tree):
                before = dest / path.relative_to(tree)
                if before.is_file() and before.read_bytes() == path.read_bytes():
                    os.utime(path, ns=(before.stat().st_atime_ns, before.stat().st_mtime_ns))
            shutil.rmtree(dest)
        os.replace(tree, dest)
    mark.write_text(stamp)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, arguments in (("source", ["dest"]), ("full", ["dest"]), ("patched", ["source", "dest"]), ("digest", ["tree"])):
        sub = commands.add_parser(name)
        for argument in arguments:
            sub.add_argument(argument, type=Path)
    chosen = parser.parse_args()
    if chosen.command == "source":
        bring(chosen.dest, is_needed, check=True)
    elif chosen.command == "full":
        bring(chosen.dest, lambda path: True, check=False)
    elif chosen.command == "patched":
        patched(chosen.source, chosen.dest)
    else:
        print(digest_of(chosen.tree))


if __name__ == "__main__":
    main()
