"""The harness's statistics against independent computations, and its view of who used the CPUs."""

from __future__ import annotations

import math
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner import measure
from aner.measure import CpuTimes, Disturbance, Interval, Limits

RATIOS = st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=1, max_size=30)


# Statistics


@given(RATIOS)
def test_geometric_mean_is_the_nth_root_of_the_product(ratios: list[float]) -> None:
    expected = math.prod(ratio ** (1 / len(ratios)) for ratio in ratios)
    assert measure.geometric_mean(ratios) == pytest.approx(expected, rel=1e-9)
    assert measure.geometric_mean(ratios) == pytest.approx(statistics.geometric_mean(ratios), rel=1e-9)


@given(RATIOS)
def test_geometric_mean_of_inverted_ratios_is_the_inverse(ratios: list[float]) -> None:
    inverted = measure.geometric_mean([1 / ratio for ratio in ratios])
    assert inverted * measure.geometric_mean(ratios) == pytest.approx(1.0, rel=1e-9)


def test_geometric_mean_refuses_ratios_that_are_not_positive() -> None:
    for bad in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="above 0"):
            measure.geometric_mean([1.0, bad])


@given(st.lists(st.floats(min_value=0.5, max_value=2.0), min_size=2, max_size=20), st.integers(0, 1000))
def test_bootstrap_interval_is_repeatable_lies_among_the_ratios_and_has_low_below_high(ratios: list[float], seed: int) -> None:
    interval = measure.bootstrap_interval(ratios, seed=seed, resamples=200)
    assert interval == measure.bootstrap_interval(ratios, seed=seed, resamples=200)
    assert min(ratios) * (1 - 1e-9) <= interval.low <= interval.high <= max(ratios) * (1 + 1e-9)


def test_bootstrap_interval_agrees_with_a_bootstrap_written_in_plain_python() -> None:
    ratios = [0.91, 1.02, 0.97, 1.10, 0.99, 1.05, 0.95, 1.01, 1.03, 0.98]
    draw = random.Random(5)
    means = sorted(statistics.geometric_mean(draw.choices(ratios, k=len(ratios))) for _ in range(20_000))
    interval = measure.bootstrap_interval(ratios, seed=3)
    assert interval.low == pytest.approx(means[500], abs=0.003)
    assert interval.high == pytest.approx(means[-500], abs=0.003)


def test_bootstrap_interval_of_ten_pairs_holds_the_true_ratio_nine_times_in_ten() -> None:
    draw = random.Random(11)
    held = 0
    for trial in range(400):
        ratios = [0.9 * math.exp(draw.gauss(0, 0.05)) for _ in range(10)]
        interval = measure.bootstrap_interval(ratios, seed=trial, resamples=400)
        held += interval.low <= 0.9 <= interval.high
    assert held / 400 > 0.85  # the percentile bootstrap of ten pairs is known to fall short of 0.95


def test_fewer_than_two_pairs_give_a_missing_interval_and_no_claim() -> None:
    interval = measure.bootstrap_interval([1.5])
    assert interval == Interval(measure.MISSING, measure.MISSING)
    assert measure.control_spread([1.0], pairs=10) == measure.MISSING
    assert not measure.beyond_control(interval, 1.01)
    assert not measure.beyond_control(Interval(2.0, 3.0), measure.MISSING)


def test_a_pair_with_a_side_that_was_not_measured_gives_no_ratio() -> None:
    assert measure.paired_ratios([2.0, -1, 3.0], [1.0, 1.0, -1]) == [2.0]
    with pytest.raises(ValueError, match="cannot be paired"):
        measure.paired_ratios([1.0], [])


@given(st.lists(st.floats(min_value=0.1, max_value=1e6), max_size=15))
def test_median_ignores_what_was_not_measured_and_is_missing_for_nothing(values: list[float]) -> None:
    ordered = sorted(values)
    half = len(ordered) // 2
    expected = -1.0 if not ordered else ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
    assert measure.median([*values, measure.MISSING]) == pytest.approx(expected)


@given(st.lists(st.floats(min_value=0.8, max_value=1.25), min_size=2, max_size=20))
def test_control_spread_does_not_depend_on_which_side_is_called_a(ratios: list[float]) -> None:
    spread = measure.control_spread(ratios, pairs=10, resamples=500)
    assert spread >= 1.0
    # Both tails of the inverted sample are the mirror of the same resamples, up to the quantiles' interpolation.
    assert measure.control_spread([1 / r for r in ratios], pairs=10, resamples=500) == pytest.approx(spread, rel=1e-2)


