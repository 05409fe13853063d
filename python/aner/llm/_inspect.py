"""``llm.inspect``: what a file is, without loading it."""

from __future__ import annotations

import os

import aner_native

from aner._logging import flush_engine_log
from aner.llm._figures import Figures
from aner.llm._load import Progress, check_progress, sha256_digits
from aner.llm._paths import local_path

__all__ = ["inspect"]


def inspect(path: str | os.PathLike[str], *, expected_sha256: str | None = None, progress: Progress | None = None) -> Figures:
    """Check the headers of a local GGUF file and digest its content, exactly as the first half of ``load`` does.

    Needs a megabyte or two, not the weights. The figures are those of ``Model.metadata()`` that stand in the file, and:
    ``content_bytes`` (all splits), ``fingerprint`` (SHA-256), and ``covered``: False when ``load`` would first try the
    architecture in a child process.

    progress: called with ``(phase, fraction)``; phases: header, digest.

    Raises ModelNotFoundError, ModelLoadError, FingerprintMismatchError, OutOfMemoryError.
    """
    native_path = local_path(path)
    check_progress(progress)
    try:
        # The settings matter to a load only; the admission reads the file.
        task = aner_native.LoadTask(
            native_path, context=512, device=b"cpu", kv_cache_type=b"f16", flash_attention=b"auto",
            reproducible=False, mapped=True, expected_sha256=sha256_digits(expected_sha256),
        )  # fmt: skip
        facts = task.admit(progress)
    finally:
        flush_engine_log()
    return Figures({"path": os.fspath(path), **facts})
