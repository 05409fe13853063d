"""Models that no test covers are tried in a child process first: it may die of them, this process never does."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from aner import ModelLoadError, llm
from aner.llm import _probe
from tests.support import gguf_files
from tests.support.call_in_child import call_in_child

Synthetic = Callable[[str], Path]
UNCOVERED = "internlm2"  # its graph is the llama's, so a small file of it is a real model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and no verdict from an earlier test in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(_probe, "_verdicts", {})
    return tmp_path / "cache" / "aner" / "probes"


def uncovered(path: Path, **values: Any) -> Path:
    def edit(writer: GGUFWriter) -> None:
        for key, value in values.items():
            gguf_files.set_value(writer, f"{UNCOVERED}.{key.replace('__', '.')}", value)

    return gguf_files.transformer(path, UNCOVERED, edit=edit)  # type: ignore[arg-type]


def fatal(path: Path) -> Path:
    """A model that the header's checks let pass and whose graph ends the engine's process in an assertion."""
    return uncovered(path, rope__dimension_count=16)


@pytest.mark.contract("L9", "L5")
def test_an_uncovered_model_is_tried_once_then_loads_and_generates_like_any_other(tmp_path: Path, cache: Path) -> None:
    path = uncovered(tmp_path / "m.gguf")
    phases: list[tuple[str, float]] = []
    with llm.load(path, context=64, progress=lambda *report: phases.append(report)) as model:
        assert model.load_summary()["probe_duration"] > 10_000_000  # an interpreter was started
        assert model.load_summary()["total_duration"] > model.load_summary()["probe_duration"]
        assert len(model.generate([1, 2, 3], max_tokens=4, ignore_eos=True).token_ids()) == 4
        name = model.fingerprint()
    assert ("probe", 0.0) in phases
    assert ("probe", 1.0) in phases
    [verdict] = cache.iterdir()
    assert verdict.name.startswith(name)
    assert json.loads(verdict.read_text()) == {"verdict": ""}


@pytest.mark.contract("L9")
def test_a_covered_model_starts_no_process(synthetic: Synthetic, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")  # nothing could be started
    for name in ("llama", "gemma3", "mamba", "lfm2"):
        with llm.load(synthetic(name), context=64) as model:
            assert model.load_summary()["probe_duration"] == -1
    assert not cache.exists()


@pytest.mark.contract("E2", "L9")
def test_a_model_that_ends_the_engines_process_is_refused_with_its_last_words(tmp_path: Path) -> None:
    path = fatal(tmp_path / "m.gguf")
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=rf"'{UNCOVERED}'.*signal 6.*GGML_ASSERT\(n_embd_head == n_rot\)"):
            llm.load(path, context=64)
    assert not list(Path.cwd().glob("core*"))
    uncovered(path)  # another content at the same path has a verdict of its own
    llm.load(path, context=64).close()


@pytest.mark.contract("L9", "E3")
def test_what_the_engine_says_of_an_uncovered_model_reaches_the_error(tmp_path: Path) -> None:
    path = uncovered(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"blk.1.ffn_norm.weight", b"blk.1.ffn_abcd.weight"))
    with pytest.raises(ModelLoadError, match=r"trial load .* 'blk.1.ffn_norm.weight'"):
        llm.load(path)


@pytest.mark.contract("L9")
def test_a_verdict_is_kept_for_this_process_and_for_later_ones(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = uncovered(tmp_path / "good.gguf"), fatal(tmp_path / "bad.gguf")
    llm.load(good, context=64).close()
    with pytest.raises(ModelLoadError):
        llm.load(bad)
    assert len(list(cache.iterdir())) == 2
    monkeypatch.setattr(sys, "executable", "")  # from here on, only kept verdicts can answer
    for keeps in ("this process", "the cache folder"):
        llm.load(good, context=64).close()
        with pytest.raises(ModelLoadError, match="signal 6"):
            llm.load(bad)
        if keeps == "this process":
            _probe._verdicts.clear()
    for verdict in cache.iterdir():
        verdict.unlink()
    _probe._verdicts.clear()
    with pytest.raises(ModelLoadError, match="does not know its own executable"):
        llm.load(good, context=64)


@pytest.mark.contract("L9")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"verdict": 0}', '{"other": ""}', "\udcff"])
def test_a_damaged_verdict_counts_as_none(tmp_path: Path, cache: Path, content: str) -> None:
    path = uncovered(tmp_path / "m.gguf")
    llm.load(path, context=64).close()
    [verdict] = cache.iterdir()
    verdict.write_bytes(content.encode("utf-8", "surrogateescape"))
    _probe._verdicts.clear()
    llm.load(path, context=64).close()
    assert json.loads(verdict.read_text()) == {"verdict": ""}


@pytest.mark.contract("L9")
def test_a_child_that_could_not_run_is_an_error_and_no_verdict(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = uncovered(tmp_path / "m.gguf")
    with monkeypatch.context() as context:
        context.setattr(sys, "executable", str(tmp_path / "no-python"))
        with pytest.raises(ModelLoadError, match="could not be started"):
            llm.load(path)
    assert not cache.exists()
    llm.load(path, context=64).close()


@pytest.mark.contract("L9")
def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    llm.load(uncovered(tmp_path / "m.gguf"), context=64).close()


@pytest.mark.contract("L9")
def test_the_child_is_not_misled_by_what_lies_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json.py", "aner.py", "aner_native.py", "subprocess.py"):
        (tmp_path / name).write_text("raise SystemExit('not the module you wanted')")
    path = uncovered(tmp_path / "m.gguf")
    monkeypatch.chdir(tmp_path)
    llm.load(path.name, context=64).close()


@pytest.mark.contract("L9")
@pytest.mark.parametrize(
    "values",
    [
        {"llama.expert_count": 2, "llama.expert_used_count": 1},
        {"llama.nextn_predict_layers": 1},
        {"tokenizer.ggml.model": "plamo2"},
    ],
)
def test_what_makes_a_covered_architecture_uncovered_is_seen_in_the_header(tmp_path: Path, values: dict[str, Any]) -> None:
    def edit(writer: GGUFWriter) -> None:
        for key, value in values.items():
            gguf_files.set_value(writer, key, value)

    assert llm.inspect(gguf_files.llama(tmp_path / "plain.gguf"))["covered"] is True
    assert llm.inspect(gguf_files.llama(tmp_path / "m.gguf", edit=edit))["covered"] is False


@pytest.mark.contract("E2", "E4")
def test_a_refused_trial_writes_nothing_to_this_process_and_leaves_no_process_or_descriptor(tmp_path: Path) -> None:
    left = call_in_child(refused_trial, fatal(tmp_path / "m.gguf"), environment={"XDG_CACHE_HOME": str(tmp_path)}).checked()
    assert left == {"descriptors": 0, "children": 0}


def refused_trial(path: str) -> dict[str, int]:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = len(os.listdir("/proc/self/fd"))
    try:
        llm.load(path)
    except ModelLoadError:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return {"descriptors": len(os.listdir("/proc/self/fd")) - before, "children": len(children)}
    raise AssertionError("it loaded")