def test_control_spread_is_wider_for_fewer_pairs_and_for_a_biased_control() -> None:
    noise = [0.95, 1.05, 0.97, 1.03, 1.0, 1.01]
    assert measure.control_spread(noise, pairs=2) > measure.control_spread(noise, pairs=20) > 1.0
    biased = [ratio * 1.1 for ratio in noise]
    assert measure.control_spread(biased, pairs=20) > 1.1


@pytest.mark.parametrize(
    ("interval", "spread", "reference", "claimed"),
    [
        (Interval(1.05, 1.10), 1.02, 1.0, True),
        (Interval(1.01, 1.10), 1.02, 1.0, False),  # inside the control's spread
        (Interval(0.90, 0.95), 1.02, 1.0, True),
        (Interval(0.95, 0.99), 1.02, 1.0, False),
        (Interval(0.99, 1.01), 1.01, 0.97, True),  # a floor of 0.97 holds
        (Interval(0.96, 1.01), 1.01, 0.97, False),
    ],
)
def test_a_claim_needs_the_whole_interval_beyond_the_reference_and_the_spread(
    interval: Interval, spread: float, reference: float, claimed: bool
) -> None:
    assert measure.beyond_control(interval, spread, reference) is claimed


# Idle and disturbed


def test_foreign_time_is_busy_time_less_our_own_as_a_share_of_all_usable_cpus() -> None:
    before = CpuTimes(clock=10.0, busy=100.0, stolen=5.0, own=20.0, cpus=2)
    after = CpuTimes(clock=14.0, busy=104.0, stolen=5.4, own=22.0, cpus=2)
    window = measure.window_between(before, after)
    assert window.seconds == 4.0
    assert window.foreign_share == pytest.approx((4.0 - 2.0) / 8.0)
    assert window.stolen_share == pytest.approx(0.4 / 8.0)


def test_what_cannot_be_measured_is_missing_and_drops_nothing(tmp_path: Path) -> None:
    times = measure.read_cpu_times(tmp_path)  # a system without /proc
    assert (times.busy, times.stolen, times.own) == (-1, -1, -1)
    window = measure.window_between(times, CpuTimes(times.clock + 1, -1, -1, -1, times.cpus))
    assert (window.foreign_share, window.stolen_share) == (-1, -1)
    assert Limits().reason_to_drop(window) is None


def test_reasons_name_the_share_and_the_limit() -> None:
    limits = Limits(foreign_share=0.05, stolen_share=0.02)
    assert limits.reason_to_drop(Disturbance(1.0, 0.04, 0.01)) is None
    assert "other processes used 40.0%" in str(limits.reason_to_drop(Disturbance(1.0, 0.4, 0.0)))
    assert "limit 2%" in str(limits.reason_to_drop(Disturbance(1.0, 0.0, 0.1)))


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")


@linux_only
def test_cpu_time_of_a_child_counts_as_our_own_while_it_runs_and_after_it_was_waited_for() -> None:
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.5: pass\nprint(flush=True); input()"
    before = measure.read_cpu_times()
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()  # it burned its half second and waits
        running = measure.read_cpu_times()
        child.stdin.write(b"\n")
    after = measure.read_cpu_times()
    assert running.own - before.own >= 0.45
    assert after.own - before.own >= 0.45


@linux_only
def test_cpu_time_of_a_process_that_is_not_ours_counts_as_foreign(tmp_path: Path) -> None:
    # An orphan: its parent ends at once, so it belongs to no process of ours. It burns once told to, and ends by itself.
    go, done = tmp_path / "go", tmp_path / "done"
    burn = (
        "import os, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\n"
        "t = time.process_time()\n"
        "while time.process_time() - t < 0.6: pass\n"
        f"open({str(done)!r}, 'w').close()"
    )
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    subprocess.run([sys.executable, "-W", "ignore", "-c", parent], check=True)
    before = measure.read_cpu_times()
    go.touch()
    while not done.exists():
        time.sleep(0.05)
    after = measure.read_cpu_times()
    window = measure.window_between(before, after)
    assert window.foreign_share * window.seconds * after.cpus >= 0.45
    assert after.own - before.own < 0.45
