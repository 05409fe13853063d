"""The frozen settings of a lease."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Profile"]


@dataclass(frozen=True)
class Profile:
    """What a lease was configured with, as it was asked for; ``memory_summary()`` and ``timings()`` tell what is in effect.

    threads, prefill_threads: compute threads for one row and for several; 0: chosen from the CPUs that this process may use.
    batch_tokens, micro_batch_tokens: rows of a target call, and of one graph.
    prefix_cache_entries, prefix_cache_tokens: retained prompts and tokens of each; 0 entries: off.
    speculative_tokens: longest draft of prompt lookup; 0: off.
    max_idle_contexts: empty contexts kept for the next request.
    """

    threads: int
    prefill_threads: int
    batch_tokens: int
    micro_batch_tokens: int
    prefix_cache_entries: int
    prefix_cache_tokens: int
    speculative_tokens: int
    max_idle_contexts: int
