"""Prompt-lookup speculation against plain decoding (contract section S)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aner import InvalidRequestError, llm
from aner.llm import OptimizerProfile

Synthetic = Callable[[str], Path]
REPEATING = [20, 21, 22, 23, 24, 25] * 10


def drafting(model: llm.Model, tokens: int = 6, **more: int) -> llm.Model:
    return model.with_optimizer(OptimizerProfile(speculative_tokens=tokens, **more))


@pytest.fixture(scope="module", params=["llama", "llama-q4", "gemma3"])
def loaded(request: pytest.FixtureRequest, synthetic: Synthetic) -> Iterator[llm.Model]:
    with llm.load(synthetic(request.param), context=192, reproducible=True) as model:
        yield model


@pytest.mark.contract("S2", "S7", "S8")
def test_drafts_change_the_counters_and_not_the_tokens(model: llm.Model) -> None:
    plain = model.generate(REPEATING, max_tokens=300, ignore_eos=True)
    drafted = drafting(model).generate(REPEATING, max_tokens=300, ignore_eos=True)
    assert drafted.token_ids() == plain.token_ids()
    timings = drafted.timings()
    assert 0 < timings["speculative_accepted_tokens"] <= timings["speculative_proposed_tokens"]
    assert 0 < timings["speculative_verification_steps"] <= timings["speculative_proposed_tokens"]
    assert plain.timings()["speculative_proposed_tokens"] == -1


@pytest.mark.contract("S5")
def test_drafts_need_no_second_model_file_or_weights(model: llm.Model) -> None:
    def mapped() -> set[str]:
        return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".gguf")}

    before = mapped()
    tuned = drafting(model)
    tuned.generate(REPEATING, max_tokens=20)
    assert mapped() == before
    assert tuned.memory_summary()["weights_bytes_shared"] == model.memory_summary()["weights_bytes_shared"]


@pytest.mark.contract("S8")
def test_accepted_tokens_are_exactly_the_calls_that_were_saved(model: llm.Model) -> None:
    """Every call emits one token of the target's own, so calls + accepted = tokens."""
    tuned = drafting(model)
    timings = tuned.generate(REPEATING, max_tokens=100, ignore_eos=True).timings()
    steps_with_drafts = timings["speculative_verification_steps"]
    assert timings["output_tokens"] == 100
    assert timings["speculative_accepted_tokens"] <= 100 - 1 - steps_with_drafts


@pytest.mark.contract("S6")
def test_a_temperature_is_refused_and_exact_greedy_options_are_applied(model: llm.Model) -> None:
    tuned = drafting(model)
    with pytest.raises(InvalidRequestError, match="greedy only"):
        tuned.generate(REPEATING, temperature=0.5)
    for options in ({"repeat_penalty": 1.5, "penalty_window": -1}, {"logit_bias": {25: -float("inf")}}, {"min_tokens": 30},
                    {"ignore_eos": True}, {"frequency_penalty": 1.0, "presence_penalty": -1.0}):  # fmt: skip
        expected = model.generate(REPEATING, max_tokens=60, **options).token_ids()  # type: ignore[arg-type]
        assert tuned.generate(REPEATING, max_tokens=60, **options).token_ids() == expected  # type: ignore[arg-type]


@pytest.mark.contract("S4", "Z5")
def test_streaming_sees_verified_text_only_and_all_of_it(model: llm.Model) -> None:
    tuned = drafting(model)
    whole = model.generate(REPEATING, max_tokens=80).text()
    assert "".join(tuned.stream(REPEATING, max_tokens=80)) == whole


@pytest.mark.contract("S1", "S3", "S7", "S9", "V1")
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_request_answers_as_without_drafts(loaded: llm.Model, data: st.DataObject) -> None:
    """Random overlap, draft lengths, micro-batches, budgets, stops, the end of the context, with and without a warm prefix."""
    tuned = drafting(loaded, tokens=data.draw(st.integers(1, 32)), micro_batch_tokens=data.draw(st.sampled_from([2, 5, 64])),
                     prefix_cache_entries=data.draw(st.integers(0, 1)))  # fmt: skip
    for _ in range(data.draw(st.integers(1, 3))):
        period = data.draw(st.integers(1, 12))
        prompt = ([30 + i * 3 for i in range(period)] * 190)[: data.draw(st.integers(1, 191))]
        budget = data.draw(st.sampled_from([1, 2, 3, 40, 500]))
        plain = loaded.generate(prompt, max_tokens=budget)
        stops: list[str | None] = [None]
        if len(plain.text()) > 3:
            at = data.draw(st.integers(0, len(plain.text()) - 2))
            stops.append(plain.text()[at : at + 2])
        for stop in stops:
            plain = loaded.generate(prompt, max_tokens=budget, stop=stop)
            drafted = tuned.generate(prompt, max_tokens=budget, stop=stop)
            assert drafted.output_hash() == plain.output_hash()
            assert (drafted.text(), drafted.finish_reason()) == (plain.text(), plain.finish_reason())
