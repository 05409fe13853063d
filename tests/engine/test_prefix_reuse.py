"""Shared prefix reuse against plain uncached generation (contract section P)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aner import CancelledError, InvalidRequestError, llm
from aner.llm import OptimizerProfile

Synthetic = Callable[[str], Path]
A = [10 + i * 7 % 200 for i in range(60)]
B = [11 + i * 5 % 200 for i in range(60)]


def cached(response: llm.Response) -> int:
    return int(response.timings()["cached_input_tokens"])


def reusing(model: llm.Model, entries: int = 1, tokens: int = 400, **more: int) -> llm.Model:
    return model.with_optimizer(OptimizerProfile(prefix_cache_entries=entries, prefix_cache_tokens=tokens, **more))


@pytest.mark.contract("P3", "P4", "P12")
def test_a_repeated_prompt_replays_its_last_token_only_and_answers_the_same(model: llm.Model) -> None:
    tuned = reusing(model)
    expected = model.generate(A, max_tokens=8).token_ids()
    first, second = (tuned.generate(A, max_tokens=8) for _ in range(2))
    assert first.token_ids() == second.token_ids() == expected
    assert (cached(first), cached(second)) == (0, len(A) - 1)
    timings = second.timings()
    assert timings["evaluated_input_tokens"] == 1
    assert (timings["prefix_cache_hit"], first.timings()["prefix_cache_hit"]) == (1, 0)
    assert (timings["prefix_cache_entries"], timings["prefix_cache_retained_entries"]) == (1, 1)
    assert timings["prefix_cache_retained_tokens"] == len(A)


@pytest.mark.contract("P3", "P10")
def test_a_hit_is_the_longest_identical_prefix_and_nothing_else(model: llm.Model) -> None:
    tuned = reusing(model, entries=2)
    tuned.generate(A, max_tokens=2)
    tuned.generate(B, max_tokens=2)
    assert cached(tuned.generate(A[:40] + B, max_tokens=2)) == 40
    assert cached(tuned.generate(B[5:], max_tokens=2)) == 0  # a substring elsewhere is no prefix


@pytest.mark.contract("P2", "C4")
def test_independent_profiles_and_loads_exchange_nothing_and_siblings_share(model: llm.Model, synthetic: Synthetic) -> None:
    one, two = reusing(model), reusing(model)
    one.generate(A, max_tokens=2)
    assert cached(two.generate(A, max_tokens=2)) == 0
    assert cached(one.native_stateless().generate(A, max_tokens=2)) == len(A) - 1
    with llm.load(synthetic("llama"), context=512, reproducible=True) as other:
        assert cached(reusing(other).generate(A, max_tokens=2)) == 0


@pytest.mark.contract("P5")
def test_a_template_only_match_takes_another_context_while_there_is_room(model: llm.Model) -> None:
    tuned = reusing(model, entries=2)
    first, second = "alpha " * 12, "beta " * 12
    tuned.generate(first, max_tokens=2)
    tuned.generate(second, max_tokens=2)
    repeats = [tuned.generate(text, max_tokens=2).timings() for text in (first, second)]
    assert [t["cached_input_tokens"] for t in repeats] == [t["input_tokens"] - 1 for t in repeats]
    single = reusing(model, entries=1)  # without room it is displaced, the shared template still counts
    single.generate(first, max_tokens=2)
    assert 0 < cached(single.generate(second, max_tokens=2)) < 30
    assert cached(single.generate(first, max_tokens=2)) < 30


@pytest.mark.contract("P5")
def test_token_ids_that_begin_with_the_template_are_recognized_as_such(model: llm.Model) -> None:
    """As an application passes them that renders and tokenizes by itself."""
    tuned = reusing(model, entries=2)
    first, second = (
        model.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", add_bos=True, control=True)
        for text in ("alpha " * 12, "beta " * 12)
    )
    assert cached(tuned.generate("alpha " * 12, max_tokens=2)) == 0
    assert cached(tuned.generate(first, max_tokens=2)) == len(first) - 1  # the rendering is the template's own
    assert cached(tuned.generate(second, max_tokens=2)) == 0
    assert [cached(tuned.generate(ids, max_tokens=2)) for ids in (first, second)] == [len(first) - 1, len(second) - 1]


@pytest.mark.contract("P6")
def test_at_most_prefix_cache_tokens_of_the_prompt_are_retained_and_nothing_generated(model: llm.Model) -> None:
    tuned = reusing(model, tokens=25)
    output = tuned.generate(A, max_tokens=16).token_ids()
    response = tuned.generate(A + output, max_tokens=2)
    assert cached(response) == 25
    assert response.timings()["prefix_cache_retained_tokens"] == 25


@pytest.mark.contract("P7", "Z6")
def test_a_failed_or_cancelled_request_discards_its_context(model: llm.Model) -> None:
    tuned = reusing(model)
    tuned.generate(A, max_tokens=2)
    stream = tuned.stream(A + B, max_tokens=50)
    next(iter(stream), None)
    stream.cancel()
    with pytest.raises(CancelledError):
        stream.response()
    assert tuned.memory_summary()["retained_contexts"] == 0
    assert cached(tuned.generate(A, max_tokens=2)) == 0
    with pytest.raises(ZeroDivisionError):
        tuned.generate(A, max_tokens=9, on_text=lambda text: 1 // 0)
    assert cached(tuned.generate(A, max_tokens=2)) == 0


@pytest.mark.contract("P9")
def test_no_tokens_asked_for_leave_the_pool_alone(model: llm.Model) -> None:
    tuned = reusing(model)
    tuned.generate(A, max_tokens=2)
    before = dict(tuned.memory_summary())
    assert tuned.generate(B, max_tokens=0).text() == ""
    with pytest.raises(InvalidRequestError):
        tuned.generate(B, max_tokens=-1)
    assert dict(tuned.memory_summary()) == before
    assert cached(tuned.generate(A, max_tokens=2)) == len(A) - 1


@pytest.mark.contract("P11")
def test_a_context_pool_keeps_the_policy_starts_empty_and_bounds_the_idle(model: llm.Model) -> None:
    tuned = reusing(model, entries=3)
    tuned.generate(A, max_tokens=2)
    for size in range(5):
        pooled = tuned.with_context_pool(size)
        assert pooled.profile().prefix_cache_entries == 3
        for prompt in (A, B, A[::-1], B[::-1], A):
            pooled.generate(prompt, max_tokens=2)
        assert pooled.memory_summary()["retained_contexts"] == min(size, 3)
    assert cached(tuned.with_context_pool(2).generate(A, max_tokens=2)) == 0
    none = tuned.with_context_pool(0)
    assert [cached(none.generate(A, max_tokens=2)) for _ in range(2)] == [0, 0]


@pytest.mark.contract("P8")
def test_samplers_are_not_reused_with_a_prefix(model: llm.Model) -> None:
    tuned = reusing(model)
    plain = [model.generate(A, max_tokens=12, temperature=1.0, seed=seed).token_ids() for seed in (1, 2, 1)]
    warm = [tuned.generate(A, max_tokens=12, temperature=1.0, seed=seed).token_ids() for seed in (1, 2, 1)]
    assert warm == plain
    assert plain[0] == plain[2] != plain[1]


@pytest.fixture(scope="module", params=["llama", "llama-q8", "gemma3"])
def loaded(request: pytest.FixtureRequest, synthetic: Synthetic) -> Iterator[llm.Model]:
    with llm.load(synthetic(request.param), context=256, reproducible=True) as model:
        yield model


@pytest.mark.contract("P12", "P13", "L12", "V1")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_series_of_requests_on_a_warm_pool_answers_as_without_one(loaded: llm.Model, data: st.DataObject) -> None:
    """Windows of 32 positions, quantized weights, prompts that share any part, any micro-batch, small retention, failures between."""
    tuned = reusing(loaded, entries=data.draw(st.integers(1, 3)), tokens=data.draw(st.integers(1, 120)),
                    micro_batch_tokens=data.draw(st.sampled_from([1, 7, 32, 64])))  # fmt: skip
    for _ in range(data.draw(st.integers(2, 6))):
        kept = data.draw(st.integers(0, 60))
        prompt = A[:kept] + B[: data.draw(st.integers(1, 60))]
        budget = data.draw(st.sampled_from([1, 2, 9, 200]))
        stop = data.draw(st.sampled_from([None, "e", "\x16"]))
        if data.draw(st.booleans()):
            stream = tuned.stream(prompt, max_tokens=budget)
            next(stream, None)
            stream.cancel()
        plain = loaded.generate(prompt, max_tokens=budget, stop=stop)
        warm = tuned.generate(prompt, max_tokens=budget, stop=stop)
        assert (warm.output_hash(), warm.finish_reason(), warm.text()) == (
            plain.output_hash(),
            plain.finish_reason(),
            plain.text(),
        )
