"""Two ways of doing the same work, compared so that the difference means something.

Samples come in blocks A B B A, which cancel a drift of the machine, and give two pairs each. After every block of a comparison
comes a block of its A/A control, A A A A paired in the same way. A block during which others used the machine is dropped, with
its reason, and repeated. All samples, orders, seeds and exclusions go to the record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ._idle import Disturbance, Limits, Probe, read_cpu_times, wait_until_idle, window_between
from ._provenance import machine_state, provenance
from ._records import RecordWriter
from ._statistics import (
    MISSING,
    beyond_control,
    bootstrap_interval,
    control_spread,
    geometric_mean,
    median,
    paired_ratios,
)

ORDER = "ABBA"
PAIRS_OF_BLOCK = ((0, 1), (3, 2))  # positions in ORDER: A against its neighbour B
MIN_PAIRS = 6  # fewer give no verdict: five that agree by chance are a 1 in 16 event


@dataclass(frozen=True)
class Sample:
    """What one run measured: figures by name (``-1``: not measured), and whatever else the record shall keep."""

    values: Mapping[str, float]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One of the two ways. ``run(seed)`` does the work once; both sides of a pair get the same seed."""

    name: str
    run: Callable[[int], Sample]


@dataclass(frozen=True)
class Ratio:
    """One figure of a comparison: A over B, with what its A/A control says."""

    comparison: str
    figure: str
    a: str
    b: str
    pairs: int
    ratio: float  # geometric mean of the paired ratios
    low: float
    high: float
    median_a: float
    median_b: float
    control_pairs: int
    control_ratio: float
    control_spread: float  # a factor, 1 or more
    reference: float
    verdict: str  # above, below, unresolved: the interval against the reference, beyond the control's spread


