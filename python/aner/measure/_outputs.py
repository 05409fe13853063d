"""Two outputs compared, and whether one of them repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aner.llm import Response, TokenLogprob

from ._statistics import MISSING


@dataclass(frozen=True)
class Difference:
    """Where two outputs part.

    A token is ``MISSING`` where its output has ended. ``logit_gap``: by how much the first output's logits preferred its
    own token to the other's; ``MISSING`` without log probabilities of both.
    """

    position: int
    token: int
    other_token: int
    logit_gap: float


def first_difference(response: Response, other: Sequence[int]) -> Difference | None:
    """The first position at which ``other`` has another token than ``response``; None when they are equal."""
    mine = response.token_ids()
    if mine == list(other):
        return None
    length = min(len(mine), len(other))
    position = next((i for i in range(length) if mine[i] != other[i]), length)
    token, other_token = (ids[position] if position < len(ids) else MISSING for ids in (mine, other))
    logprobs = response.logprobs()
    gap = _gap(logprobs[position], other_token) if logprobs and position < length else MISSING
    return Difference(position, token, other_token, gap)


def distinct_ngram_ratio(ids: Sequence[int], n: int = 4) -> float:
    """Different n-grams over all n-grams: 1 for text that never repeats itself, near 0 for a loop; ``MISSING`` for none."""
    count = len(ids) - n + 1
    return len({tuple(ids[i : i + n]) for i in range(count)}) / count if count > 0 else MISSING


def _gap(chosen: TokenLogprob, other: int) -> float:
    return next((chosen.logprob - one.logprob for one in chosen.top if one.token_id == other), MISSING)
