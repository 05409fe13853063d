"""Builders: what a profile is, what is refused and when, what derived leases share (contract section O)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aner import ConfigurationError, UnsupportedCombinationError, llm
from aner.llm import OptimizerProfile

Synthetic = Callable[[str], Path]
SEVEN = ("threads", "prefill_threads", "batch_tokens", "micro_batch_tokens", "prefix_cache_entries", "prefix_cache_tokens",
         "speculative_tokens")  # fmt: skip


@pytest.mark.contract("O1", "L6")
def test_a_derived_lease_shares_weights_and_fingerprint_and_leaves_its_source_as_it_was(model: llm.Model) -> None:
    before = (model.profile(), dict(model.memory_summary()))
    tuned = model.with_optimizer(1, 1, 64, 32, 1, 100, 4)
    same = llm.with_optimizer(model, 1, 1, 64, 32, 1, 100, 4)
    assert tuned.profile() == same.profile() != model.profile()
    assert tuned.fingerprint() == model.fingerprint()
    assert (model.profile(), dict(model.memory_summary())) == before
    assert tuned.memory_summary()["weights_bytes_shared"] == model.memory_summary()["weights_bytes_shared"]


@pytest.mark.contract("O1", "O9")
def test_a_derived_lease_outlives_its_source(model: llm.Model) -> None:
    expected = model.generate("hello", max_tokens=8).token_ids()
    tuned = model.with_optimizer(OptimizerProfile(prefix_cache_entries=1))
    model.close()
    assert tuned.generate("hello", max_tokens=8).token_ids() == expected


@pytest.mark.contract("O2")
def test_a_later_setting_needs_all_before_it_and_the_error_names_the_missing_ones(model: llm.Model) -> None:
    values = {"threads": 1, "prefill_threads": 1, "batch_tokens": 32, "micro_batch_tokens": 16, "prefix_cache_entries": 1,
              "prefix_cache_tokens": 64, "speculative_tokens": 2}  # fmt: skip
    for i, name in enumerate(SEVEN):
        given = {key: values[key] for key in reversed(SEVEN[: i + 1])}  # any keyword order
        profile = model.with_optimizer(**given).profile()
        assert {key: getattr(profile, key) for key in given} == given
        if i > 0:
            with pytest.raises(ConfigurationError) as error:
                model.with_optimizer(**{name: values[name]})
            assert all(missing in str(error.value) for missing in SEVEN[:i])
    with pytest.raises(ConfigurationError, match="prefill_threads"):
        model.with_optimizer(threads=0, batch_tokens=32)
    with pytest.raises(TypeError):
        model.with_optimizer(nonsense=1)  # type: ignore[call-arg]


@pytest.mark.contract("O2", "O7")
def test_a_profile_is_a_frozen_value_whose_defaults_fit_any_context(synthetic: Synthetic) -> None:
    profile = OptimizerProfile()
    with pytest.raises(dataclasses.FrozenInstanceError):
        profile.threads = 2  # type: ignore[misc]
    with llm.load(synthetic("llama"), context=16) as small:
        tuned = small.with_optimizer(OptimizerProfile(prefix_cache_entries=1))
        assert tuned.profile().prefix_cache_tokens == 16
        timings = tuned.generate([5, 6, 7], max_tokens=2).timings()
        assert (timings["batch_tokens"], timings["micro_batch_tokens"]) == (16, 16)
        with pytest.raises(ConfigurationError, match="not both"):
            small.with_optimizer(profile, 1)


@pytest.mark.contract("O3")
def test_zero_threads_are_chosen_and_reported_and_more_than_usable_are_refused(model: llm.Model) -> None:
    timings = model.with_optimizer(0, 0).generate("hello", max_tokens=2).timings()
    assert timings["threads"] >= 1
    assert timings["prefill_threads"] >= 1
    one = model.with_optimizer(1, 1).generate("hello", max_tokens=2).timings()
    assert (one["threads"], one["prefill_threads"]) == (1, 1)
    with pytest.raises(ConfigurationError, match=r"threads is 513: it must be within 0\.\."):
        model.with_optimizer(513)


@pytest.mark.contract("O4")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0, 0, 0, 1), "batch_tokens is 0: it must be within 1..65536"),
        ((0, 0, 65537, 1), "batch_tokens is 65537"),
        ((0, 0, 64, 65), "micro_batch_tokens is 65: it must be within 1..64"),
        ((0, 0, 64, 0), "micro_batch_tokens is 0"),
        ((0, 0, 64, 32, 5), "prefix_cache_entries is 5: it must be within 0..4"),
        ((0, 0, 64, 32, -1), "prefix_cache_entries is -1"),
        ((0, 0, 64, 32, 0, 0), "prefix_cache_tokens is 0: it must be within 1..512"),
        ((0, 0, 64, 32, 0, 513), "prefix_cache_tokens is 513"),
        ((0, 0, 64, 32, 0, 64, 33), "speculative_tokens is 33: it must be within 0..32"),
        ((-1,), "threads is -1"),
        ((True,), "threads must be an integer"),
        ((0, "2"), "prefill_threads must be an integer"),
        ((0, 0, 2**31), "batch_tokens must be an integer"),
    ],
)
def test_a_setting_out_of_range_is_refused_at_the_call_with_limit_and_value(
    model: llm.Model, settings: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        model.with_optimizer(*settings)
    assert message in str(error.value)


@pytest.mark.contract("O4", "P1")
def test_prefix_cache_tokens_alone_enable_nothing(model: llm.Model) -> None:
    tuned = model.with_optimizer(0, 0, 64, 32, 0, 100)
    for _ in range(2):
        assert tuned.generate("the same prompt", max_tokens=2).timings()["cached_input_tokens"] == 0
    assert not tuned.supports("prefix_reuse")


@pytest.mark.contract("O5")
def test_a_logical_batch_of_one_leaves_no_room_for_drafts_and_decodes_correctly(model: llm.Model) -> None:
    expected = model.generate([7, 8, 9] * 8, max_tokens=24).token_ids()
    response = model.with_optimizer(0, 0, 1, 1, 0, 64, 6).generate([7, 8, 9] * 8, max_tokens=24)
    assert response.token_ids() == expected
    assert response.timings()["speculative_proposed_tokens"] == 0
    assert response.timings()["speculative_verification_steps"] == 0


@pytest.mark.contract("O6", "P13")
@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_a_memory_that_cannot_be_trimmed_refuses_reuse_and_speculation_when_configured(synthetic: Synthetic, name: str) -> None:
    with llm.load(synthetic(name), context=128) as recurrent:
        for profile in (OptimizerProfile(prefix_cache_entries=1), OptimizerProfile(speculative_tokens=2)):
            with pytest.raises(UnsupportedCombinationError, match="positions cannot be taken back"):
                recurrent.with_optimizer(profile)
        plain = recurrent.with_optimizer(OptimizerProfile(micro_batch_tokens=8))
        assert not plain.supports("prefix_reuse")
        assert not plain.supports("speculation")
        assert plain.generate([5, 6, 7], max_tokens=4).token_ids() == recurrent.generate([5, 6, 7], max_tokens=4).token_ids()


@pytest.mark.contract("T5", "P13")
def test_supports_says_what_this_lease_does(model: llm.Model) -> None:
    tuned = model.with_optimizer(OptimizerProfile(prefix_cache_entries=1, speculative_tokens=2))
    assert (model.supports("prefix_reuse"), model.supports("speculation")) == (False, False)
    assert (tuned.supports("prefix_reuse"), tuned.supports("speculation")) == (True, True)
    for operation in ("generate", "stream", "chat", "session", "adapter", "optimizer", "context_pool"):
        assert model.supports(operation)
    tuned.close()
    assert not any(tuned.supports(operation) for operation in ("generate", "prefix_reuse", "speculation"))
