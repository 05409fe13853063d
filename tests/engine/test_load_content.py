"""What is loaded is what was digested: both passes, the expected content, progress, and loads that are interrupted."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aner import ConfigurationError, FingerprintMismatchError, ModelLoadError, llm
from tests.support import gguf_files
from tests.support.call_in_child import call_in_child

Synthetic = Callable[[str], Path]
PHASES = ["header", "digest", "probe", "engine", "verify", "context"]


def sha256_of(*paths: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def flip_last_byte(path: Path) -> None:
    """Change a weight: the last byte of the file lies in its last tensor."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte ^ 0x40]))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model file that the test may change."""
    return gguf_files.llama(tmp_path / "own.gguf")


@pytest.fixture
def splits(tmp_path: Path) -> list[Path]:
    gguf_files.llama(tmp_path / "m.gguf", tensors_per_split=8)
    return [tmp_path / f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)]


# -- both passes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L5")
@pytest.mark.parametrize("options", [{}, {"mapped": False}, {"reproducible": True}, {"expected_sha256": None}])
def test_both_passes_run_and_are_reported_apart_from_the_engines_own_load(
    synthetic: Synthetic, options: dict[str, bool]
) -> None:
    before = time.monotonic_ns()
    with llm.load(synthetic("llama"), context=64, **options) as model:  # type: ignore[arg-type]
        wall = time.monotonic_ns() - before
        summary = model.load_summary()
    parts = [summary[f"{part}_duration"] for part in ("digest_before", "engine_load", "digest_after")]
    assert summary["content_bytes"] == synthetic("llama").stat().st_size
    assert summary["digest_before_bytes"] == summary["digest_after_bytes"] == summary["content_bytes"]
    assert min(parts) > 0
    assert sum(parts) <= summary["total_duration"] <= wall
    assert summary["probe_duration"] == -1  # not needed, so not measured


def at_the_end_of(phase: str, act: Callable[[], object]) -> Callable[[str, float], None]:
    """A progress callback that acts once, when the phase has ended and the next one has not begun."""
    pending = [act]

    def progress(now: str, fraction: float) -> None:
        if now == phase and fraction == 1.0 and pending:
            pending.pop()()

    return progress


@pytest.mark.contract("L5")
@pytest.mark.parametrize("mapped", [True, False])
def test_a_byte_that_changes_between_the_passes_is_a_mismatch_and_nothing_is_kept(own: Path, mapped: bool) -> None:
    first = sha256_of(own)
    change = at_the_end_of("digest", lambda: flip_last_byte(own))
    with pytest.raises(FingerprintMismatchError, match="changed while it was loaded") as refused:
        llm.load(own, context=64, mapped=mapped, progress=change)
    assert first in str(refused.value)
    assert sha256_of(own) in str(refused.value)
    assert sha256_of(own) != first
    with llm.load(own, context=64) as model:  # at rest again
        assert model.fingerprint() == sha256_of(own)


@pytest.mark.contract("L5")
def test_a_file_replaced_between_the_passes_is_a_mismatch(own: Path, tmp_path: Path) -> None:
    other = gguf_files.llama(tmp_path / "other.gguf", seed=2)
    with pytest.raises(FingerprintMismatchError, match=sha256_of(other)):
        llm.load(own, context=64, progress=at_the_end_of("digest", lambda: os.replace(other, own)))


@pytest.mark.contract("L5", "L9")
@pytest.mark.parametrize("n_left", [0, 1, 100, -1])
def test_a_file_cut_between_the_passes_is_refused(own: Path, n_left: int) -> None:
    size = own.stat().st_size
    cut = at_the_end_of("digest", lambda: os.truncate(own, n_left % size))
    with pytest.raises(ModelLoadError, match=re.escape(str(own))):
        llm.load(own, context=64, mapped=False, progress=cut)


# -- expected content ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L5")
@pytest.mark.parametrize("spell", [str, str.upper])
def test_the_expected_digest_is_accepted_in_either_case(synthetic: Synthetic, spell: Callable[[str], str]) -> None:
    digest = sha256_of(synthetic("llama"))
    with llm.load(synthetic("llama"), context=64, expected_sha256=spell(digest)) as model:
        assert model.fingerprint() == digest


@pytest.mark.contract("L5", "E3")
def test_other_content_than_expected_is_refused_with_both_digests_before_the_engine_sees_it(synthetic: Synthetic) -> None:
    seen: list[str] = []
    digest = sha256_of(synthetic("llama"))
    wanted = ("0" if digest[0] != "0" else "1") + digest[1:]
    with pytest.raises(FingerprintMismatchError, match=f"{digest}.*{wanted}"):
        llm.load(synthetic("llama"), expected_sha256=wanted, progress=lambda phase, _: seen.append(phase))
    assert set(seen) <= {"header", "digest"}


