"""``load(reproducible=True)``: a request's tokens, and every bit of their log probabilities, depend on the request alone.

The oracle is the same text evaluated in another shape: what was decoded one token at a time is given again as a longer prompt,
whose prefill evaluates the same positions many rows at a time, below, at and across the boundary of a micro-batch (512).
Ordinary loads of most of these models differ here in the last bits.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aner import llm
from tests.conftest import SYNTHETIC
from tests.support.call_in_child import call_in_child

Synthetic = Callable[[str], Path]
MODELS = ("llama", "llama-f16", "llama-q8", "llama-q4", "gemma3", "mamba", "lfm2")
PROMPT = [random.Random(7).randrange(3, 259) for _ in range(498)]
N_OUTPUT = 40

Bits = list[Any]


def bits_of(response: llm.Response) -> Bits:
    """Each output token and its five likeliest rivals, with log probabilities to the last bit."""
    logprobs = response.logprobs()
    assert logprobs is not None
    return [[one.token_id, one.logprob.hex(), [[top.token_id, top.logprob.hex()] for top in one.top]] for one in logprobs]


def run(model: llm.Model, prompt: list[int], n: int = N_OUTPUT, **options: Any) -> tuple[list[int], Bits]:
    response = model.generate(prompt, max_tokens=n, ignore_eos=True, logprobs=5, **options)
    return response.token_ids(), bits_of(response)


@pytest.mark.contract("L12")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("options", [{}, {"flash_attention": "on"}, {"kv_cache_type": "q8_0"}], ids=["plain", "flash", "q8_0"])
def test_rows_evaluated_one_at_a_time_many_at_a_time_and_across_micro_batches_have_the_same_bits(
    synthetic: Synthetic, name: str, options: dict[str, Any]
) -> None:
    with llm.load(synthetic(name), context=1024, reproducible=True, **options) as model:
        assert model.memory_summary()["reproducible"] is True
        tokens, expected = run(model, PROMPT)
        for n_given in (1, 7, 13, 14, 15, 30):  # prompts of 499 to 528 tokens; from 513 on, two chunks
            assert run(model, PROMPT + tokens[:n_given], N_OUTPUT - n_given)[1] == expected[n_given:], n_given


@pytest.mark.contract("L12")
@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_short_prompts_and_single_rows_have_the_same_bits(synthetic: Synthetic, name: str) -> None:
    with llm.load(synthetic(name), context=64, reproducible=True) as model:
        tokens, expected = run(model, [5], 24)
        for n_given in range(1, 24):
            assert run(model, [5, *tokens[:n_given]], 24 - n_given)[1] == expected[n_given:]


@pytest.mark.contract("L12")
@pytest.mark.parametrize("name", MODELS)
def test_a_request_is_the_same_in_a_fresh_context_a_used_one_another_pool_and_another_load(synthetic: Synthetic, name: str) -> None:
    sampled = {"temperature": 0.9, "top_k": 40, "seed": 11}
    with llm.load(synthetic(name), context=600, reproducible=True) as model:
        expected = run(model, PROMPT[:200], 16), run(model, PROMPT[:200], 16, **sampled)
        for other in (PROMPT, [3], PROMPT[100:150]):
            run(model, other, 4)  # leaves its traces in the context that the next request takes
            assert (run(model, PROMPT[:200], 16), run(model, PROMPT[:200], 16, **sampled)) == expected
        assert run(model.with_context_pool(0), PROMPT[:200], 16) == expected[0]
    with llm.load(synthetic(name), context=1024, reproducible=True, mapped=False) as again:  # more cells, other addresses
        assert (run(again, PROMPT[:200], 16), run(again, PROMPT[:200], 16, **sampled)) == expected


def outputs_with(folder: str, n_cpus: int) -> dict[str, Any]:
    """Run every model on that many CPUs of those that this process may use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n_cpus])
    found: dict[str, Any] = {"threads": set()}
    for name in MODELS:
        with llm.load(Path(folder) / f"{name}.gguf", context=600, reproducible=True) as model:
            response = model.generate(PROMPT, max_tokens=12, ignore_eos=True, logprobs=5)
            found["threads"] |= {response.timings()["threads"], response.timings()["prefill_threads"]}
            found[name] = bits_of(response)
    return {**found, "threads": sorted(found["threads"])}


@pytest.mark.contract("L12")
def test_the_number_of_threads_does_not_change_a_bit(tmp_path: Path) -> None:
    for name in MODELS:
        SYNTHETIC[name](tmp_path / f"{name}.gguf")
    one, all_of_them = (call_in_child(outputs_with, tmp_path, n).checked() for n in (1, os.cpu_count()))
    assert one["threads"] == [1]
    assert [name for name in MODELS if one[name] != all_of_them[name]] == []


@pytest.mark.contract("L12")
@pytest.mark.real_model
def test_a_real_quantized_model_has_the_same_bits_in_every_shape(demo_model_path: Path) -> None:
    with llm.load(demo_model_path, context=256, reproducible=True) as model:
        prompt = model.tokenize("The quick brown fox jumps over the lazy dog, and the")
        tokens, expected = run(model, prompt, 12)
        for n_given in (1, 4, 11):
            assert run(model, prompt + tokens[:n_given], 12 - n_given)[1] == expected[n_given:]


@pytest.mark.contract("L12")
def test_an_ordinary_load_gives_equal_tokens_for_equal_shapes(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama-q4"), context=600) as model, llm.load(synthetic("llama-q4"), context=600) as other:
        assert model.memory_summary()["reproducible"] is False
        expected = run(model, PROMPT)
        assert run(model, PROMPT) == run(other, PROMPT) == expected
