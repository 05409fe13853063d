"""Whether the machine was ours: CPU time of other processes, and time stolen by the hypervisor, over a window.

A busy neighbour slows two compute threads on two cores by an order of magnitude, so a block of samples during which anything
else ran is not a measurement.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ._statistics import MISSING

_PROC = Path("/proc")


@dataclass(frozen=True)
class CpuTimes:
    """A moment: CPU time spent until then, in seconds, on the CPUs that this process may use. ``MISSING`` where unknown."""

    clock: float
    busy: float
    stolen: float
    own: float  # this process and its descendants
    cpus: int


@dataclass(frozen=True)
class Disturbance:
    """A window: shares of all usable CPU time that went to others; ``MISSING`` where unknown."""

    seconds: float
    foreign_share: float
    stolen_share: float


@dataclass(frozen=True)
class Limits:
    """What a block may suffer and still count."""

    foreign_share: float = 0.05
    stolen_share: float = 0.03

    def reason_to_drop(self, window: Disturbance) -> str | None:
        """Why the window does not count, or None. What could not be measured is no reason."""
        if window.foreign_share > self.foreign_share:
            return f"other processes used {window.foreign_share:.1%} of the CPUs (limit {self.foreign_share:.0%})"
        if window.stolen_share > self.stolen_share:
            return f"{window.stolen_share:.1%} of the CPU time was stolen (limit {self.stolen_share:.0%})"
        return None


Probe = Callable[[], CpuTimes]


def read_cpu_times(proc: Path = _PROC) -> CpuTimes:
    """The present moment, from /proc where there is one."""
    cpus = usable_cpus()
    try:
        lines = (proc / "stat").read_text().splitlines()
        tick = 1 / os.sysconf("SC_CLK_TCK")
        wanted = {f"cpu{number}" for number in cpus}
        rows = [line.split() for line in lines]
        counts = [[int(n) for n in row[1:]] for row in rows if row and row[0] in wanted]
        busy = tick * sum(user + nice + system for user, nice, system, *_ in counts)
        stolen = tick * sum(row[7] for row in counts if len(row) > 7)
        return CpuTimes(time.monotonic(), busy, stolen, tick * _ticks_of_tree(proc), len(cpus))
    except (OSError, ValueError, AttributeError):
        return CpuTimes(time.monotonic(), MISSING, MISSING, MISSING, len(cpus))


def window_between(before: CpuTimes, after: CpuTimes) -> Disturbance:
    """What others took between two moments."""
    seconds = after.clock - before.clock
    if MISSING in (before.busy, after.busy) or seconds <= 0:
        return Disturbance(seconds, MISSING, MISSING)
    available = seconds * after.cpus
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return Disturbance(seconds, max(0.0, foreign / available), max(0.0, (after.stolen - before.stolen) / available))


def wait_until_idle(
    limits: Limits, *, window_s: float = 1.0, timeout_s: float = 30.0, probe: Probe = read_cpu_times
) -> Disturbance:
    """Watch windows until one passes ``limits`` or the time is over; the last one is returned, whatever it shows."""
    deadline = time.monotonic() + timeout_s
    while True:
        before = probe()
        time.sleep(window_s)
        window = window_between(before, probe())
        if limits.reason_to_drop(window) is None or time.monotonic() > deadline:
            return window


def usable_cpus() -> list[int]:
    """Numbers of the CPUs that this process may run on."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # no affinity on this system
        return list(range(os.cpu_count() or 1))


def _ticks_of_tree(proc: Path) -> int:
    """CPU ticks of this process and all its descendants, those already waited for included."""
    me = os.getpid()
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(int(n) for n in fields[11:15])  # utime stime cutime cstime
    total, pending = 0, [me]
    while pending:
        process = pending.pop()
        total += ticks.get(process, 0)
        pending += children.get(process, [])
    return total
