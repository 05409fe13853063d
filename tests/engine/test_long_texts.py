"""Very long words through every pre-tokenizer that the engine has: the process survives, the text comes back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gguf import GGUFWriter

from aner import ModelLoadError, llm
from tests.engine import long_text_children as children
from tests.support import gguf_files
from tests.support.call_in_child import call_in_child

TINY = gguf_files.Size(n_embd=32, n_head=1, n_kv=1, n_ff=32, n_layer=1)
# One name for each way in which byte-level BPE texts are split; those with regular expressions of their own first.
SPLIT_BY_EXPRESSIONS = [
    "afmoe", "bailingmoe", "chameleon", "deepseek-coder", "deepseek-llm", "deepseek-v3", "exaone-moe", "falcon", "gpt-4o",
    "granite-embed-multi-97m", "jais-2", "minicpm5", "poro-chat", "seed-coder", "spark2_5", "superbpe", "tekken", "tiny_aya",
    "ufakzeka", "viking", "youtu",
]  # fmt: skip
SPLIT_BY_HAND = ["default", "gpt-2", "kimi-k2", "laguna", "llama3", "qwen2", "qwen35", "smollm"]


@pytest.fixture(scope="module")
def with_pre_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pre")

    def made(name: str) -> Path:
        def edit(writer: GGUFWriter) -> None:
            gguf_files.set_value(writer, "tokenizer.ggml.pre", name)

        return gguf_files.llama(folder / f"{name}.gguf", vocabulary="bpe", size=TINY, edit=edit)

    return made


@pytest.mark.contract("E2")
def test_every_pre_tokenizer_survives_long_runs_and_keeps_the_text(with_pre_tokenizer: Callable[[str], Path]) -> None:
    n_characters = dict.fromkeys(SPLIT_BY_EXPRESSIONS, 100_000) | dict.fromkeys(SPLIT_BY_HAND, 20_000)

    def wrong_runs(name: str) -> list[str]:
        found = call_in_child(children.long_runs, with_pre_tokenizer(name), n_characters[name]).checked()
        return [f"{name}: {run!r}" for run in found]

    with ThreadPoolExecutor(2) as both:
        assert [wrong for found in both.map(wrong_runs, n_characters) for wrong in found] == []


@pytest.mark.contract("E2")
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-4o"])
def test_a_word_of_four_million_letters_is_tokenized_or_refused_for_its_size(
    with_pre_tokenizer: Callable[[str], Path], name: str
) -> None:
    said = call_in_child(children.one_long_word, with_pre_tokenizer(name), 4_000_000).checked()
    assert said == "whole" or "MiB are available" in said


@pytest.mark.contract("E2", "E3")
def test_a_text_that_no_memory_holds_is_refused_for_its_size(with_pre_tokenizer: Callable[[str], Path]) -> None:
    said = call_in_child(children.one_long_word, with_pre_tokenizer("tekken"), 80_000_000)
    assert said.exit_code == 1
    assert "80000000 bytes: at most 67108864" in said.stderr


@pytest.mark.contract("E2")
def test_digits_in_groups_of_three_are_found_in_linear_time(tmp_path: Path) -> None:
    def edit(writer: GGUFWriter) -> None:
        gguf_files.set_value(writer, "tokenizer.ggml.pre", "superbpe")
        tokens = writer.kv_data[0]["tokenizer.ggml.tokens"].value
        gguf_files.set_value(writer, "tokenizer.ggml.tokens", [*tokens[:-2], "12", "123"])
        gguf_files.set_value(writer, "tokenizer.ggml.merges", ["1 2", "12 3"])

    path = gguf_files.llama(tmp_path / "m.gguf", vocabulary="bpe", size=TINY, edit=edit)
    split, n_tokens, seconds = call_in_child(children.digit_groups, path).checked()
    # Groups are counted from the end of a run of digits; only a group "123" is one token, only "12" within a group is merged.
    superscript = ["\ufffd", "\ufffd"]  # the two bytes of a number that is no digit
    assert split == [
        ["123", "123"], ["1", "2", "3", "1", "2", "3", "1"], ["12", "3", "12", "3", "12"], [*superscript, "123"],
        ["12", *superscript, "123", "123"], ["a", "123", "123", ",", "12"],
    ]  # fmt: skip
    assert n_tokens == 30_000
    assert seconds < 20


@pytest.mark.contract("E2", "L9")
def test_a_pre_tokenizer_that_the_engine_asserts_on_is_refused_at_load(with_pre_tokenizer: Callable[[str], Path]) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.pre = 'whitespace'"):
        llm.load(with_pre_tokenizer("whitespace"))
    with pytest.raises(ModelLoadError, match="pre"):
        llm.load(with_pre_tokenizer("not-one"))


@pytest.mark.contract("E2", "L13")
def test_a_message_of_a_hundred_thousand_spelled_control_tokens_is_read_in_linear_time(tmp_path: Path) -> None:
    path = gguf_files.llama(tmp_path / "m.gguf", size=TINY, chat_template=gguf_files.CHATML)
    seconds, n_tokens = call_in_child(children.many_control_texts, path, 100_000).checked()
    template = len("user\n") + len("\n") + len("assistant\n") + 4  # BOS, <|im_start|> twice and <|im_end|>
    assert n_tokens == template + 100_000 * len("<|im_end|>")
    assert seconds < 30
