"""What ``flash_attention="auto"`` does on a CPU: the tiled kernel in long prefills, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aner import llm
from aner.llm import TokenLogprob

Synthetic = Callable[[str], Path]
FIRST_TILED = 64


def first_logprob(path: Path, n_tokens: int, policy: str, **settings: object) -> TokenLogprob:
    with llm.load(path, context=1024, device="cpu", flash_attention=policy, **settings) as model:  # type: ignore[arg-type]
        prompt = [5 + 7 * i % 200 for i in range(n_tokens)]
        return model.generate(prompt, max_tokens=1, logprobs=3).logprobs()[0]


@pytest.mark.contract("L8")
@pytest.mark.parametrize("n_tokens", [1, 2, FIRST_TILED - 1])
def test_fewer_than_64_rows_are_computed_without_flash_attention(demo_model_path: Path, n_tokens: int) -> None:
    assert first_logprob(demo_model_path, n_tokens, "auto") == first_logprob(demo_model_path, n_tokens, "off")


@pytest.mark.contract("L8")
@pytest.mark.parametrize("n_tokens", [FIRST_TILED, 200, 512])
def test_64_rows_and_more_are_computed_with_it(demo_model_path: Path, n_tokens: int) -> None:
    auto = first_logprob(demo_model_path, n_tokens, "auto")
    assert auto == first_logprob(demo_model_path, n_tokens, "on")
    assert auto != first_logprob(demo_model_path, n_tokens, "off")


@pytest.mark.contract("L8")
@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_every_kind_of_attention_gives_the_same_distribution_with_it(synthetic: Synthetic, name: str, kind: str) -> None:
    path = synthetic(name)
    for n_tokens in (FIRST_TILED, 300):
        exact = first_logprob(path, n_tokens, "off", reproducible=True)
        auto = first_logprob(path, n_tokens, "auto", kv_cache_type=kind)
        assert auto.logprob == pytest.approx(exact.logprob, abs=0.05)


@pytest.mark.contract("L8", "L12")
def test_it_stays_off_where_results_must_not_depend_on_the_shape_of_a_call(demo_model_path: Path) -> None:
    for settings, resolved in (({}, "prefill"), ({"reproducible": True}, "off"), ({"kv_cache_type": "bf16"}, "off")):
        with llm.load(demo_model_path, context=64, device="cpu", **settings) as model:  # type: ignore[arg-type]
            memory = model.memory_summary()
            assert (memory["flash_attention_requested"], memory["flash_attention_resolved"]) == ("auto", resolved)
    with llm.load(demo_model_path, context=64, device="cpu", flash_attention="off") as model:
        assert model.memory_summary()["flash_attention_resolved"] == "off"


@pytest.mark.contract("L8")
def test_a_model_without_attention_reports_off(synthetic: Synthetic) -> None:
    with llm.load(synthetic("mamba"), context=64, device="cpu") as model:
        assert model.memory_summary()["flash_attention_resolved"] == "off"
