"""``llm.load``: its arguments, where the weights live, which models are refused, and that separate loads are separate."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from aner import ConfigurationError, ContextFullError, ModelLoadError, ModelNotFoundError, llm
from tests.support import gguf_files

Synthetic = Callable[[str], Path]
PROMPT = [1, 40, 50, 60]


def mappings_of(path: Path) -> int:
    """How many ranges of this process's address space are mapped from the file."""
    return sum(line.rstrip().endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


def output_of(model: llm.Model, n: int = 8) -> list[int]:
    return model.generate(PROMPT, max_tokens=n, ignore_eos=True).token_ids()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model file that the test may change."""
    return gguf_files.llama(tmp_path / "own.gguf")


# -- L1: the call ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L1")
def test_the_first_five_arguments_and_their_defaults_are_the_contracts() -> None:
    parameters = list(inspect.signature(llm.load).parameters.values())
    assert [(one.name, one.default) for one in parameters[:5]] == [
        ("path", inspect.Parameter.empty), ("context", 4096), ("device", "auto"), ("kv_cache_type", "f16"),
        ("flash_attention", "auto"),
    ]  # fmt: skip
    assert all(one.kind is one.POSITIONAL_OR_KEYWORD for one in parameters[:5])
    assert all(one.kind is one.KEYWORD_ONLY for one in parameters[5:])


@pytest.mark.contract("L1")
def test_the_lease_has_what_the_positional_arguments_asked_for(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama"), 300, "cpu", "q8_0", "on") as model:
        memory = model.memory_summary()
        assert isinstance(model, llm.Model)
        assert (memory["context"], memory["device"], memory["kv_cache_type"], memory["flash_attention_requested"]) == (
            300, "cpu", "q8_0", "on",
        )  # fmt: skip
    with llm.load(str(synthetic("llama"))) as model:
        assert model.memory_summary()["context"] == 4096


@pytest.mark.contract("L1")
@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
def test_a_path_is_a_str_or_path_and_bytes_are_refused(synthetic: Synthetic, kind: Callable[[Path], object]) -> None:
    if kind is os.fsencode:
        with pytest.raises(ConfigurationError, match="path must be a str or a path"):
            llm.load(os.fsencode(synthetic("llama")))  # type: ignore[arg-type]
    else:
        llm.load(kind(synthetic("llama")), context=16).close()  # type: ignore[arg-type]


@pytest.mark.contract("E3", "L1")
@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("path", None), ("path", 3), ("path", ["x"]), ("device", 0), ("device", None), ("kv_cache_type", 8),
        ("flash_attention", True), ("reproducible", 1), ("mapped", "no"), ("mapped", None), ("expected_sha256", b"0" * 64),
        ("progress", 5), ("chat_template", 5), ("template_args", 5), ("template_args", {1: 2}),
    ],
)  # fmt: skip
def test_an_argument_of_a_wrong_type_is_named_with_what_was_given(synthetic: Synthetic, argument: str, value: object) -> None:
    arguments = {"path": synthetic("llama"), argument: value}
    with pytest.raises(ValueError, match=f"{argument}.*{re.escape(repr(value))}"):
        llm.load(**arguments)  # type: ignore[arg-type]


# -- L15: context ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L15")
@pytest.mark.parametrize("context", [-(2**31), -1, 0, 1, 2, 15, 2**24 + 1, 2**31 - 1, 2**31, 2**63, True, 64.0, "64", None])
def test_a_context_below_16_or_beyond_reason_or_no_integer_is_refused(synthetic: Synthetic, context: object) -> None:
    with pytest.raises(ConfigurationError, match=r"context .*16\.\.16777216|context .* 16 .*"):
        llm.load(synthetic("llama"), context=context)  # type: ignore[arg-type]


@pytest.mark.contract("L15")
@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba", "lfm2"])
@pytest.mark.parametrize("context", [16, 17, 300])
def test_a_prompt_of_all_but_one_position_gives_one_token_and_a_longer_one_the_same_error_each_time(
    synthetic: Synthetic, name: str, context: int
) -> None:
    with llm.load(synthetic(name), context=context) as model:
        for _ in range(2):
            fits = model.generate([5] * (context - 1), max_tokens=8, ignore_eos=True)
            assert (len(fits.token_ids()), fits.finish_reason()) == (1, "length")
            for n in (context, context + 1, 10 * context):
                with pytest.raises(ContextFullError, match=rf"{n} tokens .* {context}\b"):
                    model.generate([5] * n, max_tokens=8)


@pytest.mark.contract("L15")
def test_generation_that_reaches_the_end_of_the_context_finishes_with_length_and_keeps_every_token(
    synthetic: Synthetic,
) -> None:
    with llm.load(synthetic("llama"), context=32, reproducible=True) as short:
        cut = short.generate(PROMPT, max_tokens=100, ignore_eos=True)
    with llm.load(synthetic("llama"), context=512, reproducible=True) as wide:
        whole = wide.generate(PROMPT, max_tokens=100, ignore_eos=True)
    assert (len(cut.token_ids()), cut.finish_reason()) == (32 - len(PROMPT), "length")
    assert cut.token_ids() == whole.token_ids()[: 32 - len(PROMPT)]  # nothing was shifted or clipped on the way


@pytest.mark.contract("L15")
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(synthetic: Synthetic) -> None:
    with (
        llm.load(synthetic("llama-plain"), context=64) as model,
        pytest.raises(ContextFullError, match=r"bytes, at least .* 64"),
    ):
        model.generate("x" * 10_000_000, max_tokens=1)


# -- L4, L9, L10: what is no model that can generate -----------------------------------------------------------------------


@pytest.mark.contract("L4")
@pytest.mark.parametrize(
    "path",
    [
        "https://example.org/m.gguf",
        "http://127.0.0.1:9/m.gguf",
        "file:///m.gguf",
        "hf://user/model",
        "s3://bucket/m.gguf",
        "://",
    ],
)
def test_an_address_is_refused_by_name_as_not_local(path: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"is not a local file: aner never downloads") as refused:
        llm.load(path)
    assert path in str(refused.value)


@pytest.mark.contract("L4")
@pytest.mark.parametrize("path", ["", "missing.gguf", "org/model", "a\0b", "x" * 5000, "\udcff.gguf"])
def test_a_path_without_a_file_is_not_found(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFoundError) as refused:
        llm.load(path)
    assert isinstance(refused.value, FileNotFoundError)


@pytest.mark.contract("L10")
@pytest.mark.parametrize(
    ("architecture", "reason"),
    [("bert", "encoder"), ("t5encoder", "encoder"), ("t5", "encoder-decoder"), ("dream", "diffusion"), ("llada", "diffusion"),
     ("clip", "vision projector"), ("eagle3", "draft"), ("wavtokenizer-dec", "sound")],
)  # fmt: skip
def test_an_architecture_that_cannot_generate_is_refused_with_the_reason(
    tmp_path: Path, architecture: str, reason: str
) -> None:
    named = lambda writer: gguf_files.set_value(writer, "general.architecture", architecture)  # noqa: E731
    path = gguf_files.llama(tmp_path / "m.gguf", edit=named)
    with pytest.raises(ModelLoadError, match=f"'{architecture}' .*{reason}"):
        llm.load(path)


@pytest.mark.contract("L10")
def test_a_model_that_looks_ahead_or_has_no_vocabulary_is_refused_with_the_reason(tmp_path: Path) -> None:
    ahead = lambda writer: gguf_files.set_value(writer, "llama.attention.causal", False)  # noqa: E731
    with pytest.raises(ModelLoadError, match=r"attention.causal = false.*cannot generate"):
        llm.load(gguf_files.llama(tmp_path / "ahead.gguf", edit=ahead))
    with pytest.raises(ModelLoadError, match=r"no vocabulary .*cannot generate"):
        llm.load(gguf_files.llama(tmp_path / "mute.gguf", vocabulary="none"))


# -- L6, L11: identity -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L6")
def test_the_fingerprint_is_the_sha256_of_the_content_and_derived_leases_keep_it(synthetic: Synthetic) -> None:
    expected = hashlib.sha256(synthetic("llama").read_bytes()).hexdigest()
    with llm.load(synthetic("llama"), context=64) as model:
        leases = [model, model.with_context_pool(2), model.native_stateless(), model.with_context_pool(0).native_stateless()]
        assert [lease.fingerprint() for lease in leases] == [expected] * 4


@pytest.mark.contract("L11")
def test_a_second_load_of_a_path_has_weights_and_contexts_of_its_own(tmp_path: Path) -> None:
    path = gguf_files.llama(tmp_path / "wide.gguf", size=gguf_files.Size(n_ff=8192, n_layer=4))  # 51 MiB
    weights = path.stat().st_size
    before = anonymous_bytes()
    first = llm.load(path, context=64, mapped=False)
    second = llm.load(path, context=64, mapped=False)
    assert anonymous_bytes() - before >= 1.9 * weights
    expected = output_of(first)
    busy = first.stream(PROMPT, max_tokens=8)  # holds the first one's only context
    next(busy)
    assert second.generate(PROMPT, max_tokens=1).timings()["context_pool_reused"] == 1
    busy.close()
    first.close()
    assert output_of(second) == expected
    second.close()


@pytest.mark.contract("L11")
def test_each_load_maps_the_file_again(own: Path) -> None:
    first = llm.load(own, context=64)
    once = mappings_of(own)
    second = llm.load(own, context=64)
    assert once >= 1
    assert mappings_of(own) == 2 * once
    first.close()
    assert mappings_of(own) == once
    second.close()


# -- L14: mapped weights -----------------------------------------------------------------------------------------------------


@pytest.mark.contract("L14")
def test_weights_are_mapped_by_default_and_survive_the_replacement_of_the_file(own: Path, tmp_path: Path) -> None:
    with llm.load(own, context=64) as model:
        assert model.memory_summary()["weights_mapped"] is True
        assert mappings_of(own) >= 1
        expected = output_of(model)
        os.replace(gguf_files.llama(tmp_path / "other.gguf", seed=9), own)
        assert output_of(model) == expected


@pytest.mark.contract("L14")
@pytest.mark.parametrize("name", ["llama", "llama-q4", "gemma3", "mamba", "lfm2"])
def test_private_weights_survive_truncation_and_overwriting_of_the_file(
    synthetic: Synthetic, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(synthetic(name).read_bytes())
    with llm.load(path, context=64) as mapped:
        expected = output_of(mapped)
    with llm.load(path, context=64, mapped=False) as model:
        assert model.memory_summary()["weights_mapped"] is False
        assert mappings_of(path) == 0
        os.truncate(path, 100)
        assert output_of(model) == expected
        path.write_bytes(os.urandom(100_000))
        assert output_of(model) == expected
