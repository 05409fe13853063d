"""``llm.inspect``: what a file is, without loading it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from aner import FingerprintMismatchError, ModelLoadError, ModelNotFoundError, llm

Synthetic = Callable[[str], Path]


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba"])
def test_figures_are_those_of_the_loaded_model(synthetic: Synthetic, name: str) -> None:
    path = synthetic(name)
    figures = llm.inspect(path)
    with llm.load(path, context=512) as model:
        metadata = dict(model.metadata())
        common = metadata.keys() & figures.keys()
        assert {"architecture", "tensor_types", "parameters", "chat_template", "fingerprint", "heads"} <= common
        assert {key: figures[key] for key in common} == {key: metadata[key] for key in common}


@pytest.mark.contract("L6")
def test_fingerprint_is_the_sha256_of_the_content(synthetic: Synthetic) -> None:
    content = synthetic("llama").read_bytes()
    figures = llm.inspect(synthetic("llama"))
    assert (figures["fingerprint"], figures["content_bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))


@pytest.mark.contract("L5")
def test_other_content_than_expected_is_refused_and_progress_is_reported(synthetic: Synthetic) -> None:
    seen: list[tuple[str, float]] = []
    with pytest.raises(FingerprintMismatchError):
        llm.inspect(synthetic("llama"), expected_sha256="0" * 64)
    llm.inspect(synthetic("llama"), progress=lambda phase, fraction: seen.append((phase, fraction)))
    assert seen[-1] == ("digest", 1.0)


@pytest.mark.contract("L4", "L9")
def test_what_is_no_model_is_refused(synthetic: Synthetic, tmp_path: Path) -> None:
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(synthetic("llama").read_bytes()[:2000])
    for path, error in (
        ("https://example.org/m.gguf", ModelNotFoundError),
        (tmp_path / "none", ModelNotFoundError),
        (torn, ModelLoadError),
    ):
        with pytest.raises(error):
            llm.inspect(path)
