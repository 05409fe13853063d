"""Models for the tests: synthetic ones made once per run, and the demo model for the ``real_model`` group."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aner import llm
from tests.support import gguf_files

# A shell that starts the tests in the background has Ctrl-C ignored, in them and in every child: some of them are about it.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
DEMO_MODEL = Path(os.environ.get("ANER_DEMO_MODEL", ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))

#: How each named synthetic model is made.
SYNTHETIC: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: gguf_files.llama(path, chat_template=gguf_files.CHATML),
    "llama-plain": lambda path: gguf_files.llama(path),
    "llama-f16": lambda path: gguf_files.llama(path, chat_template=gguf_files.CHATML, quantization="f16"),
    "llama-q8": lambda path: gguf_files.llama(path, chat_template=gguf_files.CHATML, quantization="q8_0"),
    "llama-q4": lambda path: gguf_files.llama(path, chat_template=gguf_files.CHATML, quantization="q4_0"),
    "gemma3": lambda path: gguf_files.gemma3(path, chat_template=gguf_files.CHATML),
    "mamba": gguf_files.mamba,
    "lfm2": gguf_files.lfm2,
}


@pytest.fixture(scope="session")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``synthetic("llama")``: the path of a synthetic model, written on first use."""
    folder = tmp_path_factory.mktemp("models")

    def path_of(name: str) -> Path:
        path = folder / f"{name}.gguf"
        return path if path.exists() else SYNTHETIC[name](path)

    return path_of


@pytest.fixture(scope="session")
def demo_model_path() -> Path:
    assert DEMO_MODEL.is_file(), f"{DEMO_MODEL} is missing: run `make model`, or set ANER_DEMO_MODEL"
    return DEMO_MODEL


@pytest.fixture(scope="session")
def demo_model(demo_model_path: Path) -> Iterator[llm.Model]:
    """SmolLM2-135M-Instruct, loaded once."""
    with llm.load(demo_model_path, context=2048) as model:
        yield model


@pytest.fixture
def model(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    """A fresh lease of the tiny llama with a chat template, exact text vocabulary, in the reproducible configuration."""
    with llm.load(synthetic("llama"), context=512, reproducible=True) as loaded:
        yield loaded
