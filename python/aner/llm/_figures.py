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
