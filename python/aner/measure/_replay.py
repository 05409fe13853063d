"""Offline replay of drafts: with greedy decoding, what is accepted depends on the request's tokens alone, so that any draft
length and any cost table can be scored from one recorded request, exactly and without the model. The native policy itself runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import aner_native

from aner.llm import Model, Response


@dataclass(frozen=True)
class Recording:
    """A finished greedy request."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]  # without the token that ended it
    ends: tuple[int, ...]  # ids that end a generation
    ended_by_token: bool  # by one of them
    max_tokens: int
    context: int


@dataclass(frozen=True)
class Replay:
    """What the counters of the request would be."""

    proposed_tokens: int
    accepted_tokens: int
    accepted_from_prompt: int  # copied out of the prompt; the other accepted ones out of the output
    verification_steps: int
    calls: tuple[int, ...]  # decode calls by their number of rows, 0 rows first

    def time(self, costs: Sequence[float]) -> float:
        """Estimated decode time in calls of one row; ``costs``: of a call of 1, 2 .. rows."""
        return sum(count * costs[rows - 1] for rows, count in enumerate(self.calls) if count)

    def speed_up(self, costs: Sequence[float]) -> float:
        """Estimated decode time without drafts, one call for each token, over the time with them."""
        plain = (sum(self.calls) + self.accepted_tokens) * costs[0]
        return plain / self.time(costs) if plain > 0 else 1.0


def recording_of(
    model: Model, prompt: Sequence[int], response: Response, *, max_tokens: int, stop_token_ids: Sequence[int] = ()
) -> Recording:
    """The recording of a finished request for token ids at temperature 0, made without stop strings."""
    native = model._require()
    ends = (*native.vocabulary()["end_of_generation"], *stop_token_ids)
    ended_by_token = response.finish_reason() == "stop"
    return Recording(tuple(prompt), tuple(response.token_ids()), ends, ended_by_token, max_tokens, native.info()["context"])


def call_costs(model: Model) -> tuple[float, ...]:
    """The lease's table: time of a call of 1, 2 .. rows over that of one row. Empty for a lease that does not speculate."""
    return tuple(model._require().context()["call_costs"])


def replay(recording: Recording, max_draft: int, costs: Sequence[float]) -> Replay:
    """Drafts of at most ``max_draft`` tokens, their lengths chosen by ``costs``; no costs: rows are taken to be free."""
    found = aner_native.replay_drafts(asdict(recording), max_draft, [0.0, *costs] if costs else [])
    return Replay(**{**found, "calls": tuple(found["calls"])})


def replay_as(model: Model, recording: Recording) -> Replay:
    """What this lease, which speculates, would do with the request."""
    longest = min(model.profile().speculative_tokens, model._require().context()["micro_batch_tokens"] - 1)
    return replay(recording, longest, call_costs(model))
