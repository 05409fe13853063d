"""Offline replay of drafts against the requests they were recorded from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aner import llm, measure
from aner.llm import OptimizerProfile
from aner.measure import Recording

COUNTERS = ("proposed_tokens", "accepted_tokens", "verification_steps")


@pytest.fixture(scope="module")
def loaded(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=192, reproducible=True) as model:
        yield model


def recording(prompt: list[int], output: list[int], *, ends: tuple[int, ...] = (), ended_by_token: bool = False) -> Recording:
    return Recording(tuple(prompt), tuple(output), ends, ended_by_token, max_tokens=len(output), context=4096)


@pytest.mark.contract("S8", "S10")
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_replay_counts_what_the_real_request_counted(loaded: llm.Model, data: st.DataObject) -> None:
    """Any draft length, micro-batch, budget, overlap, end by a token or by the context; the lease's own cost table."""
    profile = OptimizerProfile(
        speculative_tokens=data.draw(st.integers(1, 32)), micro_batch_tokens=data.draw(st.sampled_from([2, 5, 64]))
    )
    period = data.draw(st.integers(1, 12))
    prompt = ([30 + i * 3 for i in range(period)] * 190)[: data.draw(st.integers(1, 191))]
    budget = data.draw(st.sampled_from([1, 2, 3, 40, 500]))
    with loaded.with_optimizer(profile) as tuned:
        plain = loaded.generate(prompt, max_tokens=budget, ignore_eos=True)
        stop_ids = data.draw(st.lists(st.sampled_from(plain.token_ids()), max_size=1))
        options = {"max_tokens": budget, "stop_token_ids": stop_ids}
        drafted = tuned.generate(prompt, **options)  # type: ignore[arg-type]
        recorded = measure.recording_of(tuned, prompt, drafted, **options)  # type: ignore[arg-type]
        replayed = measure.replay_as(tuned, recorded)
        timings = drafted.timings()
        assert [getattr(replayed, name) for name in COUNTERS] == [timings[f"speculative_{name}"] for name in COUNTERS]
        sampled = len(drafted.token_ids()) + (1 if recorded.ended_by_token else 0)
        assert sum(replayed.calls) + replayed.accepted_tokens == sampled - 1  # the first one came with the prompt
        # The same request without drafts is as good a recording.
        plain = loaded.generate(prompt, **options)  # type: ignore[arg-type]
        assert measure.replay_as(tuned, measure.recording_of(loaded, prompt, plain, **options)) == replayed  # type: ignore[arg-type]


def test_a_copy_of_the_prompt_is_drafted_from_the_prompt_and_a_loop_from_the_output() -> None:
    text = list(range(100, 180))
    copied = measure.replay(recording(text, text[:60]), 7, [])
    # [99 ..] stands before nothing else: the first draft needs two tokens of the copy, the rest is drafted in full
    assert copied.accepted_from_prompt == copied.accepted_tokens > 45
    looping = measure.replay(recording(text, [1, 2, 3] * 20), 7, [])
    assert looping.accepted_tokens > 45
    assert looping.accepted_from_prompt == 0


def test_the_estimated_time_is_the_sum_of_the_calls_by_the_cost_of_their_rows() -> None:
    costs = [1.0, 1.5, 1.75, 2.0]
    text = list(range(100, 130))
    replayed = measure.replay(recording(text, text[:25]), 3, costs)
    assert sum(replayed.calls) + replayed.accepted_tokens == 24
    assert replayed.time(costs) == sum(n * cost for n, cost in zip(replayed.calls[1:], costs, strict=False))
    assert replayed.speed_up(costs) == pytest.approx(24 / replayed.time(costs))
    assert replayed.speed_up(costs) > 1.5
    without = measure.replay(recording(text, text[:25]), 0, costs)
    assert (without.calls[1], without.proposed_tokens, without.speed_up(costs)) == (24, 0, 1.0)


def test_no_draft_holds_a_token_that_ends_a_generation() -> None:
    text = [*range(100, 110), 5, *range(110, 120)]
    free = measure.replay(recording(text, text), 7, [])
    cut = measure.replay(recording(text, text[:10], ends=(5,), ended_by_token=True), 7, [])
    assert free.accepted_tokens > 10
    assert cut.accepted_tokens == cut.proposed_tokens  # what was proposed ended before it


def test_outputs_are_compared_by_position_token_and_logit_gap(model: llm.Model) -> None:
    response = model.generate([20, 21, 22], max_tokens=8, ignore_eos=True, logprobs=5)
    ids = response.token_ids()
    logprobs = response.logprobs()
    assert logprobs is not None
    assert measure.first_difference(response, ids) is None
    runner_up = logprobs[3].top[1]
    found = measure.first_difference(response, [*ids[:3], runner_up.token_id, 0])
    assert found is not None
    assert (found.position, found.token, found.other_token) == (3, ids[3], runner_up.token_id)
    assert found.logit_gap == pytest.approx(logprobs[3].top[0].logprob - runner_up.logprob)
    shorter = measure.first_difference(response, ids[:5])
    assert shorter == measure.Difference(5, ids[5], -1, -1)
    assert measure.first_difference(model.generate([20], max_tokens=2, ignore_eos=True), [])  # no log probabilities: no gap


def test_a_loop_has_few_distinct_ngrams() -> None:
    assert measure.distinct_ngram_ratio(range(50)) == 1.0
    assert measure.distinct_ngram_ratio([1, 2, 3, 4, 5] * 20) == pytest.approx(5 / 97)
    assert measure.distinct_ngram_ratio([1, 2, 3]) == -1
