"""The frozen settings of a lease, and how a builder is given them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from aner.errors import ConfigurationError

__all__ = ["OptimizerProfile", "Profile"]


class _Unset:
    def __repr__(self) -> str:
        return "..."


UNSET: Any = _Unset()


@dataclass(frozen=True)
class OptimizerProfile:
    """The seven settings of ``with_optimizer``, each with its default.

    threads, prefill_threads: compute threads for calls of one row and of several; 0: chosen from the CPUs this process may use.
    batch_tokens: rows of a target call, 1..65536; a smaller context leaves fewer in effect.
    micro_batch_tokens: rows of one graph, 1..batch_tokens. None: 512, or batch_tokens if less.
    prefix_cache_entries: prompts whose KV is retained, 0..4; 0: off.
    prefix_cache_tokens: prompt tokens retained of each, 1..context; enables nothing by itself. None: 2048, or the context if less.
    speculative_tokens: longest draft of prompt lookup, 0..32; 0: off. Greedy requests only.
    """

    threads: int = 0
    prefill_threads: int = 0
    batch_tokens: int = 512
    micro_batch_tokens: int | None = None
    prefix_cache_entries: int = 0
    prefix_cache_tokens: int | None = None
    speculative_tokens: int = 0


@dataclass(frozen=True)
class Profile:
    """What a lease was configured with, as it was asked for; ``memory_summary()`` and ``timings()`` tell what is in effect.

    The first seven fields are those of OptimizerProfile. max_idle_contexts: contexts kept for later requests. max_sequences:
    slots of a batching lease, 0 for any other; step_target_ms: what its steps aim at while a sequence decodes, -1 for any other.
    """

    threads: int
    prefill_threads: int
    batch_tokens: int
    micro_batch_tokens: int
    prefix_cache_entries: int
    prefix_cache_tokens: int
    speculative_tokens: int
    max_idle_contexts: int
    max_sequences: int = 0
    step_target_ms: float = -1


SETTINGS = tuple(field.name for field in fields(OptimizerProfile))


def optimizer_profile(given: tuple[Any, ...]) -> OptimizerProfile:
    """The profile that the arguments of ``with_optimizer`` mean: a profile alone, or a prefix of the seven settings.

    ConfigurationError when a setting is given without all before it; the error names the missing ones.
    """
    first, *rest = given
    if isinstance(first, OptimizerProfile):
        if any(value is not UNSET for value in rest):
            raise ConfigurationError("give with_optimizer either an OptimizerProfile or the settings themselves, not both")
        return first
    settings = {name: value for name, value in zip(SETTINGS, given, strict=True) if value is not UNSET}
    if settings:
        last = max(SETTINGS.index(name) for name in settings)
        missing = [name for name in SETTINGS[:last] if name not in settings]
        if missing:
            raise ConfigurationError(
                f"with_optimizer was given {SETTINGS[last]} without {', '.join(missing)}: a later setting needs all before it "
                f"({', '.join(SETTINGS)}), or pass an OptimizerProfile"
            )
    return OptimizerProfile(**settings)


def native_settings(profile: OptimizerProfile, context: int) -> tuple[int, ...]:
    """The seven numbers for the native core, whose business the ranges are. ConfigurationError for a wrong type."""
    numbers: list[int] = []
    for name in SETTINGS:
        value = getattr(profile, name)
        if value is None and name == "micro_batch_tokens":
            value = min(512, numbers[-1])
        if value is None and name == "prefix_cache_tokens":
            value = min(2048, context)
        if isinstance(value, bool) or not hasattr(value, "__index__") or not -(2**31) <= value.__index__() < 2**31:
            raise ConfigurationError(f"{name} must be an integer, it is {value!r:.100}")
        numbers.append(value.__index__())
    return tuple(numbers)


def small_integer(name: str, value: Any, largest: int) -> int:
    """``value`` if the native core can take it, whose business the range is; the message tells the range."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
        least = 0 if name == "max_idle" else 1
        raise ConfigurationError(f"{name} must be an integer within {least}..{largest}, it is {value!r:.100}")
    return value


def step_target_ns(milliseconds: Any) -> int:
    """The step target of a scheduler; ConfigurationError outside 0..60000."""
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, (int, float)) or not 0 <= milliseconds <= 60_000:
        raise ConfigurationError(f"step_target_ms must be a number within 0..60000, it is {milliseconds!r:.100}")
    return round(milliseconds * 1e6)
