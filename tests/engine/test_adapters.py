"""LoRA adapters: what is refused, what is applied, and that their KV never mixes (contract C4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aner import AdapterError, ConfigurationError, ModelNotFoundError, llm
from aner.llm import OptimizerProfile
from tests.support import gguf_files

Synthetic = Callable[[str], Path]
PROMPT = [40 + i * 3 for i in range(50)]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [gguf_files.lora(folder / f"adapter-{seed}.gguf", seed=seed) for seed in range(5)]


@pytest.mark.contract("C4", "P2")
def test_base_a_b_base_on_one_prompt_never_mix(model: llm.Model, adapters: list[Path]) -> None:
    base = model.with_optimizer(OptimizerProfile(prefix_cache_entries=1))
    leases = [base, base.with_adapter(adapters[0]), base.with_adapter(adapters[1]), base.with_adapter(adapters[0], 0.25)]
    cold = [lease.generate(PROMPT, max_tokens=16).output_hash() for lease in leases]
    assert len(set(cold)) == 4  # each is applied
    warm = [lease.generate(PROMPT, max_tokens=16) for lease in (*leases, base)]
    assert [response.output_hash() for response in warm] == [*cold, cold[0]]
    assert all(response.timings()["cached_input_tokens"] == len(PROMPT) - 1 for response in warm)


@pytest.mark.contract("C4", "L6", "O1")
def test_adapters_stack_up_to_four_each_with_its_fingerprint(model: llm.Model, adapters: list[Path]) -> None:
    lease = model
    hashes = {model.generate(PROMPT, max_tokens=8).output_hash()}
    for i, path in enumerate(adapters[:4]):
        lease = lease.with_adapter(path, 0.5)
        assert len(lease.adapters()) == i + 1
        hashes.add(lease.generate(PROMPT, max_tokens=8).output_hash())
    assert len(hashes) == 5
    assert len({one["fingerprint"] for one in lease.adapters()}) == 4
    assert lease.fingerprint() == model.fingerprint()
    assert model.adapters() == []
    with pytest.raises(ConfigurationError, match="4 adapters already"):
        lease.with_adapter(adapters[4])
    derived = lease.with_optimizer(OptimizerProfile(micro_batch_tokens=16))
    assert derived.adapters() == lease.adapters()
    assert derived.generate(PROMPT, max_tokens=8).token_ids() == lease.generate(PROMPT, max_tokens=8).token_ids()


@pytest.mark.contract("C4", "S7", "P12")
def test_an_adapted_lease_reuses_and_speculates_exactly(model: llm.Model, adapters: list[Path]) -> None:
    adapted = model.with_adapter(adapters[2])
    tuned = adapted.with_optimizer(OptimizerProfile(prefix_cache_entries=1, speculative_tokens=5))
    expected = adapted.generate(PROMPT, max_tokens=60).token_ids()
    assert [tuned.generate(PROMPT, max_tokens=60).token_ids() for _ in range(2)] == [expected, expected]


@pytest.mark.contract("C4", "O9")
def test_an_adapter_outlives_the_lease_it_was_added_to(model: llm.Model, adapters: list[Path]) -> None:
    adapted = model.with_adapter(adapters[0])
    expected = adapted.generate(PROMPT, max_tokens=8).token_ids()
    sibling = adapted.native_stateless()
    adapted.close()
    model.close()
    assert sibling.generate(PROMPT, max_tokens=8).token_ids() == expected


@pytest.mark.contract("C4", "E2")
def test_foreign_damaged_and_useless_adapters_are_refused_with_the_reason(
    model: llm.Model, adapters: list[Path], synthetic: Synthetic, tmp_path: Path
) -> None:
    def edited(name: str, key: str, value: object) -> Path:
        return gguf_files.lora(tmp_path / f"{name}.gguf", edit=lambda writer: gguf_files.set_value(writer, key, value))

    whole = adapters[0].read_bytes()
    (tmp_path / "half.gguf").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "page.gguf").write_bytes(b"<html></html>")
    refused = {
        synthetic("llama"): "this is not a LoRA adapter",
        synthetic("mamba"): "this is not a LoRA adapter",
        tmp_path / "half.gguf": "",
        tmp_path / "page.gguf": "",
        edited("type", "general.type", 7): "general.type must be the string 'adapter' and is u32",
        edited("kind", "adapter.type", "control"): "adapter.type must be the string 'lora' and is 'control'",
        edited("alpha", "adapter.lora.alpha", 8): "adapter.lora.alpha must be a finite 32-bit float",
        gguf_files.lora(tmp_path / "arch.gguf", architecture="qwen2"): "the adapter is for 'qwen2', the base model is 'llama'",
        gguf_files.lora(tmp_path / "size.gguf", size=gguf_files.Size(n_embd=64)): "it belongs to another base",
        gguf_files.lora(tmp_path / "deep.gguf", size=gguf_files.Size(n_layer=9)): "does not exist in the base model",
    }
    for path, reason in refused.items():
        with pytest.raises(AdapterError) as error:
            model.with_adapter(path)
        assert reason in str(error.value)
    with pytest.raises(ModelNotFoundError):
        model.with_adapter(tmp_path / "missing.gguf")
    for scale in (0, float("nan"), float("inf"), True, "1"):
        with pytest.raises(ConfigurationError):
            model.with_adapter(adapters[0], scale)  # type: ignore[arg-type]
    assert model.generate(PROMPT, max_tokens=4).token_ids()
