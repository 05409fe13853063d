"""Stop strings, streaming and not: the first that is complete ends the text, and no part of it is ever seen."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aner import llm
from tests.support.byte_vocabulary import bytes_of, ids_of

PROMPT = [1, *ids_of("Hello")]
# Log biases that make the byte model write lower-case letters, spaces and an accented letter: text in which strings recur.
LETTERS = dict.fromkeys(ids_of("abc de\u00e9"), 60.0)
OPTIONS: dict[str, Any] = {
    "max_tokens": 80, "ignore_eos": True, "temperature": 8.0, "seed": 11, "logit_bias": LETTERS,
}  # fmt: skip


@pytest.fixture(scope="module")
def letters(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=128) as model:
        yield model.with_optimizer(1, 1)


@pytest.fixture(scope="module")
def unstopped(letters: llm.Model) -> llm.Response:
    return letters.generate(PROMPT, **OPTIONS)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The oracle: the whole text cut at the stop string that ends first, and, of those, starts first."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


def check(model: llm.Model, whole: llm.Response, stops: list[str]) -> None:
    expected, stopped = cut(whole.text(), stops)
    response = model.generate(PROMPT, stop=stops, **OPTIONS)
    pieces = list(model.stream(PROMPT, stop=stops, **OPTIONS))
    assert response.text() == expected
    assert "".join(pieces) == expected
    assert all(pieces)
    assert response.finish_reason() == ("stop" if stopped else "length")
    tokens = response.token_ids()
    assert whole.token_ids()[: len(tokens)] == tokens
    assert model.detokenize(tokens).startswith(expected)
    if stopped:  # no token was spent after the one that completed it
        before = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes_of(tokens[:-1]))
        assert not any(stop in before for stop in stops)


@pytest.mark.contract("Z5")
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_stops_cut_from_the_output_end_it_where_the_whole_text_says(
    letters: llm.Model, unstopped: llm.Response, data: st.DataObject
) -> None:
    text = unstopped.text()
    stops = []
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text) - 1))
        stops.append(text[start : start + data.draw(st.integers(1, 12))])
    stops += data.draw(st.lists(st.text("abcde \u00e9\ufffdx", min_size=1, max_size=4), max_size=2))
    for order in itertools.islice(itertools.permutations(stops), 2):
        check(letters, unstopped, list(order))


@pytest.mark.contract("Z5")
def test_the_text_is_one_in_which_strings_recur_and_characters_span_tokens(unstopped: llm.Response) -> None:
    text = unstopped.text()
    assert len(unstopped.token_ids()) == 80
    assert text.count("a") > 3
    assert "\u00e9" in text or "\ufffd" in text


@pytest.mark.contract("Z5")
def test_a_stop_at_the_start_leaves_no_text(letters: llm.Model, unstopped: llm.Response) -> None:
    text = unstopped.text()
    for length in (1, 2, 5, 30):
        stop = text[:length]
        response = letters.generate(PROMPT, stop=stop, **OPTIONS)
        assert (response.text(), response.finish_reason()) == ("", "stop")
        assert list(letters.stream(PROMPT, stop=stop, **OPTIONS)) == []


@pytest.mark.contract("Z5")
def test_a_stop_that_is_never_completed_withholds_nothing_in_the_end(letters: llm.Model, unstopped: llm.Response) -> None:
    text = unstopped.text()
    for tail in (text[-1:], text[-7:], text):
        check(letters, unstopped, [tail + "#"])


@pytest.mark.contract("Z5")
@pytest.mark.parametrize("swap", [False, True])
def test_overlapping_stops_end_where_the_first_is_complete_in_either_order(
    letters: llm.Model, unstopped: llm.Response, swap: bool
) -> None:
    text = unstopped.text()
    long, inside, tail = text[10:20], text[13:16], text[15:22]
    for stops in ([long, inside], [long, tail], [inside, tail], [long, long[2:]], [text[:3], text[:4]]):
        check(letters, unstopped, stops[::-1] if swap else stops)


@pytest.mark.contract("Z5")
def test_a_stop_that_the_final_replacement_character_completes_is_found(letters: llm.Model) -> None:
    lead = {ids_of("\u00e9")[0]: 100.0}
    response = letters.generate(PROMPT, max_tokens=2, logit_bias=lead, ignore_eos=True, stop="\ufffd\ufffd")
    assert (response.text(), response.finish_reason()) == ("", "stop")


@pytest.mark.contract("Z5")
def test_a_stop_is_looked_for_in_the_output_only(letters: llm.Model, unstopped: llm.Response) -> None:
    prompt = PROMPT + letters.tokenize("never here")
    assert letters.generate(prompt, stop="never here", **OPTIONS).finish_reason() == "length"
    first = unstopped.text()[0]
    spanning = "r" + first  # the prompt's last letters and the output's first one
    assert letters.generate(PROMPT + letters.tokenize("r"), stop=spanning, **OPTIONS).finish_reason() == "length"


@pytest.mark.contract("Z5", "Z7")
def test_token_limits_and_stops_that_end_together_report_the_stop(letters: llm.Model, unstopped: llm.Response) -> None:
    text = letters.generate(PROMPT, **{**OPTIONS, "max_tokens": 10}).text()
    response = letters.generate(PROMPT, stop=text[-2:], **{**OPTIONS, "max_tokens": 10})
    assert response.finish_reason() == "stop"
    assert response.text() == cut(text, [text[-2:]])[0]
    assert unstopped.text().startswith(response.text())