class Harness:
    """A run with a record of its own: ``with Harness("DEC1", path) as harness: harness.compare(...)``."""

    def __init__(
        self,
        name: str,
        output: Path,
        *,
        seed: int = 0,
        limits: Limits | None = None,
        max_attempts: int = 3,
        settle_s: float = 5.0,
        probe: Probe = read_cpu_times,
        checkout: Path | None = None,
        **facts: Any,
    ) -> None:
        self.name = name
        self.seed = seed
        self.results: list[Ratio] = []
        self._limits = limits or Limits()
        self._max_attempts = max_attempts
        self._settle_s = settle_s
        self._probe = probe
        self._excluded = 0
        self._controls: dict[str, list[list[Sample]]] = {}
        self._writer = RecordWriter(output)
        self.record(
            "run", name=name, seed=seed, order=ORDER, limits=asdict(self._limits), provenance=provenance(checkout), **facts
        )

    def __enter__(self) -> Harness:
        idle = wait_until_idle(self._limits, timeout_s=6 * self._settle_s, probe=self._probe) if self._settle_s else None
        self.record("note", note="machine before", state=machine_state(), window=asdict(idle) if idle else MISSING)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._writer.abandon()
            return
        self.record(
            "summary",
            name=self.name,
            results=[asdict(result) for result in self.results],
            excluded_blocks=self._excluded,
            state=machine_state(),
        )
        self._writer.complete()

    def record(self, kind: str, **fields: Any) -> None:
        """Adds one line to the record."""
        self._writer.write(kind, **fields)

    def compare(
        self,
        name: str,
        a: Side,
        b: Side,
        *,
        pairs: int = 10,
        warm_ups: int = 1,
        budget_s: float | None = None,
        references: Mapping[str, float] | None = None,
        reuse_control: bool = False,
    ) -> list[Ratio]:
        """Measures ``pairs`` pairs (an even number) and as many of the control, or fewer when ``budget_s`` is over first.

        ``references``: the ratio to claim by figure, where it is not 1. ``reuse_control``: take the control that this run has
        measured for ``a`` in an earlier comparison.
        """
        if reuse_control and a.name not in self._controls:
            raise ValueError(f"no control of {a.name!r} was measured before {name!r}")
        started = time.monotonic()
        for side in (a, b):
            for _ in range(warm_ups):
                side.run(self.seed)
        self.record("warmup", comparison=name, runs_of_each_side=warm_ups, kept=False)
        measured: list[list[Sample]] = []
        control = self._controls[a.name] if reuse_control else []
        self._controls[a.name] = control
        for block in range((pairs + 1) // 2):
            if budget_s is not None and time.monotonic() - started > budget_s:
                self.record("note", note=f"{name}: stopped after {block} blocks, the {budget_s} s were over")
                break
            for role, second, kept in (("compare", b, measured), ("control", a, control))[: 1 if reuse_control else 2]:
                samples = self._undisturbed_block(name, role, block, a, second)
                if samples is not None:
                    kept.append(samples)
        results = self._ratios(name, (a.name, b.name), measured, control, references or {})
        self.results += results
        return results

    def table(self) -> str:
        """The results for people."""
        head = ("comparison", "figure", "A / B", "95 % interval", "pairs", "A/A spread", "reference", "verdict", "A", "B")
        rows = [head] + [
            (
                r.comparison,
                r.figure,
                _number(r.ratio),
                f"{_number(r.low)} to {_number(r.high)}",
                str(r.pairs),
                _number(r.control_spread),
                _number(r.reference),
                r.verdict,
                f"{r.a} {r.median_a:.4g}",
                f"{r.b} {r.median_b:.4g}",
            )
            for r in self.results
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, f"blocks dropped as disturbed: {self._excluded}"])

    def _undisturbed_block(self, name: str, role: str, block: int, a: Side, b: Side) -> list[Sample] | None:
        for attempt in range(1, self._max_attempts + 1):
            seeds = [self.seed + 2 * block + half for half in (0, 0, 1, 1)]
            before = self._probe()
            samples = [(a if side == "A" else b).run(seed) for side, seed in zip(ORDER, seeds, strict=True)]
            window = window_between(before, self._probe())
            reason = self._limits.reason_to_drop(window)
            self._record_block(name, role, block, attempt, [(a if s == "A" else b).name for s in ORDER], seeds, samples, window)
            if reason is None:
                return samples
            self._excluded += 1
            time.sleep(self._settle_s)
        return None

    def _record_block(
        self,
        name: str,
        role: str,
        block: int,
        attempt: int,
        order: Sequence[str],
        seeds: Sequence[int],
        samples: Sequence[Sample],
        window: Disturbance,
    ) -> None:
        reason = self._limits.reason_to_drop(window)
        self.record(
            "block",
            comparison=name,
            role=role,
            block=block,
            attempt=attempt,
            kept=reason is None,
            excluded_because=reason,
            order=list(order),
            seeds=list(seeds),
            samples=[{"values": dict(s.values), "details": dict(s.details)} for s in samples],
            window=asdict(window),
        )

    def _ratios(
        self,
        name: str,
        sides: tuple[str, str],
        measured: Sequence[Sequence[Sample]],
        control: Sequence[Sequence[Sample]],
        references: Mapping[str, float],
    ) -> list[Ratio]:
        figures = list(dict.fromkeys(figure for block in measured for sample in block for figure in sample.values))
        results = []
        for figure in figures:
            a, b = _pairs(measured, figure)
            ratios = paired_ratios(a, b)
            alike = paired_ratios(*_pairs(control, figure))
            interval = bootstrap_interval(ratios, seed=self.seed)
            spread = control_spread(alike, pairs=len(ratios), seed=self.seed)
            reference = references.get(figure, 1.0)
            verdict = "unresolved"
            if min(len(ratios), len(alike)) >= MIN_PAIRS and beyond_control(interval, spread, reference):
                verdict = "above" if interval.low > reference else "below"
            results.append(
                Ratio(
                    comparison=name,
                    figure=figure,
                    a=sides[0],
                    b=sides[1],
                    pairs=len(ratios),
                    ratio=geometric_mean(ratios),
                    low=interval.low,
                    high=interval.high,
                    median_a=median(a),
                    median_b=median(b),
                    control_pairs=len(alike),
                    control_ratio=geometric_mean(alike),
                    control_spread=spread,
                    reference=reference,
                    verdict=verdict,
                )
            )
        return results


def _pairs(blocks: Sequence[Sequence[Sample]], figure: str) -> tuple[list[float], list[float]]:
    places = [(block[i], block[j]) for block in blocks for i, j in PAIRS_OF_BLOCK]
    return (
        [float(first.values.get(figure, MISSING)) for first, _ in places],
        [float(second.values.get(figure, MISSING)) for _, second in places],
    )


def _number(value: float) -> str:
    return "-1" if value == MISSING else f"{value:.3f}"
