"""``Model.memory_summary``: each figure against its own formula, for every kind of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from aner import OutOfMemoryError, llm
from tests.support import gguf_files

Synthetic = Callable[[str], Path]

#: Bytes of a row of 64 elements, from the layout of each format: 32 elements and their scales to a block.
ROW_OF_64 = {
    "f32": 64 * 4, "f16": 64 * 2, "bf16": 64 * 2, "q8_0": 2 * (2 + 32), "q5_1": 2 * (2 + 2 + 4 + 16), "q5_0": 2 * (2 + 4 + 16),
    "q4_1": 2 * (2 + 2 + 16), "q4_0": 2 * (2 + 16), "iq4_nl": 2 * (2 + 16),
}  # fmt: skip
HEADS_OF_64 = gguf_files.Size(n_embd=256, n_head=4, n_kv=2, n_ff=64, n_layer=3)
MICRO_BATCH = 512  # the default


def padded(cells: int) -> int:
    """The engine's cells come in groups of 256."""
    return -(-cells // 256) * 256


def tensor_bytes(path: Path) -> int:
    return sum(int(tensor.n_bytes) for tensor in GGUFReader(path).tensors)


@pytest.mark.contract("M1")
def test_every_figure_names_its_scope_and_nothing_else_is_there(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama"), context=64) as model:
        memory = model.memory_summary()
        assert set(memory) == {
            "weights_bytes_shared", "kv_bytes_per_context", "kv_payload_bytes_per_context", "compute_bytes_per_context",
            "output_rows_bytes_per_context", "retained_contexts", "retained_contexts_limit", "retained_contexts_bytes",
            "sequences_per_context", "context", "kv_cells", "kv_cache_type", "flash_attention_requested", "flash_attention_resolved",
            "device", "weights_mapped", "reproducible",
        }  # fmt: skip
        with pytest.raises(TypeError):
            memory["context"] = 1  # type: ignore[index]
        assert all(type(memory[name]) is int for name in memory if "_bytes" in name)


@pytest.mark.contract("M1")
@pytest.mark.parametrize("context", [16, 256, 300, 4096])
@pytest.mark.parametrize("kind", ROW_OF_64)
def test_kv_bytes_are_context_times_layers_times_kv_heads_times_both_heads(tmp_path: Path, kind: str, context: int) -> None:
    per_position = HEADS_OF_64.n_layer * HEADS_OF_64.n_kv * (ROW_OF_64[kind] + ROW_OF_64[kind])
    with llm.load(gguf_files.llama(tmp_path / "m.gguf", size=HEADS_OF_64), context=context, kv_cache_type=kind) as model:
        memory = model.memory_summary()
    assert memory["kv_payload_bytes_per_context"] == context * per_position
    assert memory["kv_cells"] == padded(context)
    assert memory["kv_bytes_per_context"] == padded(context) * per_position  # what the engine really allocated


@pytest.mark.contract("M1")
@pytest.mark.parametrize(("context", "reproducible"), [(256, False), (4096, False), (4096, True)])
def test_sliding_window_layers_are_counted_as_the_window_they_keep(
    synthetic: Synthetic, context: int, reproducible: bool
) -> None:
    row = 2 * 2 * 32 * 2  # keys and values of two KV heads of 32 elements, f16
    kept = context if reproducible else min(context, 32 + MICRO_BATCH)
    with llm.load(synthetic("gemma3"), context=context, reproducible=reproducible) as model:
        memory = model.memory_summary()
    assert memory["kv_payload_bytes_per_context"] == row * 2 * (context + kept)  # two layers of each kind
    assert memory["kv_bytes_per_context"] == row * 2 * (padded(context) + padded(kept))


@pytest.mark.contract("M1")
@pytest.mark.parametrize("context", [64, 4096])
def test_recurrent_layers_are_counted_as_their_state_which_does_not_grow_with_the_context(
    synthetic: Synthetic, context: int
) -> None:
    n_inner, n_state, n_conv, n_layer = 128, 16, 4, 2
    with llm.load(synthetic("mamba"), context=context) as model:
        memory = model.memory_summary()
    assert memory["kv_bytes_per_context"] == n_layer * 4 * ((n_conv - 1) * n_inner + n_state * n_inner)
    assert memory["kv_payload_bytes_per_context"] == 0


@pytest.mark.contract("M1")
def test_a_hybrid_is_counted_layer_by_layer(synthetic: Synthetic) -> None:
    attention = 2 * (2 * 2 * 32 * 2)  # two layers, keys and values of two KV heads of 32 elements, f16
    state = 2 * 4 * (3 - 1) * 128  # two layers, the last two columns of the convolution, f32
    with llm.load(synthetic("lfm2"), context=300) as model:
        memory = model.memory_summary()
    assert memory["kv_payload_bytes_per_context"] == 300 * attention
    assert memory["kv_bytes_per_context"] == 512 * attention + state


@pytest.mark.contract("M1")
@pytest.mark.parametrize("name", ["llama", "llama-f16", "llama-q8", "llama-q4", "gemma3", "mamba", "lfm2"])
@pytest.mark.parametrize("options", [{}, {"mapped": False}, {"reproducible": True}])
def test_weights_are_the_tensors_of_the_file_and_rows_are_floats_of_the_vocabulary(
    synthetic: Synthetic, name: str, options: dict[str, bool]
) -> None:
    with llm.load(synthetic(name), context=64, **options) as model:  # type: ignore[arg-type]
        memory, n_vocab = model.memory_summary(), model.metadata()["vocabulary"]
    expected = tensor_bytes(synthetic(name))
    # A mapping begins and ends at page boundaries and holds the padding between tensors. Repacked weights are counted beside
    # the mapping that spans them, so quantized ones up to twice; the reference kernels repack nothing.
    most = 2 if name in ("llama-q8", "llama-q4") and not options else 1.05
    assert expected <= memory["weights_bytes_shared"] <= expected * most + 8192
    assert memory["output_rows_bytes_per_context"] == n_vocab * np.dtype(np.float32).itemsize
    assert 0 < memory["compute_bytes_per_context"] < 64 << 20


@pytest.mark.contract("M1")
def test_retained_contexts_are_counted_as_they_are_kept_and_taken(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama"), context=64) as model:

        def retained() -> tuple[int, int, int]:
            memory = model.memory_summary()
            each = sum(memory[f"{part}_bytes_per_context"] for part in ("kv", "compute", "output_rows"))
            assert memory["retained_contexts_bytes"] == memory["retained_contexts"] * each
            return memory["retained_contexts"], memory["retained_contexts_limit"], memory["retained_contexts_bytes"] // each

        assert retained() == (1, 1, 1)  # made, and proven, when the model was loaded
        stream = model.stream([1, 2, 3], max_tokens=4, ignore_eos=True)
        next(stream)
        assert retained() == (0, 1, 0)
        stream.response()
        assert retained() == (1, 1, 1)


@pytest.mark.contract("M1", "T2")
def test_a_printed_summary_has_units_and_says_not_measured_for_what_is_unknown(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama"), context=64) as model:
        assert "kv_payload_bytes_per_context   32.0 KiB" in str(model.memory_summary())
        assert "probe_duration          not measured" in str(model.load_summary())
        assert "KiB" not in repr(dict(model.memory_summary()))


@pytest.mark.contract("T2")
def test_an_ordinary_lease_has_minus_one_for_the_mechanisms_it_does_not_have_and_zero_cached_tokens(
    synthetic: Synthetic,
) -> None:
    with llm.load(synthetic("llama"), context=64) as model:
        timings = model.generate([1, 2, 3], max_tokens=3, ignore_eos=True).timings()
        empty = model.generate([1, 2, 3], max_tokens=0).timings()
    absent = {
        name for name in timings if name.startswith(("speculative_", "batch_max", "batch_peak", "scheduler_", "batch_decoded"))
    }
    assert len(absent) == 7
    assert {timings[name] for name in absent} == {-1}
    assert (timings["queue_duration"], timings["template_duration"], timings["tokenize_duration"]) == (
        -1,
        -1,
        -1,
    )  # ids were given
    assert (timings["cached_input_tokens"], timings["context_pool_reused"]) == (0, 1)  # an empty context, no tokens of it
    for name in (
        "context_acquire_duration",
        "prefill_duration",
        "first_token_duration",
        "generation_duration",
        "context_clear_duration",
    ):
        assert timings[name] > 0
        assert empty[name] == -1  # nothing was run, so nothing was measured
    assert (empty["evaluated_input_tokens"], empty["output_tokens"], empty["cached_input_tokens"]) == (0, 0, 0)
    assert empty["total_duration"] > 0


@pytest.mark.contract("E2", "E3")
def test_a_context_that_cannot_fit_is_out_of_memory_with_both_figures_and_the_process_lives(tmp_path: Path) -> None:
    large = gguf_files.Size(n_embd=512, n_head=4, n_kv=4, n_ff=64, n_layer=16)
    path = gguf_files.llama(tmp_path / "m.gguf", size=large)
    with pytest.raises(OutOfMemoryError, match=r"16777216 positions needs about \d+ MiB and \d+ MiB are available"):
        llm.load(path, context=2**24, kv_cache_type="f32")  # a TiB
    llm.load(path, context=64).close()
