"""Paired ratios: their geometric mean, its bootstrap interval, and what an A/A control allows to be claimed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MISSING = -1
"""Stands for every number that was not measured."""


@dataclass(frozen=True)
class Interval:
    """A bootstrap interval; both ends are ``MISSING`` when fewer than two pairs were measured."""

    low: float
    high: float


def median(values: Sequence[float]) -> float:
    """The median of the measured values; ``MISSING`` when there is none."""
    measured = [value for value in values if value != MISSING]
    return statistics.median(measured) if measured else MISSING


def paired_ratios(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """``a[i] / b[i]`` for the pairs in which both sides were measured."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} values cannot be paired with {len(b)}")
    return [x / y for x, y in zip(a, b, strict=True) if x > 0 and y > 0]


def geometric_mean(ratios: Sequence[float]) -> float:
    """The geometric mean; ``MISSING`` for no ratios."""
    return math.exp(float(np.mean(_logarithms(ratios)))) if ratios else MISSING


def bootstrap_interval(
    ratios: Sequence[float], *, seed: int = 0, confidence: float = 0.95, resamples: int = 10_000
) -> Interval:
    """Percentile bootstrap of the geometric mean, the same for the same seed. With ten pairs it is somewhat too narrow."""
    return _interval(ratios, len(ratios), seed, confidence, resamples)


def control_spread(
    ratios: Sequence[float], *, pairs: int, seed: int = 0, confidence: float = 0.95, resamples: int = 10_000
) -> float:
    """The factor (1 or more) by which a geometric mean of ``pairs`` ratios strays from 1 when both sides are the same.

    ``ratios`` come from an A/A control. The interval of their mean, for as many pairs as the comparison has, is taken in both
    directions, since which side is called A is arbitrary. ``MISSING`` for fewer than two control pairs.
    """
    interval = _interval(ratios, pairs, seed, confidence, resamples)
    if interval.low == MISSING:
        return MISSING
    return max(interval.high, 1 / interval.low, 1.0)


def beyond_control(interval: Interval, spread: float, reference: float = 1.0) -> bool:
    """Whether all of ``interval`` lies above or below ``reference`` by more than the control's ``spread``.

    A claim "at least 0.97" has 0.97 as its reference. Nothing lies beyond a control that was not measured.
    """
    if MISSING in (interval.low, interval.high, spread):
        return False
    return interval.low > reference * spread or interval.high < reference / spread


def _logarithms(ratios: Sequence[float]) -> NDArray[np.float64]:
    values = np.asarray(ratios, dtype=np.float64)
    if not np.all(np.isfinite(values) & (values > 0)):
        raise ValueError(f"ratios must be finite and above 0, not {list(ratios)}")
    return np.log(values)


def _interval(ratios: Sequence[float], draws: int, seed: int, confidence: float, resamples: int) -> Interval:
    if len(ratios) < 2 or draws < 1:
        return Interval(MISSING, MISSING)
    logarithms = _logarithms(ratios)
    chosen = np.random.default_rng(seed).integers(0, len(ratios), size=(resamples, draws))
    means = logarithms[chosen].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(math.exp(float(low)), math.exp(float(high)))
