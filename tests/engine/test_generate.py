"""Requests on an ordinary lease: what they choose, how much, and what they leave behind."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aner import ContextFullError, InvalidRequestError, errors, llm
from tests.support.byte_vocabulary import BOS, EOS, ids_of
from tests.support.reference_llama import ReferenceLlama

PROMPT = [BOS, *ids_of("Hello world")]
SAMPLED = {"temperature": 1.5, "top_k": 60, "top_p": 0.97, "min_p": 0.001, "max_tokens": 16, "ignore_eos": True}


def one_token_at_a_time(model: llm.Model, prompt: list[int], n: int, **options: object) -> list[int]:
    """The oracle: each token from a request of its own, whose whole context was evaluated for it."""
    history = list(prompt)
    for _ in range(n):
        history += model.generate(history, max_tokens=1, ignore_eos=True, **options).token_ids()
    return history[len(prompt) :]


@pytest.fixture(scope="module")
def exact(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    """Float32 weights, float32 KV, reference kernels."""
    with llm.load(synthetic("llama"), context=256, reproducible=True, kv_cache_type="f32") as model:
        yield model.with_optimizer(1, 1)


@pytest.fixture(scope="module")
def reference(synthetic: Callable[[str], Path]) -> ReferenceLlama:
    return ReferenceLlama(synthetic("llama"))


@pytest.fixture
def model(model: llm.Model) -> llm.Model:
    """The tiny model on one thread: quick also beside other work."""
    return model.with_optimizer(1, 1)


# -- which tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("V1")
def test_greedy_output_is_that_of_the_published_equations(exact: llm.Model, reference: ReferenceLlama) -> None:
    assert exact.generate(PROMPT, max_tokens=24, ignore_eos=True).token_ids() == reference.greedy(PROMPT, 24)


@pytest.mark.contract("V1", "T4")
def test_log_probabilities_are_those_of_the_published_equations(exact: llm.Model, reference: ReferenceLlama) -> None:
    response = exact.generate(PROMPT, max_tokens=3, ignore_eos=True, logprobs=20)
    entries = response.logprobs()
    assert entries is not None
    history = list(PROMPT)
    for token, entry in zip(response.token_ids(), entries, strict=True):
        expected = reference.logprobs(history)
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(expected[token], abs=1e-4)
        assert [top.token_id for top in entry.top] == list(expected.argsort()[::-1][:20])
        assert [top.logprob for top in entry.top] == pytest.approx([expected[top.token_id] for top in entry.top], abs=1e-4)
        history.append(token)


@pytest.mark.contract("V1")
@pytest.mark.parametrize(
    ("name", "kv_cache_type"),
    [("llama", "f16"), ("llama", "q8_0"), ("llama-f16", "bf16"), ("llama-q8", "f16"), ("llama-q4", "q4_0"), ("gemma3", "f16"),
     ("mamba", "f16"), ("lfm2", "f16")],
)  # fmt: skip
def test_greedy_output_equals_tokens_generated_one_at_a_time(
    synthetic: Callable[[str], Path], name: str, kv_cache_type: str
) -> None:
    with llm.load(synthetic(name), context=128, kv_cache_type=kv_cache_type, reproducible=True) as loaded:
        model = loaded.with_optimizer(1, 1)
        prompt = PROMPT * 4  # beyond the sliding window of gemma3 by the end
        response = model.generate(prompt, max_tokens=20, ignore_eos=True)
        assert response.token_ids() == one_token_at_a_time(model, prompt, 20)


@pytest.mark.contract("V1")
def test_a_prompt_of_several_chunks_gives_what_it_gives_token_by_token(synthetic: Callable[[str], Path]) -> None:
    with llm.load(synthetic("llama"), context=2048, reproducible=True) as loaded:
        model = loaded.with_optimizer(1, 1)
        micro_batch = model.profile().micro_batch_tokens
        prompt = [1, *(3 + i * 37 % 256 for i in range(2 * micro_batch + 5))]
        response = model.generate(prompt, max_tokens=3, ignore_eos=True)
        assert response.token_ids() == one_token_at_a_time(model, prompt, 3)


@pytest.mark.contract("V1", "T4")
def test_at_temperature_zero_the_best_log_probability_is_chosen(model: llm.Model) -> None:
    entries = model.generate(PROMPT, max_tokens=40, logprobs=1, ignore_eos=True).logprobs()
    assert entries is not None
    assert len(entries) == 40
    for entry in entries:
        assert [top.token_id for top in entry.top] == [entry.token_id]
        assert entry.top[0].logprob == entry.logprob < 0


@pytest.mark.contract("T4")
def test_log_probabilities_come_only_when_asked_for_and_name_the_bytes_of_each_token(model: llm.Model) -> None:
    assert model.generate(PROMPT, max_tokens=2).logprobs() is None
    response = model.generate(PROMPT, max_tokens=8, logprobs=True, ignore_eos=True)
    entries = response.logprobs()
    assert entries is not None
    assert all(entry.top == () for entry in entries)
    assert b"".join(entry.bytes for entry in entries).decode("utf-8", "replace") == response.text()


@pytest.mark.contract("V1", "T4", "Z7")
def test_a_seed_gives_the_same_tokens_on_every_lease_and_in_any_company(model: llm.Model) -> None:
    expected = {seed: model.generate(PROMPT, seed=seed, **SAMPLED).token_ids() for seed in (0, 1, 2**64 - 1)}
    assert len({tuple(tokens) for tokens in expected.values()}) == 3
    leases = [model, model.native_stateless(), model.with_context_pool(3)]
    streams = {seed: lease.start(PROMPT, seed=seed, **SAMPLED) for lease, seed in zip(leases, expected, strict=True)}
    readers = {seed: iter(stream) for seed, stream in streams.items()}
    order = random.Random(5)
    while readers:  # one step of one of them at a time
        seed = order.choice(list(readers))
        if next(readers[seed], None) is None:
            del readers[seed]
    assert {seed: stream.response().token_ids() for seed, stream in streams.items()} == expected


@pytest.mark.contract("T4", "Z7")
def test_a_drawn_seed_is_reported_and_repeats_its_output(model: llm.Model) -> None:
    first, second = (model.generate(PROMPT, **SAMPLED) for _ in range(2))
    assert first.seed() != second.seed()
    assert first.token_ids() != second.token_ids()
    assert model.generate(PROMPT, seed=first.seed(), **SAMPLED).token_ids() == first.token_ids()


@pytest.mark.contract("P8", "V1")
def test_nothing_of_a_request_reaches_the_next_one(model: llm.Model) -> None:
    plain = model.generate(PROMPT, max_tokens=16, ignore_eos=True)
    disturbed = {"repeat_penalty": 5.0, "presence_penalty": 2.0, "logit_bias": {plain.token_ids()[0]: -100.0}, "seed": 7}
    other = model.generate(PROMPT[::-1], max_tokens=16, temperature=2.0, **disturbed)
    again = model.generate(PROMPT, max_tokens=16, ignore_eos=True)
    assert other.token_ids() != plain.token_ids()
    assert again.token_ids() == plain.token_ids()
    assert again.output_hash() == plain.output_hash()
    assert again.timings()["evaluated_input_tokens"] == len(PROMPT)


# -- how many ----------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("Z7")
@pytest.mark.parametrize("n", [1, 2, 7])
def test_max_tokens_is_exact(model: llm.Model, n: int) -> None:
    response = model.generate(PROMPT, max_tokens=n, ignore_eos=True)
    assert (len(response.token_ids()), response.finish_reason()) == (n, "length")


@pytest.mark.contract("Z7")
def test_max_tokens_is_256_unless_it_is_given(model: llm.Model) -> None:
    assert len(model.generate(PROMPT, ignore_eos=True).token_ids()) == 256


@pytest.mark.contract("L15")
def test_a_prompt_fills_the_context_but_for_one_position_and_not_more(model: llm.Model) -> None:
    for _ in range(3):
        response = model.generate([5] * 511, max_tokens=50, ignore_eos=True)
        assert (len(response.token_ids()), response.finish_reason()) == (1, "length")
        for n in (512, 513, 5120):
            with pytest.raises(ContextFullError, match=rf"{n} tokens.*512"):
                model.generate([5] * n, max_tokens=1)


@pytest.mark.contract("L15")
@pytest.mark.parametrize("n_prompt", [1, 250, 500])
def test_output_ends_with_length_at_the_end_of_the_context(model: llm.Model, n_prompt: int) -> None:
    prompt = [5] * n_prompt
    response = model.generate(prompt, max_tokens=10_000, ignore_eos=True)
    assert (len(prompt) + len(response.token_ids()), response.finish_reason()) == (512, "length")


@pytest.mark.contract("L15")
def test_the_smallest_context_works(synthetic: Callable[[str], Path]) -> None:
    with llm.load(synthetic("llama"), context=16) as model:
        assert len(model.generate([5] * 15, ignore_eos=True).token_ids()) == 1
        assert len(model.generate([5], ignore_eos=True).token_ids()) == 15


@pytest.mark.contract("T4", "Z7")
def test_the_end_token_of_the_model_ends_with_stop_and_is_not_part_of_the_output(model: llm.Model) -> None:
    response = model.generate(PROMPT, logit_bias={EOS: 100.0})
    assert (response.text(), response.token_ids(), response.finish_reason()) == ("", [], "stop")
    delayed = model.generate(PROMPT, logit_bias={EOS: 100.0}, min_tokens=3)
    assert (len(delayed.token_ids()), delayed.finish_reason()) == (3, "stop")
    ignored = model.generate(PROMPT, logit_bias={EOS: 100.0}, ignore_eos=True, max_tokens=9)
    assert (len(ignored.token_ids()), ignored.finish_reason()) == (9, "length")


@pytest.mark.contract("T4", "Z7")
def test_a_stop_token_ends_with_stop_and_is_not_part_of_the_output(model: llm.Model) -> None:
    tokens = model.generate(PROMPT, max_tokens=20, ignore_eos=True).token_ids()
    for end in tokens:
        response = model.generate(PROMPT, max_tokens=20, ignore_eos=True, stop_token_ids=[end])
        assert response.token_ids() == tokens[: tokens.index(end)]
        assert response.finish_reason() == "stop"


@pytest.mark.contract("Z7")
def test_a_banned_token_never_comes_and_a_favoured_one_always(model: llm.Model) -> None:
    first = model.generate(PROMPT, max_tokens=1).token_ids()[0]
    banned = model.generate(PROMPT, max_tokens=30, temperature=2.0, logit_bias={first: float("-inf")}, seed=1, ignore_eos=True)
    assert first not in banned.token_ids()
    assert set(model.generate(PROMPT, max_tokens=5, logit_bias={70: 100}).token_ids()) == {70}


@pytest.mark.contract("Z7")
def test_when_every_token_is_banned_the_request_says_so_and_the_lease_goes_on(model: llm.Model) -> None:
    everything = dict.fromkeys(range(model.metadata()["vocabulary"]), float("-inf"))
    with pytest.raises(InvalidRequestError, match="ban every token"):
        model.generate(PROMPT, logit_bias=everything)
    assert len(model.generate(PROMPT, max_tokens=2, ignore_eos=True).token_ids()) == 2


@pytest.mark.contract("Z7")
def test_penalties_see_the_prompt_and_the_output_within_their_window(model: llm.Model) -> None:
    tokens = model.generate(PROMPT, max_tokens=60, ignore_eos=True).token_ids()
    penalties = {"presence_penalty": 2.0, "frequency_penalty": 2.0, "repeat_penalty": 10.0}
    fresh = model.generate(PROMPT, max_tokens=60, ignore_eos=True, penalty_window=-1, **penalties).token_ids()
    assert len(set(tokens)) < len(tokens), "the model repeats itself when nothing keeps it from it"
    assert len(set(fresh)) > len(set(tokens))
    unseen = model.generate(PROMPT, max_tokens=60, ignore_eos=True, penalty_window=0, **penalties)
    assert unseen.token_ids() == tokens


# -- what it gives back ------------------------------------------------------------------------------------------------------


@pytest.mark.contract("T4")
def test_the_output_hash_is_the_sha256_of_little_endian_ids(model: llm.Model) -> None:
    response = model.generate(PROMPT, max_tokens=9)
    expected = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in response.token_ids())).hexdigest()
    assert response.output_hash() == expected
    assert model.generate(PROMPT, max_tokens=0).output_hash() == hashlib.sha256(b"").hexdigest()


@pytest.mark.contract("T4")
def test_a_response_is_independent_of_its_model_and_of_what_callers_do_to_its_lists(synthetic: Callable[[str], Path]) -> None:
    with llm.load(synthetic("llama"), context=64) as model:
        response = model.generate(PROMPT, max_tokens=4, logprobs=2, ignore_eos=True)
    response.token_ids().clear()
    entries = response.logprobs()
    assert entries is not None
    entries.clear()
    assert len(response.token_ids()) == len(response.logprobs() or []) == 4
    assert "4 tokens, length" in repr(response)


# -- requests that cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.contract("E2")
def test_a_refused_request_leaves_the_lease_free(model: llm.Model) -> None:
    refusals = itertools.product(
        [{"max_tokens": -1}, {"stop": [""]}, {"min_tokens": 9, "max_tokens": 8}, {"stop_token_ids": [10**6]}],
        [model.generate, model.stream, model.start],
    )
    for options, call in refusals:
        with pytest.raises(InvalidRequestError) as caught:
            call(PROMPT, **options)  # type: ignore[operator]
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, errors.AnerError)
    assert len(model.generate(PROMPT, max_tokens=2, ignore_eos=True).token_ids()) == 2
