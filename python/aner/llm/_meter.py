"""The account of one template render: what it may still spend on time, on one value, and on all values together."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import jinja2

BASE_SIZE = 1 << 20  # characters that one value, or the whole prompt, may hold beyond GROWTH times the input
GROWTH = 8
BUDGET = 64  # all values of a render together, in units of one value's limit
STEP, CONTAINER, CELL = 16, 64, 16  # what a step, a list or dict, and each place in it count for, in characters
MAX_NESTING = 100  # of values, and of calls
MAX_INT_BITS = 1 << 14

_CONTAINERS = (list, tuple, dict, set, frozenset)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


class LimitError(jinja2.TemplateRuntimeError):
    """The render was stopped: it took too long or would have grown too large."""


class Meter:
    """What one render may still spend; the limits grow with what the caller passed in."""

    def __init__(self, inputs: Any, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._measured: dict[int, tuple[object, int, int]] = {}  # holds the object, so that its id stays its own
        self._spent = 0
        self.calls = 0
        self.limit = self._budget = 1 << 62
        weight, _ = self.measure(inputs)
        self.limit = BASE_SIZE + GROWTH * weight
        self._budget = self._spent + BUDGET * self.limit

    def charge(self, amount: int = STEP) -> None:
        self._spent += amount
        if self._spent > self._budget:
            raise LimitError("it does more work than its input can explain")
        if time.monotonic() > self._deadline:
            raise LimitError(f"it ran longer than {self._seconds:g} s")

    def require(self, size: int) -> None:
        if size > self.limit:
            raise LimitError(f"it makes a value of more than {self.limit} characters")

    def measure(self, value: Any) -> tuple[int, int]:
        """Size of ``value`` written out, shared parts counted each time they occur, and its nesting.

        Templates cannot change a list or dict, so each is walked once; its parts were measured when they were made.
        """
        if isinstance(value, str):
            return len(value) + 1, 0
        is_view = isinstance(value, _VIEWS)
        if not is_view and not isinstance(value, _CONTAINERS):
            return 1, 0
        known = self._measured.get(id(value))
        if known is not None:
            return known[1:]
        children = value
        if is_view or isinstance(value, dict):
            mapping = value.mapping if is_view else value
            children = [*mapping.keys(), *mapping.values()]
        weight, nesting = CONTAINER + CELL * len(children), 0
        self.require(weight)
        self.charge(weight)
        for child in children:
            child_weight, child_nesting = self.measure(child)
            weight, nesting = weight + child_weight, max(nesting, child_nesting)
            self.require(weight)
        if nesting >= MAX_NESTING:
            raise LimitError(f"it nests values more than {MAX_NESTING} deep")
        if not is_view:
            self._measured[id(value)] = (value, weight, nesting + 1)
        return weight, nesting + 1

    def made(self, value: Any) -> Any:
        """Account for a new value and return it."""
        if isinstance(value, str):
            self.require(len(value))
            self.charge(STEP + len(value))
            return value
        if isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
            raise LimitError(f"it makes a number of more than {MAX_INT_BITS} bits")
        self.measure(value)
        self.charge()
        return value

    def listed(self, values: Iterable[Any], between: int = 0) -> list[Any]:
        """The values as a list, stopped once they, with ``between`` characters after each, are over the limit."""
        items, size = [], 0
        for item in values:
            size += self.measure(item)[0] + between
            self.require(size)
            self.charge()
            items.append(item)
        return items
