"""Read-only figures that print as a table: a dict to programs, lines with units to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["Figures"]


class Figures(Mapping[str, Any]):
    """A read-only mapping. ``str()`` gives a line for each figure, with units; ``dict()`` the plain values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)

    def __str__(self) -> str:
        width = max((len(name) for name in self._values), default=0)
        return "\n".join(f"{name:<{width}}  {shown(name, value)}" for name, value in self._values.items())

    def __reduce__(self) -> tuple[type[Figures], tuple[dict[str, Any]]]:
        return Figures, (dict(self._values),)


def memory_figures(policies: Mapping[str, Any], context: Mapping[str, Any], sequences: int) -> Figures:
    """``Model.memory_summary()``, from what was asked for and from a context as the core describes it."""
    parts = [context[name] for name in ("kv_bytes", "compute_bytes", "output_bytes")]
    each = sum(parts) if min(parts) >= 0 else -1
    return Figures(
        {
            "weights_bytes_shared": context["weights_bytes"],
            "kv_bytes_per_context": context["kv_bytes"],
            "kv_payload_bytes_per_context": context["kv_payload_bytes"],
            "compute_bytes_per_context": context["compute_bytes"],
            "output_rows_bytes_per_context": context["output_bytes"],
            "retained_contexts": context["idle_contexts"],
            "retained_contexts_limit": context["max_idle_contexts"],
            "retained_contexts_bytes": each * context["idle_contexts"] if each >= 0 else -1,
            "sequences_per_context": sequences,
            "context": context["context"],
            "kv_cells": context["cells"],
            "kv_cache_type": policies["kv_cache_type"],
            "flash_attention_requested": policies["flash_attention"],
            "flash_attention_resolved": (
                "on" if context["flash_attention"] else "prefill" if context["flash_attention_rows"] > 0 else "off"
            ),
            "device": policies["device"],
            "weights_mapped": policies["mapped"],
            "reproducible": policies["reproducible"],
        }
    )


def shown(name: str, value: Any) -> str:
    """One figure for people: nanoseconds as milliseconds, bytes as MiB, -1 as not measured."""
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    if value == -1:
        return "not measured"
    if name.endswith("_duration"):
        return f"{value / 1e6:,.3f} ms"
    if "_bytes" in name or name.startswith("bytes"):
        return f"{value / 2**20:,.1f} MiB" if value >= 2**20 else f"{value / 1024:,.1f} KiB"
    return f"{value:,}"
