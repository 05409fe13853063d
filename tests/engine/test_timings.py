"""What a response measured: names, types, what was not measured, and how the figures fit together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aner import llm
from tests.support.byte_vocabulary import EOS, ids_of

PROMPT = [1, *ids_of("Hello")]
DURATIONS = {"queue_duration", "template_duration", "tokenize_duration", "context_acquire_duration", "prefill_duration",
             "first_token_duration", "generation_duration", "context_clear_duration", "total_duration"}  # fmt: skip
COUNTS = {f"{name}_tokens" for name in ("input", "cached_input", "evaluated_input", "output")}
POOL = {"context_pool_reused", "prefix_cache_hit", "prefix_cache_entries", "prefix_cache_retained_entries",
        "prefix_cache_retained_tokens"}  # fmt: skip
SETTINGS = {"threads", "prefill_threads", "batch_tokens", "micro_batch_tokens"}
SPECULATION = {"speculative_proposed_tokens", "speculative_accepted_tokens", "speculative_verification_steps"}
BATCHING = {"batch_max_sequences", "batch_peak_sequences", "scheduler_steps", "batch_decoded_tokens"}


@pytest.fixture(scope="module")
def plain(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=2048) as model:
        yield model


@pytest.fixture(scope="module")
def timings(plain: llm.Model) -> Mapping[str, Any]:
    return plain.generate("Hello", max_tokens=20, ignore_eos=True).timings()


@pytest.mark.contract("T1")
def test_the_fields_are_those_of_the_contract_and_all_integers(timings: Mapping[str, Any]) -> None:
    assert set(timings) == DURATIONS | COUNTS | POOL | SETTINGS | SPECULATION | BATCHING
    assert {type(value) for value in timings.values()} == {int}


@pytest.mark.contract("T1")
def test_the_mapping_is_read_only(timings: Mapping[str, Any]) -> None:
    assert isinstance(timings, Mapping)
    with pytest.raises(TypeError):
        timings["total_duration"] = 0  # type: ignore[index]
    with pytest.raises(TypeError):
        del timings["total_duration"]  # type: ignore[attr-defined]
    for name in ("update", "pop", "clear", "setdefault"):
        assert not hasattr(timings, name)
    copy = dict(timings)
    copy["total_duration"] = -5
    assert timings["total_duration"] > 0


@pytest.mark.contract("T2")
def test_mechanisms_that_the_lease_does_not_have_are_not_measured(timings: Mapping[str, Any]) -> None:
    absent = {"queue_duration", "prefix_cache_hit", "prefix_cache_retained_entries", "prefix_cache_retained_tokens"}
    assert {timings[name] for name in absent | SPECULATION | BATCHING} == {-1}
    assert timings["cached_input_tokens"] == 0


@pytest.mark.contract("T1", "T3")
def test_durations_of_a_whole_request_are_positive_and_nest(timings: Mapping[str, Any]) -> None:
    measured = DURATIONS - {"queue_duration"}
    assert min(timings[name] for name in measured) > 0
    before = timings["template_duration"] + timings["tokenize_duration"] + timings["context_acquire_duration"]
    assert before + timings["prefill_duration"] <= timings["first_token_duration"] <= timings["total_duration"]
    after = timings["generation_duration"] + timings["context_clear_duration"]
    assert timings["first_token_duration"] + after <= timings["total_duration"]


@pytest.mark.contract("T1")
@pytest.mark.parametrize(("n_prompt", "n_output"), [(1, 1), (6, 2), (700, 5), (2047, 1)])
def test_token_counts_are_exact(plain: llm.Model, n_prompt: int, n_output: int) -> None:
    response = plain.generate([5] * n_prompt, max_tokens=n_output, ignore_eos=True)
    timings = response.timings()
    assert timings["input_tokens"] == timings["evaluated_input_tokens"] == n_prompt
    assert timings["output_tokens"] == len(response.token_ids()) == n_output


@pytest.mark.contract("T1", "O3")
def test_the_settings_in_effect_are_those_of_the_profile(plain: llm.Model, timings: Mapping[str, Any]) -> None:
    profile = plain.profile()
    for name in ("batch_tokens", "micro_batch_tokens", "prefix_cache_entries"):
        assert timings[name] in (getattr(profile, name), -1)
    assert timings["batch_tokens"] >= timings["micro_batch_tokens"] >= 1
    assert timings["threads"] >= 1
    assert timings["prefill_threads"] >= 1


@pytest.mark.contract("T2")
def test_what_a_prompt_of_token_ids_did_not_need_is_not_measured(plain: llm.Model) -> None:
    timings = plain.generate(PROMPT, max_tokens=3).timings()
    assert (timings["template_duration"], timings["tokenize_duration"]) == (-1, -1)
    raw = plain.generate("Hello", raw=True, max_tokens=3).timings()
    assert raw["template_duration"] == -1 < 0 < raw["tokenize_duration"]


@pytest.mark.contract("P9", "T2")
def test_a_request_for_no_tokens_measures_no_context_and_no_decode(plain: llm.Model) -> None:
    timings = plain.generate("Hello", max_tokens=0).timings()
    unmeasured = {"context_acquire_duration", "prefill_duration", "first_token_duration", "generation_duration",
                  "context_clear_duration", "context_pool_reused"}  # fmt: skip
    assert {timings[name] for name in unmeasured} == {-1}
    assert (timings["output_tokens"], timings["evaluated_input_tokens"]) == (0, 0)
    assert timings["input_tokens"] > 0
    assert timings["total_duration"] > 0


@pytest.mark.contract("T2", "T3")
def test_a_request_without_a_decode_step_has_no_generation_duration_and_no_rate(plain: llm.Model) -> None:
    for options in ({"max_tokens": 1}, {"max_tokens": 0}, {"logit_bias": {EOS: 100}}):
        response = plain.generate(PROMPT, **options)
        assert response.timings()["generation_duration"] == -1
        assert response.tokens_per_second() is None


@pytest.mark.contract("T3")
def test_the_rate_is_tokens_of_decode_steps_over_their_time(plain: llm.Model) -> None:
    response = plain.generate(PROMPT, max_tokens=21, ignore_eos=True)
    seconds = response.timings()["generation_duration"] / 1e9
    assert response.tokens_per_second() == pytest.approx(20 / seconds)


@pytest.mark.contract("T2")
def test_a_context_may_be_reused_without_a_cached_token(plain: llm.Model) -> None:
    plain.generate(PROMPT, max_tokens=1)
    timings = plain.generate(PROMPT, max_tokens=1).timings()
    assert (timings["context_pool_reused"], timings["cached_input_tokens"]) == (1, 0)


@pytest.mark.contract("T3")
def test_total_and_first_token_include_the_time_before_the_reader_came_and_the_work_does_not(plain: llm.Model) -> None:
    stream = plain.start(PROMPT, max_tokens=3, ignore_eos=True)
    time.sleep(0.05)
    timings = stream.response().timings()
    assert timings["first_token_duration"] >= 50_000_000
    assert timings["total_duration"] >= 50_000_000
    assert timings["prefill_duration"] + timings["generation_duration"] <= timings["total_duration"] - 50_000_000


@pytest.mark.contract("T1")
def test_the_outside_clock_agrees_with_the_total(plain: llm.Model) -> None:
    before = time.perf_counter_ns()
    timings = plain.generate([5] * 1500, max_tokens=8, ignore_eos=True).timings()
    outside = time.perf_counter_ns() - before
    assert 0.5 * outside < timings["total_duration"] <= outside
    work = timings["prefill_duration"] + timings["generation_duration"]
    assert 0.5 * timings["total_duration"] < work


@pytest.mark.contract("T1")
def test_the_table_for_people_has_every_field_and_says_what_was_not_measured(timings: Mapping[str, Any]) -> None:
    lines = str(timings).splitlines()
    assert [line.split()[0] for line in lines] == list(timings)
    assert next(line for line in lines if line.startswith("queue_duration")).endswith("not measured")
    assert next(line for line in lines if line.startswith("total_duration")).endswith("ms")
