"""Streams: exact text in whole characters, read in any way."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aner import llm
from tests.support.byte_vocabulary import bytes_of, ids_of

PROMPT = [1, *ids_of("Hello")]
ENDLESS: dict[str, Any] = {"max_tokens": 10_000, "ignore_eos": True}
HOT: dict[str, Any] = {"temperature": 50.0, "ignore_eos": True}
ALPHABETS = ["", "\U0001f600", "\u4e2d\u6587", "e\u0301a", "\U0001f468\u200d\U0001f469 x", "\u00e9\ufffd\U0010ffff"]


@pytest.fixture(scope="module")
def bytes_model(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    """Every token is one byte: nearly every character of the output is split over tokens, and many are broken."""
    with llm.load(synthetic("llama"), context=256) as model:
        yield model.with_optimizer(1, 1)


@pytest.mark.contract("Z5")
@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), max_tokens=st.integers(0, 40), alphabet=st.sampled_from(ALPHABETS))
def test_pieces_joined_are_the_text_and_the_decoded_bytes_of_the_tokens(
    bytes_model: llm.Model, seed: int, max_tokens: int, alphabet: str
) -> None:
    """The budget cuts the output anywhere, also inside a character; the bytes come in any order."""
    favoured = dict.fromkeys(ids_of(alphabet), 60.0)
    options = {**HOT, "seed": seed, "max_tokens": max_tokens, "logit_bias": favoured}
    response = bytes_model.generate(PROMPT, **options)
    stream = bytes_model.stream(PROMPT, **options)
    pieces = list(stream)
    seen: list[str] = []
    called = bytes_model.generate(PROMPT, on_text=seen.append, **options)
    assert "".join(pieces) == response.text() == bytes_of(response.token_ids()).decode("utf-8", "replace")
    assert response.text() == bytes_model.detokenize(response.token_ids())
    assert all(pieces)
    assert seen == pieces
    for other in (stream.response(), called):
        assert (other.text(), other.token_ids(), other.finish_reason()) == (
            response.text(), response.token_ids(), response.finish_reason(),
        )  # fmt: skip


@pytest.mark.contract("Z5", "Z6")
def test_next_and_loops_read_the_same_stream_and_the_response_runs_the_rest(bytes_model: llm.Model) -> None:
    whole = bytes_model.generate(PROMPT, max_tokens=40, ignore_eos=True)
    stream = bytes_model.start(PROMPT, max_tokens=40, ignore_eos=True)
    read = [next(stream), next(stream)]
    reader = iter(stream)
    read += [next(reader), next(reader)]
    assert whole.text().startswith("".join(read))
    response = stream.response()
    assert response.text() == whole.text()
    assert list(reader) == list(stream) == []
    with pytest.raises(StopIteration):
        next(stream)


@pytest.mark.contract("E5")
def test_a_stream_cannot_be_copied_or_pickled(bytes_model: llm.Model) -> None:
    with bytes_model.start(PROMPT, **ENDLESS) as stream:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="running in this process"):
                attempt(stream)
