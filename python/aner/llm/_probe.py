"""Tries a model that no test of ours covers in a child process, which may die of it, before the engine gets it here.

The child reads the vocabulary, then makes a small context without allocating weights: that builds the graphs, where the
engine's assertions are. The verdict is kept by content and engine pin, in this process and in the user's cache folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import aner_native

from aner.errors import ModelLoadError

_CHILD_TIMEOUT = 120.0  # seconds; a probe takes tens of milliseconds
_verdicts: dict[str, str] = {}  # key -> "" (fine) or why not


def try_in_child(path: str, fingerprint: str, architecture: str) -> None:
    """Raise ModelLoadError unless a child process survives the model at ``path``; a child that never ran is no verdict."""
    info = aner_native.build_info()
    key = f"{fingerprint}-{info['engine_version']}-{info['engine_commit']}-{info['version']}"
    verdict = _verdicts.get(key)
    if verdict is None:
        verdict = _read(key)
    if verdict is None:
        verdict = _run_child(path)
        _write(key, verdict)
        _verdicts[key] = verdict
    if verdict:
        raise ModelLoadError(
            f"{path}: aner's tests cover no model like this one (architecture '{architecture}'), and a trial load in a child process "
            f"failed: {verdict}"
        )


def _run_child(path: str) -> str:
    if not sys.executable:
        raise ModelLoadError(
            f"{path}: this interpreter does not know its own executable, so no child process can try the model"
        )
    code = "import sys; sys.path = list(filter(None, sys.path)); import aner.llm._probe as probe; probe.child_main(sys.argv[1])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, path],
            capture_output=True, stdin=subprocess.DEVNULL, timeout=_CHILD_TIMEOUT, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ModelLoadError(f"{path}: the trial load in a child process did not finish in {_CHILD_TIMEOUT:.0f} s") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: the child process that tries the model could not be started: {error}") from None
    if done.returncode == 0:
        return ""
    if done.returncode == -9:
        raise ModelLoadError(f"{path}: the child process that tries the model was killed, perhaps for want of memory")
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    reason = said[-1] if said else "it said nothing"
    return reason if done.returncode > 0 else f"the engine ended the process with signal {-done.returncode}: {reason}"


def child_main(path: str) -> None:
    """What the child runs; exits with 0 when the engine survives the model, with 1 and a line on stderr when it refuses it."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an assertion of the engine is an answer here, and leaves no core file
    task = aner_native.LoadTask(
        os.fsencode(path), context=512, device=b"cpu", kv_cache_type=b"f16", flash_attention=b"off",
        reproducible=False, mapped=True, expected_sha256=b"",
    )  # fmt: skip
    try:
        task.admit(None)
        task.probe()
    except Exception as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aner" / "probes"


def _read(key: str) -> str | None:
    with contextlib.suppress(OSError, ValueError, RuntimeError, KeyError, TypeError):
        verdict = json.loads((_cache_folder() / f"{key}.json").read_text("utf-8"))["verdict"]
        return verdict if isinstance(verdict, str) else None
    return None


def _write(key: str, verdict: str) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # a cache that cannot be written is only slower
        folder = _cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
            json.dump({"verdict": verdict}, file)
        os.replace(file.name, folder / f"{key}.json")
