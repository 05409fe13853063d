"""A small benchmark harness: interleaved pairs, an A/A control, idle checks, provenance, and a record in JSON lines."""

from ._harness import Harness, Ratio, Sample, Side
from ._idle import CpuTimes, Disturbance, Limits, Probe, read_cpu_times, usable_cpus, wait_until_idle, window_between
from ._outputs import Difference, distinct_ngram_ratio, first_difference
from ._provenance import DescribedModel, describe_model, machine_state, provenance, sha256_of
from ._records import SCHEMA_VERSION, RecordWriter, read_records
from ._replay import Recording, Replay, call_costs, recording_of, replay, replay_as
from ._statistics import (
    MISSING,
    Interval,
    beyond_control,
    bootstrap_interval,
    control_spread,
    geometric_mean,
    median,
    paired_ratios,
)

__all__ = [
    "MISSING",
    "SCHEMA_VERSION",
    "CpuTimes",
    "DescribedModel",
    "Difference",
    "Disturbance",
    "Harness",
    "Interval",
    "Limits",
    "Probe",
    "Ratio",
    "RecordWriter",
    "Recording",
    "Replay",
    "Sample",
    "Side",
    "beyond_control",
    "bootstrap_interval",
    "call_costs",
    "control_spread",
    "describe_model",
    "distinct_ngram_ratio",
    "first_difference",
    "geometric_mean",
    "machine_state",
    "median",
    "paired_ratios",
    "provenance",
    "read_cpu_times",
    "read_records",
    "recording_of",
    "replay",
    "replay_as",
    "sha256_of",
    "usable_cpus",
    "wait_until_idle",
    "window_between",
]
