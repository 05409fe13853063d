"""The pool of an ordinary lease: empty contexts, lent again, no more than its bound, none for requests that need none."""

from __future__ import annotations

import pytest

from aner import ConfigurationError, ContextFullError, InvalidRequestError, llm
from tests.support.byte_vocabulary import BOS, ids_of

PROMPT = [BOS, *ids_of("Hello world")]


@pytest.fixture
def model(model: llm.Model) -> llm.Model:
    """The tiny model on one thread: quick also beside other work."""
    return model.with_optimizer(1, 1)


def reused(model: llm.Model) -> int:
    return int(model.generate(PROMPT, max_tokens=1).timings()["context_pool_reused"])


@pytest.mark.contract("P11")
def test_a_pool_of_zero_retains_nothing(model: llm.Model) -> None:
    lease = model.with_context_pool(0)
    assert [reused(lease) for _ in range(3)] == [0, 0, 0]
    assert lease.memory_summary()["retained_contexts"] == lease.memory_summary()["retained_contexts_bytes"] == 0


@pytest.mark.contract("P1", "P11")
@pytest.mark.parametrize("max_idle", [1, 2, 3, 4])
def test_a_pool_lends_its_idle_contexts_again_and_keeps_no_more_than_its_bound(model: llm.Model, max_idle: int) -> None:
    lease = model.with_context_pool(max_idle)
    assert (lease.profile().max_idle_contexts, model.profile().max_idle_contexts) == (max_idle, 1)
    siblings = [lease.native_stateless() for _ in range(6)]
    streams = [sibling.start(PROMPT, max_tokens=1, ignore_eos=True) for sibling in siblings]  # six contexts at once
    first = [stream.response().timings() for stream in streams]
    assert sum(timings["context_pool_reused"] for timings in first) == 1, "the one that proved the settings"
    assert lease.memory_summary()["retained_contexts"] == max_idle
    streams = [sibling.start(PROMPT, max_tokens=1, ignore_eos=True) for sibling in siblings]
    second = [stream.response().timings() for stream in streams]
    assert sum(timings["context_pool_reused"] for timings in second) == max_idle


@pytest.mark.contract("P1")
def test_an_ordinary_lease_retains_empty_contexts_and_reports_no_cached_tokens(model: llm.Model) -> None:
    for _ in range(3):
        timings = model.generate(PROMPT, max_tokens=4).timings()
        assert (timings["context_pool_reused"], timings["cached_input_tokens"]) == (1, 0)
        assert timings["evaluated_input_tokens"] == timings["input_tokens"] == len(PROMPT)
    assert model.memory_summary()["retained_contexts"] == 1


@pytest.mark.contract("P7")
def test_a_request_that_does_not_succeed_discards_its_context(model: llm.Model) -> None:
    assert model.memory_summary()["retained_contexts"] == 1
    stream = model.start(PROMPT, max_tokens=50, ignore_eos=True)
    next(stream)
    assert model.memory_summary()["retained_contexts"] == 0
    stream.cancel()
    assert model.memory_summary()["retained_contexts"] == 0
    assert [reused(model), reused(model)] == [0, 1]


@pytest.mark.contract("P11")
@pytest.mark.parametrize("max_idle", [5, -1, True, False, "x", None, 1.0, 2**31, 10**30])
def test_a_pool_size_outside_zero_to_four_is_refused(model: llm.Model, max_idle: object) -> None:
    with pytest.raises(ConfigurationError, match=r"max_idle .*0\.\.4"):
        model.with_context_pool(max_idle)  # type: ignore[arg-type]


@pytest.mark.contract("P9")
def test_max_tokens_zero_checks_the_input_and_touches_no_context(model: llm.Model) -> None:
    for max_idle in (0, 1, 4):
        lease = model.with_context_pool(max_idle)
        before = dict(lease.memory_summary())
        response = lease.generate(PROMPT, max_tokens=0)
        assert (response.text(), response.token_ids(), response.finish_reason()) == ("", [], "length")
        assert response.timings()["context_pool_reused"] == response.timings()["context_acquire_duration"] == -1
        assert list(lease.stream(PROMPT, max_tokens=0)) == []
        assert dict(lease.memory_summary()) == before
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        model.generate([10**6], max_tokens=0)
    with pytest.raises(ContextFullError, match="513"):
        model.generate([5] * 513, max_tokens=0)
    with pytest.raises(InvalidRequestError, match="top_p"):
        model.generate(PROMPT, max_tokens=0, top_p=2)