@pytest.mark.contract("L5")
@pytest.mark.parametrize("malformed", ["", "0", "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63, "\u0660" * 64, "0" * 63 + "\0"])
def test_a_malformed_expected_digest_is_a_configuration_error_before_the_file_is_read(malformed: str) -> None:
    with pytest.raises(ConfigurationError, match="expected_sha256 must be 64 hexadecimal digits"):
        llm.load("no such file", expected_sha256=malformed)


# -- split models --------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L5", "L6")
def test_a_split_model_is_digested_whole_and_equals_the_single_file_in_its_tokens(
    splits: list[Path], synthetic: Synthetic
) -> None:
    with llm.load(splits[0], context=64) as split, llm.load(synthetic("llama-plain"), context=64) as single:
        assert split.fingerprint() == sha256_of(*splits)
        assert split.load_summary()["content_bytes"] == sum(path.stat().st_size for path in splits)
        outputs = [one.generate([1, 5, 6], max_tokens=8, ignore_eos=True).token_ids() for one in (split, single)]
        assert outputs[0] == outputs[1]


@pytest.mark.contract("L5")
@pytest.mark.parametrize("i", [0, 1, 2])
def test_a_changed_byte_in_any_split_is_noticed_by_either_pass(splits: list[Path], i: int) -> None:
    digest = sha256_of(*splits)
    with pytest.raises(FingerprintMismatchError, match="changed while it was loaded"):
        llm.load(splits[0], context=64, progress=at_the_end_of("digest", lambda: flip_last_byte(splits[i])))
    with pytest.raises(FingerprintMismatchError, match="other content"):
        llm.load(splits[0], context=64, expected_sha256=digest)


@pytest.mark.contract("L9", "E3")
@pytest.mark.parametrize("i", [1, 2])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 300), lambda path: os.truncate(path, 0)])
def test_a_missing_or_damaged_split_is_named(splits: list[Path], i: int, damage: Callable[[Path], object]) -> None:
    damage(splits[i])
    with pytest.raises(ModelLoadError, match=re.escape(splits[i].name)):
        llm.load(splits[0])


# -- progress --------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L5")
@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_progress_reports_every_phase_in_order_up_to_one_and_never_backwards(synthetic: Synthetic, name: str) -> None:
    seen: list[tuple[str, float]] = []
    llm.load(synthetic(name), context=64, progress=lambda *report: seen.append(report)).close()
    assert list(dict.fromkeys(phase for phase, _ in seen)) == PHASES
    assert [phase for phase, _ in seen] == sorted((phase for phase, _ in seen), key=PHASES.index)
    for one in PHASES:
        fractions = [fraction for phase, fraction in seen if phase == one]
        assert fractions == sorted(fractions)
        assert 0 <= fractions[0] <= fractions[-1] == 1


@pytest.mark.contract("L5")
@pytest.mark.real_model
def test_progress_moves_within_the_long_phases_of_a_real_model(demo_model_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    llm.load(demo_model_path, context=64, progress=lambda *report: seen.append(report)).close()
    assert any(0 < fraction < 1 for phase, fraction in seen if phase in ("digest", "verify"))


@pytest.mark.contract("L5")
@pytest.mark.parametrize("phase", PHASES)
def test_an_exception_of_the_progress_callback_ends_the_load_and_passes_on(own: Path, phase: str) -> None:
    class Enough(Exception):
        pass

    def refuse(now: str, fraction: float) -> None:
        if now == phase:
            raise Enough

    with pytest.raises(Enough):
        llm.load(own, context=64, progress=refuse)
    assert str(own) not in Path("/proc/self/maps").read_text()
    assert not [line for line in open_files() if line == str(own)]
    llm.load(own, context=64).close()


def open_files() -> Iterator[str]:
    for fd in Path("/proc/self/fd").iterdir():
        if fd.is_symlink():
            yield os.readlink(fd)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("Z4")
@pytest.mark.parametrize("phase", ["digest", "engine", "context"])
def test_an_interrupt_during_a_load_raises_keyboard_interrupt_and_makes_no_handle(own: Path, phase: str) -> None:
    def interrupt(now: str, fraction: float) -> None:
        if now == phase:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        llm.load(own, context=64, progress=interrupt)
    assert str(own) not in Path("/proc/self/maps").read_text()


@pytest.mark.contract("Z4", "E2")
@pytest.mark.real_model
def test_interrupts_at_any_moment_of_a_load_leave_a_process_that_loads_and_generates(demo_model_path: Path) -> None:
    outcome = call_in_child(interrupted_loads, demo_model_path, 8).checked()
    assert outcome["interrupted"] >= 3
    assert outcome["slowest"] < 1.0
    assert outcome["tokens"] == 4
    assert outcome["mapped"] is False


def interrupted_loads(path: str, n: int) -> dict[str, object]:
    """Load ``n`` times with an interrupt from another thread, a little later each time; then load in peace."""
    for _ in range(2):
        started = time.monotonic()
        llm.load(path, context=256).close()
        whole = time.monotonic() - started
    interrupted, slowest = 0, 0.0
    for i in range(n):
        sent: list[float] = []

        def interrupt(sent: list[float] = sent) -> None:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Timer(whole * (i + 0.5) / n, interrupt)
        timer.start()
        loaded = False
        try:
            llm.load(path, context=256).close()
            loaded = True
            timer.join()  # over before its interrupt, which comes here
            time.sleep(0.05)
        except KeyboardInterrupt:
            interrupted += not loaded
            slowest = max(slowest, time.monotonic() - sent[0])
        timer.join()
    mapped = path in Path("/proc/self/maps").read_text()
    with llm.load(path, context=256) as model:
        tokens = len(model.generate("Hello", max_tokens=4, ignore_eos=True).token_ids())
    return {"interrupted": interrupted, "slowest": slowest, "tokens": tokens, "mapped": mapped}
