"""``llm.plan``: the figures of a lease before anything is loaded, against what the engine then allocates and the process grows by."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aner_native
import pytest

from aner import (
    AnerError,
    ConfigurationError,
    ModelLoadError,
    ModelNotFoundError,
    OutOfMemoryError,
    UnsupportedCombinationError,
    llm,
)
from tests.support import gguf_files
from tests.support.call_in_child import call_in_child

Synthetic = Callable[[str], Path]
MIB = 2**20

#: Of ``plan``, what ``load`` and what ``with_optimizer`` is given.
LOAD = ("context", "kv_cache_type", "flash_attention", "reproducible", "mapped")
OPTIMIZER = ("batch_tokens", "micro_batch_tokens", "prefix_cache_entries", "speculative_tokens")


def real(path: Path, *, max_sequences: int = 1, **options: Any) -> dict[str, Any]:
    """``memory_summary()`` of a lease that was really made."""
    with llm.load(path, device="cpu", **{name: value for name, value in options.items() if name in LOAD}) as model:
        settings = {name: value for name, value in options.items() if name in OPTIMIZER}
        lease = model.with_optimizer(llm.OptimizerProfile(**settings)) if settings else model
        if max_sequences > 1:
            lease = lease.with_batching(max_sequences)
        return dict(lease.memory_summary())


def differences(path: Path, **options: Any) -> dict[str, tuple[Any, Any]]:
    """Figures that the plan and the lease do not have in common."""
    planned, made = llm.plan(path, **options), real(path, **options)
    return {name: (planned[name], value) for name, value in made.items() if planned[name] != value}


# -- the same bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("M3")
@pytest.mark.parametrize("max_sequences", [1, 3])
@pytest.mark.parametrize("context", [16, 300, 4096])
@pytest.mark.parametrize("name", ["llama", "llama-q8", "llama-q4", "gemma3", "mamba", "lfm2"])
def test_the_plan_is_what_the_engine_then_allocates(synthetic: Synthetic, name: str, context: int, max_sequences: int) -> None:
    assert differences(synthetic(name), context=context, max_sequences=max_sequences) == {}


@pytest.mark.contract("M3")
@pytest.mark.parametrize("kv_cache_type", ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_the_plan_is_right_for_every_kv_type(synthetic: Synthetic, name: str, kv_cache_type: str) -> None:
    assert differences(synthetic(name), context=700, kv_cache_type=kv_cache_type) == {}
    assert differences(synthetic(name), context=700, kv_cache_type=kv_cache_type, max_sequences=2) == {}


@pytest.mark.contract("M3")
@pytest.mark.parametrize(
    "options",
    [
        {"flash_attention": "on"}, {"flash_attention": "off"}, {"reproducible": True}, {"mapped": False},
        {"batch_tokens": 64}, {"batch_tokens": 1024, "micro_batch_tokens": 32}, {"speculative_tokens": 7},
        {"batch_tokens": 1024, "max_sequences": 17}, {"reproducible": True, "max_sequences": 2, "mapped": False},
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["llama-q4", "gemma3"])
def test_the_plan_is_right_for_the_settings_that_change_the_memory(
    synthetic: Synthetic, name: str, options: dict[str, Any]
) -> None:
    assert differences(synthetic(name), context=1500, **options) == {}


@pytest.mark.contract("M3")
@pytest.mark.real_model
@pytest.mark.parametrize(
    "options",
    [
        {}, {"context": 8192, "flash_attention": "on"}, {"context": 512, "kv_cache_type": "f32", "max_sequences": 4},
        {"context": 1000, "kv_cache_type": "q8_0", "max_sequences": 8}, {"context": 2048, "mapped": False},
        {"context": 2048, "reproducible": True, "speculative_tokens": 4},
    ],
)  # fmt: skip
def test_the_plan_is_right_for_a_real_model(demo_model_path: Path, options: dict[str, Any]) -> None:
    assert differences(demo_model_path, **options) == {}


@pytest.mark.contract("M3")
@pytest.mark.parametrize("mapped", [True, False])
def test_a_split_model_is_planned_file_by_file(tmp_path: Path, mapped: bool) -> None:
    gguf_files.llama(tmp_path / "m.gguf", tensors_per_split=5, quantization="q8_0")
    first = min(tmp_path.iterdir())
    assert "00001-of-" in first.name
    assert differences(first, context=64, mapped=mapped) == {}


@pytest.mark.contract("M3")
def test_contexts_that_a_lease_may_come_to_retain_are_planned_as_if_all_were_there(synthetic: Synthetic) -> None:
    options = {"context": 64, "prefix_cache_entries": 3}
    retained = {"retained_contexts", "retained_contexts_bytes"}
    assert set(differences(synthetic("llama"), **options)) == retained
    plan = llm.plan(synthetic("llama"), **options)
    each = plan["kv_bytes_per_context"] + plan["compute_bytes_per_context"] + plan["output_rows_bytes_per_context"]
    assert (plan["retained_contexts"], plan["retained_contexts_bytes"]) == (3, 3 * each)
    kept = each - plan["compute_bytes_per_context"] + plan["compute_written_bytes_per_context"]
    assert plan["total_bytes"] == plan["weights_bytes_shared"] + 3 * kept + plan["tables_bytes"]


@pytest.mark.contract("M3")
def test_kv_is_told_by_kind_of_layer(synthetic: Synthetic) -> None:
    row = 2 * 2 * 32 * 2  # keys and values of two KV heads of 32 elements, f16

    def kinds(name: str) -> tuple[int, ...]:
        plan = llm.plan(synthetic(name), context=4096, max_sequences=2)
        found = tuple(plan[f"kv_{kind}_bytes_per_context"] for kind in ("attention", "sliding_window", "recurrent"))
        assert sum(found) == plan["kv_bytes_per_context"]
        return found

    assert kinds("llama") == (2 * 4096 * row * 2, 0, 0)
    assert kinds("gemma3") == (2 * 4096 * row * 2, 2 * 768 * row * 2, 0)  # a window of 32 and a micro-batch of 512, padded
    assert kinds("mamba") == (0, 0, 2 * 2 * 4 * (3 * 128 + 16 * 128))
    assert kinds("lfm2") == (2 * 4096 * row * 2, 0, 2 * 2 * 4 * 2 * 128)


# -- the process ---------------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes that this process holds, mapped files included."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Rss in /proc/self/smaps_rollup")


def growth(path: str, options: Mapping[str, Any]) -> int:
    """By how much this process grows when it loads the model and fills every slot of its context."""
    before = resident()
    n = options["max_sequences"]
    with llm.load(path, device="cpu", **{name: value for name, value in options.items() if name in LOAD}) as model:
        lease = model.with_batching(n) if n > 1 else model
        if n > 1:
            model.close()
        prompt = [1 + i % 900 for i in range(options["context"] - 2)]
        streams = [one.start(prompt, max_tokens=2, ignore_eos=True) for one in lease.siblings(n)]
        for stream in streams:
            stream.response()
        return resident() - before


@pytest.mark.contract("M3")
@pytest.mark.real_model
@pytest.mark.parametrize(
    "options",
    [
        {"context": 2048, "max_sequences": 1},
        {"context": 1024, "max_sequences": 1, "flash_attention": "off"},
        {"context": 1024, "max_sequences": 1, "mapped": False, "kv_cache_type": "f32"},
        {"context": 512, "max_sequences": 3, "kv_cache_type": "q8_0"},
        {"context": 512, "max_sequences": 4},
    ],
)
def test_the_process_grows_by_the_plan(demo_model_path: Path, options: dict[str, Any]) -> None:
    planned = llm.plan(demo_model_path, **options)["total_bytes"]
    measured = call_in_child(growth, demo_model_path, options).checked()
    assert abs(measured - planned) <= max(planned * 0.02, 16 * MIB), (measured / MIB, planned / MIB)


def plan_of_a_hole(path: str) -> list[int]:
    before, start = resident(), time.monotonic()
    plan = llm.plan(path, context=8192, budget="64GiB")
    return [plan["weights_bytes_shared"], plan["total_bytes"], resident() - before, int(1000 * (time.monotonic() - start))]


@pytest.mark.contract("M3")
def test_a_plan_reads_headers_and_takes_no_memory_for_the_rest(tmp_path: Path) -> None:
    size = gguf_files.Size(n_embd=4096, n_head=32, n_kv=8, n_ff=14336, n_layer=32, n_ctx=131072)
    path = gguf_files.llama(tmp_path / "hole.gguf", size=size, hollow=True)
    assert path.stat().st_size > 26 << 30
    assert path.stat().st_blocks * 512 < 10 * MIB
    weights, total, grown, milliseconds = call_in_child(plan_of_a_hole, path).checked()
    assert 0 < path.stat().st_size - weights < MIB
    assert total > weights + 8192 * 32 * 8 * 512
    assert grown < 100 * MIB
    assert milliseconds < 60_000


# -- what fits -----------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("M3")
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_the_suggestions_fit_and_the_next_larger_ones_do_not(synthetic: Synthetic, name: str) -> None:
    path = synthetic(name)
    budget = llm.plan(path, context=1000, max_sequences=2)["total_bytes"]

    def total(**options: Any) -> int:
        return int(llm.plan(path, **{"context": 1000, "max_sequences": 2, **options})["total_bytes"])

    assert llm.plan(path, context=1000, max_sequences=2, budget=budget)["fits"] is True
    assert llm.plan(path, context=1000, max_sequences=2, budget=budget - 1)["fits"] is False
    larger = total(context=2500)
    plan = llm.plan(path, context=1000, max_sequences=2, budget=larger)
    assert plan["budget_bytes"] == larger
    largest, slots = plan["largest_context"], plan["largest_max_sequences"]
    assert 2304 <= largest <= 2560
    assert total(context=largest) <= larger < total(context=largest + 256)
    assert 2 <= slots < 256
    assert total(max_sequences=slots) <= larger < total(max_sequences=slots + 1)
    small = llm.plan(path, context=1000, max_sequences=2, budget=budget)
    for kind in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"):
        assert (kind in small["kv_cache_types_that_fit"]) == (total(kv_cache_type=kind) <= budget), kind
    assert "f16" in small["kv_cache_types_that_fit"]
    assert "f32" not in small["kv_cache_types_that_fit"]


@pytest.mark.contract("M3")
def test_no_context_beyond_the_trained_one_is_suggested_and_nothing_when_nothing_fits(synthetic: Synthetic) -> None:
    assert llm.plan(synthetic("llama"), context=64, budget="64GiB")["largest_context"] == 4096
    assert llm.plan(synthetic("llama"), context=5000, budget="64GiB")["largest_context"] == 5000
    nothing = llm.plan(synthetic("llama"), context=64, budget=1000)
    assert (nothing["fits"], nothing["largest_context"], nothing["largest_max_sequences"]) == (False, 0, 0)
    assert nothing["kv_cache_types_that_fit"] == []


@pytest.mark.contract("M3")
def test_what_cannot_be_combined_is_not_suggested(synthetic: Synthetic, tmp_path: Path) -> None:
    assert llm.plan(synthetic("llama"), context=64, speculative_tokens=4, budget="64GiB")["largest_max_sequences"] == 1
    assert llm.plan(synthetic("llama"), context=64, batch_tokens=5, budget="64GiB")["largest_max_sequences"] == 5
    odd = gguf_files.llama(tmp_path / "odd.gguf", size=gguf_files.Size(n_embd=96, n_head=2, n_kv=1, n_ff=64))  # heads of 48
    assert llm.plan(odd, context=64, budget="64GiB")["kv_cache_types_that_fit"] == ["f32", "f16", "bf16"]
    off = llm.plan(synthetic("llama"), context=64, flash_attention="off", budget="64GiB")
    assert off["kv_cache_types_that_fit"] == ["f32", "f16", "bf16"]


@pytest.mark.contract("M3")
def test_without_a_budget_the_memory_that_is_available_counts(synthetic: Synthetic) -> None:
    plan = llm.plan(synthetic("llama"), context=64)
    assert plan["budget_bytes"] == pytest.approx(aner_native.available_memory(), rel=0.2)
    assert plan["fits"] is True


@pytest.mark.contract("M3")
@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (12345, 12345), ("12345", 12345), ("8GiB", 8 << 30), (" 8 gib ", 8 << 30), ("1.5MiB", 3 << 19), ("500MB", 500_000_000),
        ("64kb", 64_000), ("1TiB", 1 << 40), ("7B", 7), (0, 0),
    ],
)  # fmt: skip
def test_a_budget_is_bytes_or_has_a_unit(synthetic: Synthetic, budget: int | str, expected: int) -> None:
    assert llm.plan(synthetic("llama"), context=64, budget=budget)["budget_bytes"] == expected


# -- what is refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("M3", "E3")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"context": 15}, "context"), ({"context": 2**40}, "context"), ({"context": "64"}, "context"), ({"context": True}, "context"),
        ({"kv_cache_type": "q3_k"}, "kv_cache_type"), ({"kv_cache_type": None}, "kv_cache_type"),
        ({"flash_attention": "maybe"}, "flash_attention"), ({"kv_cache_type": "q8_0", "flash_attention": "off"}, "flash attention"),
        ({"max_sequences": 0}, "max_sequences"), ({"max_sequences": 257}, "max_sequences"), ({"max_sequences": 1.0}, "max_sequences"),
        ({"max_sequences": 2**31}, "max_sequences"), ({"max_sequences": 256, "context": 2**24}, "max_sequences"),
        ({"batch_tokens": 0}, "batch_tokens"), ({"batch_tokens": 4, "max_sequences": 5}, "batch_tokens"),
        ({"micro_batch_tokens": 1000}, "micro_batch_tokens"), ({"prefix_cache_entries": 5}, "prefix_cache_entries"),
        ({"speculative_tokens": -1}, "speculative_tokens"), ({"speculative_tokens": "2"}, "speculative_tokens"),
        ({"mapped": 1}, "mapped"), ({"reproducible": None}, "reproducible"),
        ({"budget": -1}, "budget"), ({"budget": "8 apples"}, "budget"),
        ({"budget": "-8GiB"}, "budget"), ({"budget": True}, "budget"), ({"budget": 1.5}, "budget"), ({"budget": ""}, "budget"),
        ({"budget": "nan"}, "budget"), ({"budget": "\u0667GiB"}, "budget"),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(synthetic: Synthetic, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        llm.plan(synthetic("llama"), **{"context": 512, **options})


@pytest.mark.contract("M3", "E3")
def test_settings_are_refused_exactly_as_the_lease_would_refuse_them(synthetic: Synthetic, tmp_path: Path) -> None:
    odd = gguf_files.llama(tmp_path / "odd.gguf", size=gguf_files.Size(n_embd=96, n_head=2, n_kv=1, n_ff=64))
    cases: list[tuple[Path, dict[str, Any], type[AnerError]]] = [
        (odd, {"kv_cache_type": "q8_0"}, ConfigurationError),
        (synthetic("mamba"), {"speculative_tokens": 2}, UnsupportedCombinationError),
        (synthetic("lfm2"), {"prefix_cache_entries": 1}, UnsupportedCombinationError),
        (synthetic("llama"), {"speculative_tokens": 2, "max_sequences": 2}, UnsupportedCombinationError),
        (synthetic("llama"), {"batch_tokens": 2, "max_sequences": 3}, ConfigurationError),
    ]
    for path, options, kind in cases:
        said = []
        for call in (llm.plan, real):
            with pytest.raises(kind) as refused:
                call(path, context=64, **options)
            assert type(refused.value) is kind
            said.append(str(refused.value))
        assert said[0] == said[1]


@pytest.mark.contract("M3", "L9", "E2")
def test_what_is_no_model_is_refused_and_what_the_engine_dies_of_is_tried_in_a_child(
    synthetic: Synthetic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ModelNotFoundError):
        llm.plan(tmp_path / "none.gguf")
    with pytest.raises(ConfigurationError, match="path"):
        llm.plan(7)  # type: ignore[arg-type]
    page = tmp_path / "page.gguf"
    page.write_text("no model")
    with pytest.raises(ModelLoadError):
        llm.plan(page)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(synthetic("llama").read_bytes()[:-100])
    with pytest.raises(ModelLoadError):
        llm.plan(cut)

    def edit(writer: Any) -> None:
        gguf_files.set_value(writer, "internlm2.rope.dimension_count", 16)

    # No test covers this architecture; its graph is the llama's.
    fine = gguf_files.transformer(tmp_path / "fine.gguf", "internlm2")  # type: ignore[arg-type]
    assert differences(fine, context=300) == {}
    fatal = gguf_files.transformer(tmp_path / "fatal.gguf", "internlm2", edit=edit)  # type: ignore[arg-type]
    with pytest.raises(ModelLoadError, match="signal 6"):
        llm.plan(fatal)


@pytest.mark.contract("M3", "E2")
def test_a_context_whose_workspace_cannot_fit_is_planned_so_and_refused_by_load_and_the_process_lives(tmp_path: Path) -> None:
    many_heads = gguf_files.Size(n_embd=1024, n_head=64, n_kv=1, n_ff=64, n_layer=1)
    path = gguf_files.llama(tmp_path / "m.gguf", size=many_heads)
    available = aner_native.available_memory()
    each = 512 * 64 * 4  # a row of attention scores for each row of a micro-batch, each head and each position
    context = min(int(1.02 * available) // each // 256 * 256, 2**24)
    plan = llm.plan(path, context=context, flash_attention="off")
    assert plan["compute_bytes_per_context"] > available
    assert plan["kv_bytes_per_context"] < available / 100
    assert plan["fits"] is False
    assert 0 < plan["largest_context"] < context
    with pytest.raises(OutOfMemoryError, match=f"a context of {context} positions"):
        llm.load(path, context=context, flash_attention="off")
    llm.load(path, context=256, flash_attention="off").close()
    assert os.getpid() > 0
