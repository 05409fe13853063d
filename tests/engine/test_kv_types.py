"""Every KV type under every flash-attention policy and head size: refused at load, or right."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from aner import ConfigurationError, llm
from tests.support import gguf_files

Synthetic = Callable[[str], Path]
TYPES = ("f16", "f32", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
POLICIES = ("auto", "on", "off")
SIZES = {
    16: gguf_files.Size(n_embd=64, n_head=4, n_kv=2, n_ff=64),
    32: gguf_files.Size(n_embd=64, n_head=2, n_kv=1, n_ff=64),
    48: gguf_files.Size(n_embd=96, n_head=2, n_kv=1, n_ff=64),
    64: gguf_files.Size(n_embd=128, n_head=2, n_kv=1, n_ff=64),
}
#: How far the next token's distribution may lie, in total variation, from that with f32 keys and values. Rounding to the type
#: takes at most two thirds of it here; the distributions after unrelated prompts lie 0.58 to 0.83 apart.
TOLERANCE = {"f32": 0.005, "f16": 0.005, "bf16": 0.02, "q8_0": 0.04, "q5_1": 0.2, "q5_0": 0.2}
PROMPTS = [[1, *(random.Random(i).randrange(3, 259) for _ in range(24))] for i in range(4)]

Distributions = list[dict[int, float]]


@pytest.fixture(scope="module")
def of_head_size(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("heads")
    return {head: gguf_files.llama(folder / f"{head}.gguf", size=size) for head, size in SIZES.items()}


def distributions_of(model: llm.Model) -> Distributions:
    """Probabilities of the 20 likeliest tokens after each prompt, whose positions are read back from the KV memory."""
    found = []
    for prompt in PROMPTS:
        logprobs = model.generate(prompt, max_tokens=1, logprobs=20, ignore_eos=True).logprobs()
        assert logprobs is not None
        found.append({one.token_id: math.exp(one.logprob) for one in logprobs[0].top})
    return found


def variation(some: Distributions, others: Distributions) -> float:
    """Total variation, averaged over the prompts."""
    pairs = list(zip(some, others, strict=True))
    return sum(abs(a.get(t, 0) - b.get(t, 0)) for a, b in pairs for t in a.keys() | b.keys()) / 2 / len(pairs)


@pytest.fixture(scope="module")
def exact(of_head_size: dict[int, Path]) -> dict[int, Distributions]:
    found = {}
    for head, path in of_head_size.items():
        with llm.load(path, context=64, kv_cache_type="f32", flash_attention="off", reproducible=True) as model:
            found[head] = distributions_of(model)
    return found


@pytest.mark.contract("L7", "L8", "E3")
@pytest.mark.parametrize("head", SIZES)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", TYPES)
def test_each_combination_is_refused_with_the_reason_or_gives_the_right_distribution(
    of_head_size: dict[int, Path], exact: dict[int, Distributions], kind: str, policy: str, head: int
) -> None:
    quantized = kind not in ("f16", "f32", "bf16")
    reasons = []
    if quantized and head % 32 != 0:
        reasons.append(f"'{kind}' stores blocks of 32 elements, and this model's key heads have {head}")
    if quantized and policy == "off":
        reasons.append(f"'{kind}' needs flash attention, which was set to 'off'")
    if reasons:
        with pytest.raises(ConfigurationError) as refused:
            llm.load(of_head_size[head], context=64, kv_cache_type=kind, flash_attention=policy)
        assert any(reason in str(refused.value) for reason in reasons)
        return
    with llm.load(of_head_size[head], context=64, kv_cache_type=kind, flash_attention=policy) as model:
        memory = model.memory_summary()
        assert memory["kv_cache_type"] == kind
        assert memory["flash_attention_requested"] == policy
        automatic = "prefill" if kind in ("f16", "f32") else "off"
        assert memory["flash_attention_resolved"] == (
            "on" if policy == "on" or quantized else automatic if policy == "auto" else "off"
        )
        assert variation(distributions_of(model), exact[head]) < TOLERANCE.get(kind, 0.3)
        assert len(model.generate(PROMPTS[0], max_tokens=20, ignore_eos=True).token_ids()) == 20


@pytest.mark.contract("L7", "L8")
@pytest.mark.parametrize("name", ["gemma3", "mamba", "lfm2"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["f32", "q8_0", "q4_0"])
def test_other_kinds_of_memory_hold_each_type_or_refuse_it_at_load(
    synthetic: Synthetic, name: str, policy: str, kind: str
) -> None:
    if kind != "f32" and policy == "off":
        with pytest.raises(ConfigurationError, match=f"{kind}.*flash attention"):
            llm.load(synthetic(name), context=64, kv_cache_type=kind, flash_attention=policy)
        return
    with llm.load(synthetic(name), context=64, kv_cache_type=kind, flash_attention=policy) as model:
        assert model.memory_summary()["flash_attention_requested"] == policy
        assert len(model.generate(PROMPTS[0], max_tokens=8, ignore_eos=True).token_ids()) == 8


@pytest.mark.contract("L7", "E3")
@pytest.mark.parametrize("kind", ["", "F16", "f16 ", "q8_1", "q2_k", "q4_k", "i32", "auto", "q8_0\0", "\u0000", "q" * 1000])
def test_an_unknown_type_is_refused_with_the_list(synthetic: Synthetic, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"kv_cache_type is .* must be one of " + ", ".join(TYPES)):
        llm.load(synthetic("llama"), kv_cache_type=kind)


@pytest.mark.contract("L8", "E3")
@pytest.mark.parametrize("policy", ["", "ON", "yes", "true", "enabled", "auto "])
def test_an_unknown_policy_is_refused_with_the_list(synthetic: Synthetic, policy: str) -> None:
    with pytest.raises(ConfigurationError, match=r"flash_attention is .* must be one of auto, on, off"):
        llm.load(synthetic("llama"), flash_attention=policy)


@pytest.mark.contract("L7", "L8")
@pytest.mark.real_model
@pytest.mark.parametrize(
    ("kind", "policy"), [("f16", "off"), ("bf16", "on"), ("q8_0", "auto"), ("q8_0", "on"), ("q5_1", "auto")]
)
def test_a_real_model_answers_alike_with_each_type(demo_model_path: Path, kind: str, policy: str) -> None:
    with llm.load(demo_model_path, context=256, kv_cache_type=kind, flash_attention=policy) as model:
        assert model.generate("The capital of France is", raw=True, max_tokens=2).text() == " Paris."
