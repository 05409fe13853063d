"""``llm.plan``: what a lease would occupy, before anything is loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import aner_native

from aner._logging import flush_engine_log
from aner.errors import ConfigurationError, OutOfMemoryError, UnsupportedCombinationError
from aner.llm import _probe
from aner.llm._figures import Figures, memory_figures
from aner.llm._load import checked_settings
from aner.llm._paths import local_path
from aner.llm._profile import OptimizerProfile, native_settings

__all__ = ["plan"]

KV_CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_GROUP = 256  # the engine makes KV cells in groups of so many
_MOST_SEQUENCES = 256
_UNITS = {"": 1, "B": 1, **{f"{p}{b}": base**n for n, p in enumerate("KMGT", 1) for b, base in (("IB", 1024), ("B", 1000))}}


def plan(
    path: str | os.PathLike[str],
    *,
    context: int = 4096,
    kv_cache_type: str = "f16",
    flash_attention: str = "auto",
    max_sequences: int = 1,
    batch_tokens: int = 512,
    micro_batch_tokens: int | None = None,
    prefix_cache_entries: int = 0,
    speculative_tokens: int = 0,
    reproducible: bool = False,
    mapped: bool = True,
    budget: int | str | None = None,
) -> Figures:
    """What a lease of this model would occupy on the CPU, and what fits; nothing is loaded and the content is not digested.

    The engine opens the model and makes the contexts without allocating them, so the figures are those of
    ``Model.memory_summary()``, byte by byte, with ``retained_contexts`` as many as the lease may come to hold. Besides: KV by
    kind of layer; ``compute_written_bytes_per_context``, the part of the workspace that calls ever write to; ``tables_bytes``, an
    estimate of what the process takes beside the engine's buffers; ``total_bytes``, which the process grows by, with one lease
    that serves one request at a time, or ``max_sequences`` together; ``budget_bytes``; ``fits``; and, everything else as asked,
    ``largest_context`` (up to the trained one), ``largest_max_sequences`` (0: not even one) and ``kv_cache_types_that_fit``.

    context, kv_cache_type, flash_attention, reproducible, mapped: as in ``load``.
    max_sequences: more than 1 plans the shared context of ``with_batching``.
    batch_tokens, micro_batch_tokens, prefix_cache_entries, speculative_tokens: as in ``with_optimizer``.
    budget: bytes, or a text such as ``"8GiB"``; None: the memory that is available now. -1 and None in the figures: not known.

    Raises ModelNotFoundError, ModelLoadError, ConfigurationError, UnsupportedCombinationError, OutOfMemoryError.
    """
    native_path = local_path(path)
    settings = checked_settings(context, reproducible, mapped, kv_cache_type=kv_cache_type, flash_attention=flash_attention)
    if isinstance(max_sequences, bool) or not isinstance(max_sequences, int) or abs(max_sequences) >= 2**31:
        raise ConfigurationError(f"max_sequences must be an integer within 1..{_MOST_SEQUENCES}, it is {max_sequences!r:.100}")
    limit = aner_native.available_memory() if budget is None else bytes_of(budget)
    profile = OptimizerProfile(
        batch_tokens=batch_tokens,
        micro_batch_tokens=micro_batch_tokens,
        prefix_cache_entries=prefix_cache_entries,
        speculative_tokens=speculative_tokens,
    )
    try:
        task = aner_native.LoadTask(native_path, device=b"cpu", expected_sha256=b"", **settings)
        facts = task.admit(None, digests=False)
        if not facts["covered"]:
            facts = task.admit(None)
            _probe.try_in_child(os.fsdecode(native_path), facts["fingerprint"], facts["architecture"])
        native = task.plan()

        def planned(context: int = context, kv_cache_type: str = kv_cache_type, max_sequences: int = max_sequences) -> Figures:
            optimizer = native_settings(profile, context)
            found = native.context(context, kv_cache_type.encode(), settings["flash_attention"], optimizer, max_sequences)
            policies = {
                "kv_cache_type": kv_cache_type, "flash_attention": flash_attention, "device": "cpu", "mapped": mapped,
                "reproducible": reproducible,
            }  # fmt: skip
            return _figures(policies, found, max_sequences)

        def fits(**change: Any) -> bool:
            try:
                return bool(planned(**change)["total_bytes"] <= limit)
            except (OutOfMemoryError, UnsupportedCombinationError, ConfigurationError):
                return False

        asked = planned()
        return Figures({**asked, **_what_fits(asked, limit, fits, facts["context_train"], batch_tokens)})
    finally:
        flush_engine_log(repeated=False)


def bytes_of(budget: object) -> int:
    """A number of bytes, given as such or as a text with a unit."""
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    if isinstance(budget, str):
        found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)\s*", budget, re.ASCII)
        if found and found[2].upper() in _UNITS:
            return int(float(found[1]) * _UNITS[found[2].upper()])
    raise ConfigurationError(f"budget must be a number of bytes or a text such as '8GiB' or '500MB', it is {budget!r:.100}")


def _figures(policies: dict[str, Any], found: dict[str, Any], max_sequences: int) -> Figures:
    found["idle_contexts"] = found["max_idle_contexts"]
    same = memory_figures(policies, found, max_sequences)
    each = found["kv_bytes"] + found["compute_written_bytes"] + found["output_bytes"]
    total = same["weights_bytes_shared"] + each * max(1, found["max_idle_contexts"]) + found["tables_bytes"]
    kinds = {f"kv_{kind}_bytes_per_context": found[f"kv_{kind}_bytes"] for kind in ("attention", "sliding_window", "recurrent")}
    written = {"compute_written_bytes_per_context": found["compute_written_bytes"]}
    return Figures({**same, **kinds, **written, "tables_bytes": found["tables_bytes"], "total_bytes": total})


def _what_fits(asked: Figures, limit: int, fits: Callable[..., bool], context_train: int, batch_tokens: int) -> dict[str, Any]:
    if limit < 0:
        unknown = {"largest_context": -1, "largest_max_sequences": -1, "kv_cache_types_that_fit": None}
        return {"budget_bytes": -1, "fits": None, **unknown}
    context, asked_fits = asked["context"], asked["total_bytes"] <= limit
    most = max(context_train, context)
    groups = _largest(lambda n: fits(context=min(n * _GROUP, most)), -(-most // _GROUP))
    sequences = min(_MOST_SEQUENCES, batch_tokens, (2**31 - 1) // context)
    return {
        "budget_bytes": limit,
        "fits": asked_fits,
        "largest_context": max(min(groups * _GROUP, most), context if asked_fits else 0),
        "largest_max_sequences": _largest(lambda n: fits(max_sequences=n), sequences),
        "kv_cache_types_that_fit": [name for name in KV_CACHE_TYPES if fits(kv_cache_type=name)],
    }


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to ``most`` that fits, 0 for none. From below: what is far too large is costly even to plan."""
    good, step = 0, 1
    while good + step <= most and fits(good + step):
        good += step
        step *= 2
    bad = min(good + step, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
