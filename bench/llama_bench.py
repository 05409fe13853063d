"""Runs llama-bench once and reads its own numbers."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aner.measure import Sample
from peers import Peer


@dataclass(frozen=True)
class Settings:
    """Options of llama-bench by their long names; None leaves the program's own default."""

    threads: int | None = None
    prefill_threads: int | None = None
    batch_size: int | None = None
    ubatch_size: int | None = None
    flash_attn: str | None = None  # in decode
    prefill_flash_attn: str | None = None
    cache_type: str | None = None

    def arguments(self, threads: int | None, flash_attn: str | None) -> list[str]:
        given = {
            "--threads": threads,
            "--batch-size": self.batch_size,
            "--ubatch-size": self.ubatch_size,
            "--flash-attn": flash_attn,
            "--cache-type-k": self.cache_type,
            "--cache-type-v": self.cache_type,
        }
        return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def measure_once(peer: Peer, model: Path, settings: Settings, n_prompt: int, n_decode: int, repeats: int = 1) -> Sample:
    """Prefill of ``n_prompt`` tokens into an empty context, and ``n_decode`` decode steps behind ``n_prompt`` tokens.

    Two calls, since the first starts at depth 0 and the second at depth ``n_prompt``, and each may use other threads and attention. The
    program warms up by itself (a whole prefill, one decode step) and its samples hold the engine calls alone: no sampling, no
    text.
    """
    base = [str(peer.path), "--model", str(model), "--output", "json", "--repetitions", str(repeats)]
    options = settings.arguments(settings.prefill_threads, settings.prefill_flash_attn)
    prefill = _run([*base, "--n-prompt", str(n_prompt), "--n-gen", "0", *options])
    shape = ["--n-prompt", "0", "--n-gen", str(n_decode), "--n-depth", str(n_prompt)]
    decode = _run([*base, *shape, *settings.arguments(settings.threads, settings.flash_attn)])
    return Sample(
        {"prefill": _tokens_per_second(prefill, n_prompt), "decode": _tokens_per_second(decode, n_decode)},
        {"prefill": prefill, "decode": decode},
    )


def decode_once(peer: Peer, model: Path, settings: Settings, n_decode: int) -> Sample:
    """``n_decode`` decode steps from an empty context."""
    command = [str(peer.path), "--model", str(model), "--output", "json", "--repetitions", "1"]
    result = _run(
        [*command, "--n-prompt", "0", "--n-gen", str(n_decode), *settings.arguments(settings.threads, settings.flash_attn)]
    )
    return Sample({"decode": _tokens_per_second(result, n_decode)}, {"decode": result})


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    (result,) = json.loads(done.stdout)
    result["model_filename"] = Path(result["model_filename"]).name  # a record names no folders
    return dict(result)


def _tokens_per_second(result: dict[str, Any], tokens: int) -> float:
    nanoseconds: list[int] = result["samples_ns"]
    return 1e9 * tokens * len(nanoseconds) / sum(nanoseconds)
