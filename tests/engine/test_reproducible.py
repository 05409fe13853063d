"""``load(reproducible=True)``: a request's tokens, and every bit of their log probabilities, depend on the request alone.

The oracle is the same text evaluated in another shape: what was decoded one token at a time is given again as a longer prompt,
whose prefill evaluates the same positions many rows at a time, below, at and across the boundary of a micro-batch (512).
Ordinary loads of most of these models differ here in the last bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aner_native
import pytest

from aner import llm

Synthetic = Callable[[str], Path]
MODELS = ("llama", "llama-f16", "llama-q8", "llama-q4", "gemma3", "mamba", "lfm2")
PROMPT = [random.Random(7).randrange(3, 259) for _ in range(498)]
N_OUTPUT = 20

Bits = list[Any]


def run(model: llm.Model, prompt: list[int], n: int = N_OUTPUT, **options: Any) -> tuple[list[int], Bits]:
    """The output tokens, and each with its five likeliest rivals and log probabilities to the last bit."""
    response = model.generate(prompt, max_tokens=n, ignore_eos=True, logprobs=5, **options)
    logprobs = response.logprobs()
    assert logprobs is not None
    bits = [(one.token_id, one.logprob.hex(), [(top.token_id, top.logprob.hex()) for top in one.top]) for one in logprobs]
    return response.token_ids(), bits


@pytest.mark.contract("L12")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in MODELS),
        *((name, {"flash_attention": "on"}) for name in ("llama", "llama-q8", "gemma3", "lfm2")),
        *((name, {"kv_cache_type": "q8_0"}) for name in ("llama-f16", "gemma3", "lfm2")),
    ],
)
def test_rows_evaluated_one_at_a_time_many_at_a_time_and_across_micro_batches_have_the_same_bits(
    synthetic: Synthetic, name: str, options: dict[str, Any]
) -> None:
    with llm.load(synthetic(name), context=1024, reproducible=True, **options) as model:
        assert model.memory_summary()["reproducible"] is True
        tokens, expected = run(model, PROMPT)
        for n_given in (1, 14, 15):  # prompts of 499, 512 and 513 tokens: the last one in two chunks
            assert run(model, PROMPT + tokens[:n_given], N_OUTPUT - n_given)[1] == expected[n_given:], n_given


@pytest.mark.contract("L12")
@pytest.mark.parametrize("name", MODELS)
def test_neither_threads_nor_the_size_of_a_batch_changes_a_bit(synthetic: Synthetic, name: str) -> None:
    n_threads = aner_native.usable_cpus()
    with llm.load(synthetic(name), context=300, reproducible=True) as model:
        expected = run(model, PROMPT[:200])
        for settings in (
            (1, 1),
            (n_threads, 1),
            (1, n_threads, 512, 1),
            (0, 0, 512, 7),
            (0, 0, 64, 64),
            (0, 0, 199),
            (0, 0, 200),
        ):
            lease = model.with_optimizer(*settings)
            assert run(lease, PROMPT[:200]) == expected, settings


@pytest.mark.contract("L12")
@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_short_prompts_and_single_rows_have_the_same_bits(synthetic: Synthetic, name: str) -> None:
    with llm.load(synthetic(name), context=64, reproducible=True) as model:
        tokens, expected = run(model, [5], 12)
        for n_given in range(1, 12):
            assert run(model, [5, *tokens[:n_given]], 12 - n_given)[1] == expected[n_given:]


@pytest.mark.contract("L12", "P12")
@pytest.mark.parametrize("name", ["llama", "llama-q4", "llama-f16"])
def test_a_cached_prefix_and_rejected_drafts_do_not_change_a_token(synthetic: Synthetic, name: str) -> None:
    repeating = PROMPT[:40] * 4  # every suffix was seen before, and what followed it there is rarely what follows here
    with llm.load(synthetic(name), context=300, reproducible=True) as model:
        prompts = [repeating, repeating[:100] + PROMPT[300:340], repeating[:101], repeating]
        expected = [run(model, prompt)[0] for prompt in prompts]
        lease = model.with_optimizer(0, 0, 512, 512, 2, 300, 8)
        responses = [lease.generate(prompt, max_tokens=N_OUTPUT, ignore_eos=True) for prompt in prompts]
    assert [response.token_ids() for response in responses] == expected
    timings = [response.timings() for response in responses]
    assert sum(one["cached_input_tokens"] for one in timings) >= 250
    assert sum(one["speculative_proposed_tokens"] - one["speculative_accepted_tokens"] for one in timings) > 0


@pytest.mark.contract("L12")
@pytest.mark.parametrize("name", MODELS)
def test_a_request_is_the_same_in_a_fresh_context_a_used_one_another_pool_and_another_load(
    synthetic: Synthetic, name: str
) -> None:
    sampled: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "seed": 11}
    with llm.load(synthetic(name), context=300, reproducible=True) as model:
        expected = run(model, PROMPT[:150]), run(model, PROMPT[:150], **sampled)
        for other in (PROMPT[200:], [3]):
            run(model, other[:250], 4)  # leaves its traces in the context that the next request takes
            assert (run(model, PROMPT[:150]), run(model, PROMPT[:150], **sampled)) == expected
        assert run(model.with_context_pool(0), PROMPT[:150]) == expected[0]
    with llm.load(synthetic(name), context=1024, reproducible=True, mapped=False) as again:  # more cells, other addresses
        assert (run(again, PROMPT[:150]), run(again, PROMPT[:150], **sampled)) == expected


@pytest.mark.contract("L12")
@pytest.mark.real_model
def test_a_real_quantized_model_has_the_same_bits_in_every_shape(demo_model_path: Path) -> None:
    with llm.load(demo_model_path, context=128, reproducible=True) as model:
        prompt = model.tokenize("The quick brown fox jumps over the lazy dog, and the")
        tokens, expected = run(model, prompt, 8)
        for n_given in (1, 7):
            assert run(model, prompt + tokens[:n_given], 8 - n_given)[1] == expected[n_given:]
        assert run(model.with_optimizer(1, 1, 512, 5), prompt, 8)[1] == expected


@pytest.mark.contract("L12")
def test_an_ordinary_load_gives_equal_tokens_for_equal_shapes(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama-q4"), context=600) as model, llm.load(synthetic("llama-q4"), context=600) as other:
        assert model.memory_summary()["reproducible"] is False
        expected = run(model, PROMPT)
        assert run(model, PROMPT) == run(other, PROMPT) == expected
