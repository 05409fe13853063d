"""A real model, SmolLM2-135M-Instruct Q4_1: that what the synthetic ones show holds, and that it makes sense."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

from aner import ContextFullError, llm

pytestmark = pytest.mark.real_model

# The vocabulary has no token for some control characters, nor for the lead bytes of unassigned planes.
CHARACTERS = st.characters(categories=["L", "M", "N", "P", "S", "Zs"], max_codepoint=0x4FF) | st.sampled_from(
    "\u4e2d\u6587\uac00\uff0c\U0001f600\u200d"
)
CONVERSATION = [
    {"role": "system", "content": "You answer in one word."},
    {"role": "user", "content": "2 + 2 = 4?\n\u00c9t\u00e9 \U0001f600"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "And 12345?"},
]


@pytest.fixture(scope="module")
def exact(demo_model_path: Path) -> Iterator[llm.Model]:
    with llm.load(demo_model_path, context=2048, reproducible=True) as model:
        yield model


@pytest.fixture(scope="module")
def tokenizer(demo_model_path: Path) -> Tokenizer:
    """The reference library's tokenizer, put together from the file's own tables."""
    fields = GGUFReader(demo_model_path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    reference = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    kinds = fields["tokenizer.ggml.token_type"].contents()
    reference.add_special_tokens([token for token, kind in zip(tokens, kinds, strict=True) if kind == 3])
    return reference


# -- it makes sense ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L13")
@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("The capital of France is", " Paris"), ("1, 2, 3, 4, 5,", " 6, 7, 8"), ("The opposite of hot is", " cold")],
)
def test_it_continues_what_everybody_knows(demo_model: llm.Model, prompt: str, answer: str) -> None:
    assert demo_model.generate(prompt, raw=True, max_tokens=8).text().startswith(answer)


@pytest.mark.contract("L13", "T4")
def test_a_chat_ends_at_the_end_of_the_turn(demo_model: llm.Model) -> None:
    response = demo_model.generate("Say hello.", max_tokens=300)
    assert response.finish_reason() == "stop"
    assert 0 < len(response.token_ids()) < 300
    assert "<|im_end|>" not in response.text()
    end = demo_model.tokenize("<|im_end|>", control=True)[0]
    assert end not in response.token_ids()
    longer = demo_model.generate("Say hello.", max_tokens=len(response.token_ids()) + 5, ignore_eos=True)
    assert longer.token_ids()[: len(response.token_ids())] == response.token_ids()
    assert (len(longer.token_ids()), longer.finish_reason()) == (len(response.token_ids()) + 5, "length")


@pytest.mark.contract("T4")
def test_log_probabilities_are_those_of_a_distribution(demo_model: llm.Model) -> None:
    entries = demo_model.generate("The capital of France is", raw=True, max_tokens=8, logprobs=20).logprobs()
    assert entries is not None
    for entry in entries:
        chances = [math.exp(top.logprob) for top in entry.top]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) <= 1 + 1e-5
        assert entry.top[0].token_id == entry.token_id
    assert entries[0].bytes == b" Paris"
    assert entries[0].logprob > math.log(0.5)


# -- text to tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("L13")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(CHARACTERS, max_size=60) | st.text("aA1 .'\n\t\u00e9\u4e2d\U0001f600", max_size=60))
def test_text_is_tokenized_as_by_the_reference_library_and_comes_back(
    demo_model: llm.Model, tokenizer: Tokenizer, text: str
) -> None:
    ids = demo_model.tokenize(text)
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids
    assert demo_model.detokenize(ids) == text


@pytest.mark.contract("L13")
def test_a_conversation_is_rendered_and_tokenized_as_by_the_reference_library(exact: llm.Model, tokenizer: Tokenizer) -> None:
    for messages in (CONVERSATION, CONVERSATION[1:2], CONVERSATION[:2]):
        rendered, _ = render_jinja_template(
            conversations=[messages], chat_template=exact.metadata()["chat_template"], add_generation_prompt=True
        )
        ids = tokenizer.encode(rendered[0], add_special_tokens=False).ids
        options: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "logprobs": 3}
        one, other = exact.generate(ids, **options), exact.generate(messages=messages, **options)
        assert one.timings()["input_tokens"] == other.timings()["input_tokens"] == len(ids)
        assert (one.token_ids(), one.logprobs()) == (other.token_ids(), other.logprobs())


# -- exact text --------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("Z5")
@pytest.mark.parametrize(
    "prompt",
    [
        "\U0001f600\U0001f601\U0001f602\U0001f600\U0001f601\U0001f602",
        "\u4f60\u597d\u4e16\u754c\uff0c\u4eca\u5929",
        "caf\u00e9, ",
    ],
)
def test_a_budget_that_ends_inside_a_character_ends_in_whole_text(demo_model: llm.Model, prompt: str) -> None:
    whole = demo_model.generate(prompt, raw=True, max_tokens=12, ignore_eos=True, logprobs=True)
    entries = whole.logprobs()
    assert entries is not None
    cut_characters = 0
    for n in range(1, 13):
        raw = b"".join(entry.bytes for entry in entries[:n])
        stream = demo_model.stream(prompt, raw=True, max_tokens=n, ignore_eos=True)
        text = "".join(stream)
        assert text == stream.response().text() == raw.decode("utf-8", "replace")
        assert stream.response().token_ids() == whole.token_ids()[:n]
        cut_characters += text.endswith("\ufffd")
    assert cut_characters > 0 or prompt.startswith("caf")


@pytest.mark.contract("Z5")
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_stop_strings_cut_from_the_output_end_it_where_they_first_end(demo_model: llm.Model, data: st.DataObject) -> None:
    options: dict[str, Any] = {"raw": True, "max_tokens": 12}
    whole = demo_model.generate("The capital of France is", **options).text()
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = whole[start : start + data.draw(st.integers(1, 12))]
    response = demo_model.generate("The capital of France is", stop=stop, **options)
    streamed = "".join(demo_model.stream("The capital of France is", stop=stop, **options))
    assert response.text() == streamed == whole[: whole.index(stop)]
    assert response.finish_reason() == "stop"


# -- exact tokens ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("V1")
def test_greedy_tokens_are_those_of_one_token_at_a_time_and_of_any_number_of_threads(exact: llm.Model) -> None:
    prompt = exact.tokenize("Once upon a time there was")
    expected = exact.generate(prompt, max_tokens=16, ignore_eos=True).token_ids()
    history = list(prompt)
    for _ in range(16):
        history += exact.generate(history, max_tokens=1, ignore_eos=True).token_ids()
    assert history[len(prompt) :] == expected
    for threads in (1, 2):
        other = exact.with_optimizer(threads, threads)
        assert other.generate(prompt, max_tokens=16, ignore_eos=True).token_ids() == expected


@pytest.mark.contract("V1")
def test_a_long_prefill_is_evaluated_whole_and_is_exact_in_any_chunks(demo_model: llm.Model, exact: llm.Model) -> None:
    text = " ".join(f"Item {i}: the number after {i} is {i + 1}." for i in range(200))
    prompt = demo_model.tokenize(text)
    response = demo_model.generate(prompt[:1500], max_tokens=4, ignore_eos=True)
    assert response.timings()["evaluated_input_tokens"] == 1500
    whole = exact.generate(prompt[:300], max_tokens=4, ignore_eos=True)
    small_chunks = exact.with_optimizer(0, 0, 128, 96)
    assert small_chunks.generate(prompt[:300], max_tokens=4, ignore_eos=True).token_ids() == whole.token_ids()


@pytest.mark.contract("L15")
def test_a_prompt_beyond_the_context_is_refused_with_both_counts(demo_model: llm.Model) -> None:
    with pytest.raises(ContextFullError, match=r"2048 tokens.*2048"):
        demo_model.generate([5] * 2048)


# -- what it says of itself --------------------------------------------------------------------------------------------------


@pytest.mark.contract("L5", "M1")
def test_the_load_summary_and_the_metadata_are_those_of_the_file(demo_model: llm.Model, demo_model_path: Path) -> None:
    summary, metadata = demo_model.load_summary(), demo_model.metadata()
    assert summary["content_bytes"] == demo_model_path.stat().st_size
    parts = ("digest_before_duration", "digest_after_duration", "engine_load_duration")
    assert min(summary[part] for part in parts) > 0
    assert sum(summary[part] for part in parts) <= summary["total_duration"]
    assert (metadata["architecture"], metadata["layers"], metadata["embedding"], metadata["vocabulary"]) == (
        "llama",
        30,
        576,
        49152,
    )
    assert metadata["chat_template"].startswith("{% for message in messages %}")
    assert demo_model.supports("chat")
