"""Leases: frozen profiles, pools of idle contexts, what each supports, and what closing one does to the others."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from aner import ClosedError, ConfigurationError, llm
from aner.llm._model import OPERATIONS
from tests.support import gguf_files

Synthetic = Callable[[str], Path]
PROMPT = [1, 40, 50, 60]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return gguf_files.llama(tmp_path / "own.gguf")


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def output_of(model: llm.Model) -> list[int]:
    return model.generate(PROMPT, max_tokens=8, ignore_eos=True).token_ids()


# -- O7: profiles ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("O7")
def test_the_profile_is_a_frozen_value_that_deriving_does_not_change(model: llm.Model) -> None:
    before = model.profile()
    derived = model.with_context_pool(3)
    assert model.profile() == before
    assert derived.profile() == dataclasses.replace(before, max_idle_contexts=3)
    assert model.native_stateless().profile() == before
    for field in dataclasses.fields(before):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(before, field.name, 1)
    assert hash(before) == hash(dataclasses.replace(before))
    assert model.with_context_pool(3).profile() == derived.profile()


# -- O9: closing -------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("O9", "Z1")
def test_closing_the_source_leaves_derived_leases_and_the_weights_go_with_the_last_one(own: Path) -> None:
    source = llm.load(own, context=64)
    expected = output_of(source)
    leases = [source.with_context_pool(2), source.native_stateless(), source.with_context_pool(0).native_stateless()]
    source.close()
    source.close()
    with pytest.raises(ClosedError, match="closed"):
        source.generate(PROMPT)
    for lease in leases:
        assert output_of(lease) == expected
    stream = leases[0].stream(PROMPT, max_tokens=8, ignore_eos=True)
    next(stream)
    for lease in leases:
        assert is_mapped(own)
        lease.close()
    assert stream.response().token_ids() == expected  # an accepted request keeps what it needs
    assert is_mapped(own)
    del stream
    gc.collect()
    assert not is_mapped(own)


@pytest.mark.contract("O9")
def test_every_operation_of_a_closed_lease_says_so(own: Path) -> None:
    model = llm.load(own, context=64)
    with model:
        pass
    operations: list[Callable[[], object]] = [
        lambda: model.generate("x"), lambda: model.stream("x"), lambda: model.start("x"), lambda: model.tokenize("x"),
        lambda: model.detokenize([1]), lambda: model.with_context_pool(1), model.native_stateless, model.device,
        model.fingerprint, model.profile, model.load_summary, model.metadata, model.memory_summary,
    ]  # fmt: skip
    for operation in operations:
        with pytest.raises(ClosedError, match="this model handle was closed"):
            operation()
    assert repr(model) == "<Model closed>"


# -- P11: pools --------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("P11", "E3")
@pytest.mark.parametrize("max_idle", [-1, 5, 2**31, -(2**31), True, 1.0, "1", None])
def test_a_pool_of_other_than_0_to_4_is_refused_with_the_limit_and_the_value(model: llm.Model, max_idle: object) -> None:
    with pytest.raises(ConfigurationError, match=r"max_idle .*0\.\.4") as refused:
        model.with_context_pool(max_idle)  # type: ignore[arg-type]
    assert repr(max_idle) in str(refused.value)


@pytest.mark.contract("P11")
@pytest.mark.parametrize("max_idle", [0, 1, 2, 3, 4])
def test_a_pool_keeps_at_most_its_bound_of_idle_contexts_and_does_not_bound_the_running_ones(
    model: llm.Model, max_idle: int
) -> None:
    pool = model.with_context_pool(max_idle)
    expected = output_of(model)
    streams = [pool.native_stateless().stream(PROMPT, max_tokens=8, ignore_eos=True) for _ in range(6)]
    for stream in streams:
        next(stream)  # six contexts at once, whatever the bound
    assert [stream.response().token_ids() for stream in streams] == [expected] * 6
    memory = pool.memory_summary()
    assert (memory["retained_contexts"], memory["retained_contexts_limit"]) == (max_idle, max_idle)
    reused = pool.generate(PROMPT, max_tokens=1).timings()["context_pool_reused"]
    assert reused == (1 if max_idle else 0)


@pytest.mark.contract("P11", "P1")
def test_a_derived_pool_is_fresh_and_siblings_share_one(model: llm.Model) -> None:
    wide = model.with_context_pool(4)
    sibling = wide.native_stateless()
    streams = [one.stream(PROMPT, max_tokens=2, ignore_eos=True) for one in (wide, sibling)]
    for stream in streams:
        next(stream)
    for stream in streams:
        stream.response()
    assert wide.memory_summary()["retained_contexts"] == sibling.memory_summary()["retained_contexts"] == 2
    assert wide.with_context_pool(4).memory_summary()["retained_contexts"] == 1  # its own, made when it was derived
    assert model.memory_summary()["retained_contexts"] == 1
    timings = sibling.generate(PROMPT, max_tokens=1).timings()
    assert (timings["context_pool_reused"], timings["cached_input_tokens"]) == (1, 0)  # empty contexts are kept, and no tokens


# -- T5: supports ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("T5")
@pytest.mark.parametrize("operation", ["", "Generate", "generate ", "train", "session\0", None, 3])
def test_an_unknown_operation_is_a_value_error_with_the_list_even_on_a_closed_lease(
    synthetic: Synthetic, operation: object
) -> None:
    with llm.load(synthetic("llama"), context=64) as model, pytest.raises(ValueError, match="continuous_batching"):
        model.supports(operation)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the operations are generate, stream"):
        model.supports(operation)  # type: ignore[arg-type]


@pytest.mark.contract("T5")
@pytest.mark.parametrize("name", ["llama", "llama-plain", "gemma3", "mamba", "lfm2"])
def test_what_is_supported_works_and_a_closed_lease_supports_nothing(synthetic: Synthetic, name: str) -> None:
    assert OPERATIONS == (
        "generate", "stream", "chat", "session", "adapter", "optimizer", "context_pool", "prefix_reuse", "speculation",
        "continuous_batching",
    )  # fmt: skip
    messages = [{"role": "user", "content": "x"}]
    trials: dict[str, Callable[[llm.Model], object]] = {
        "generate": lambda lease: lease.generate("x", max_tokens=1),
        "stream": lambda lease: list(lease.stream("x", max_tokens=1)),
        "chat": lambda lease: lease.generate(messages=messages, max_tokens=1),
        "context_pool": lambda lease: lease.with_context_pool(1),
    }
    with llm.load(synthetic(name), context=64) as model:
        supported = {operation for operation in OPERATIONS if model.supports(operation)}
        assert {"generate", "stream", "context_pool"} <= supported
        for operation, trial in trials.items():
            if operation in supported:
                trial(model)
            else:
                with pytest.raises(ValueError, match="template"):
                    trial(model)
        assert ("chat" in supported) is (name in ("llama", "gemma3"))
    assert not any(model.supports(operation) for operation in OPERATIONS)


@pytest.mark.contract("T5")
def test_a_template_given_at_load_makes_chat_supported_on_every_derived_lease(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama-plain"), context=64, chat_template=gguf_files.CHATML) as model:
        assert all(lease.supports("chat") for lease in (model, model.with_context_pool(0), model.native_stateless()))


@pytest.mark.contract("T5")
def test_a_lease_supports_only_the_builders_that_it_has(model: llm.Model) -> None:
    builders = {
        "session": "session", "adapter": "with_adapter", "optimizer": "with_optimizer", "continuous_batching": "with_batching",
        "context_pool": "with_context_pool",
    }  # fmt: skip
    for operation, builder in builders.items():
        assert hasattr(model, builder)
        assert model.supports(operation) is (operation != "continuous_batching"), operation  # not before with_batching
