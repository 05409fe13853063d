"""C++ programs built beside the extension module: the C++ interface, and the engine's patched kernels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aner_native
import pytest

from aner import llm

PROMPTS = ["Hello", "one two three", "a", "The quick brown fox"]


def built(target: str) -> Path:
    """A program of the build that the extension module comes from."""
    build = Path(aner_native.__file__).parent.parent
    if not (build / "CMakeCache.txt").is_file():
        build = next(Path(__file__).parents[2].glob("build/cp3*"))
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    assert cmake is not None, "cmake is needed: pip install cmake"
    done = subprocess.run([cmake, "--build", build, "--target", target], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return build / "aner_native" / target


@pytest.fixture(scope="module")
def program() -> Path:
    return built("embed_batching")


def test_the_tiled_products_of_q4_1_weights_are_those_of_the_reference_kernels() -> None:
    done = subprocess.run([built("q4_1_products")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "810 products" in done.stdout


@pytest.mark.contract("B9", "B2")
def test_a_cpp_program_submits_from_threads_and_gets_the_tokens_of_each_request_alone(
    program: Path, synthetic: Callable[[str], Path]
) -> None:
    path = synthetic("llama")
    done = subprocess.run([program, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with llm.load(path, context=256, reproducible=True) as model:
        alone = [
            model.generate(model.tokenize(prompt, add_bos=True), max_tokens=12, ignore_eos=True).token_ids()
            for prompt in PROMPTS
        ]
    assert [[int(token) for token in line.split()] for line in done.stdout.splitlines()] == alone


@pytest.mark.contract("E1", "L9")
def test_a_cpp_program_gets_errors_as_values(program: Path, tmp_path: Path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"GGUF but not really")
    for path in ("", str(tmp_path / "absent.gguf"), str(tmp_path / "no.gguf")):
        done = subprocess.run([program, path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert done.stderr.startswith(("model_not_found: ", "model_load: ")), done.stderr
