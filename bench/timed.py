"""One request as its caller saw it, whichever program served it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aner.measure import MISSING


@dataclass(frozen=True)
class Timed:
    """Times in milliseconds from the moment the request was sent; ``details`` go to the record."""

    n_tokens: int
    ttft_ms: float  # to the first non-empty piece of text
    total_ms: float  # to the end
    details: Mapping[str, Any]
    tokens: tuple[int, ...] = ()  # where the program gives all of them
    pieces_ms: tuple[float, ...] = ()  # when each piece of text came

    @property
    def tpot_ms(self) -> float:
        """Time per output token after the first piece."""
        return (self.total_ms - self.ttft_ms) / (self.n_tokens - 1) if self.n_tokens > 1 else MISSING

    @property
    def worst_gap_ms(self) -> float:
        """The longest wait between two pieces."""
        gaps = [later - earlier for earlier, later in itertools.pairwise(self.pieces_ms)]
        return max(gaps, default=MISSING)
