"""Generation options: each validated at the call, by name, with the value; nothing clamped, nothing unknown accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aner import AnerError, InvalidRequestError, llm
from aner.llm import _options

PROMPT = [1, 75, 104]
NAN, INF = float("nan"), float("inf")
NOT_A_NUMBER = [None, "1", "x", True, [], {}, 1j, b"1", NAN, INF, -INF, 1e999]
NOT_AN_INTEGER = [None, "1", "x", True, False, 1.0, 0.5, [], {}, NAN, 2**31, -(2**31) - 1, 10**30]

REFUSED: dict[str, list[Any]] = {
    "max_tokens": [-1, -(2**31), *NOT_AN_INTEGER],
    "temperature": [-1, -1e-6, 100.5, 1e6, *NOT_A_NUMBER],
    "top_k": [-1, -5, *NOT_AN_INTEGER],
    "top_p": [-1, 0, 1.5, 2, *NOT_A_NUMBER],
    "min_p": [-0.1, 1.1, *NOT_A_NUMBER],
    "repeat_penalty": [0, -1, 10.5, *NOT_A_NUMBER],
    "frequency_penalty": [-2.5, 2.5, *NOT_A_NUMBER],
    "presence_penalty": [-2.5, 2.5, *NOT_A_NUMBER],
    "penalty_window": [-2, *NOT_AN_INTEGER],
    "logit_bias": [[(1, 1.0)], "x", 5, {1: 101}, {1: NAN}, {1: INF}, {1: "x"}, {1: None}, {-1: 1.0}, {10**6: 1.0}, {"1": 1.0},
                   {1.0: 1.0}, {True: 1.0}, {None: 1.0}, {2**40: 1.0}],
    "seed": [-1, 2**64, "x", "1", 0.0, 1.5, True, [], NAN],
    "stop": ["", [""], ["a", ""], 5, b"x", [b"x"], [5], [None], {"a": 1}, ["x"] * 17, "x" * 1025, "\ud800", ["ok", "a\udfffb"]],
    "stop_token_ids": [5, "x", b"x", ["x"], [1.0], [None], [True], [-1], [10**6], [2**40], {1: 2}],
    "min_tokens": [-1, 17, *NOT_AN_INTEGER],
    "ignore_eos": [None, 0, 1, "yes", []],
    "logprobs": [-1, 21, 1.0, "x", [], 2**31],
    "timeout": [0, -1, NAN, INF, -INF, "x", "1", True, [], 1e300, 0.0],
}  # fmt: skip
ACCEPTED: dict[str, list[Any]] = {
    "max_tokens": [0, 1, np.int64(2), np.uint8(3)],
    "temperature": [0, 1, 100, 1e-30, 0.7, np.float32(0.5)],
    "top_k": [0, 1, 2**31 - 1, np.int32(4)],
    "top_p": [1, 1e-9, 0.5, np.float64(0.9)],
    "min_p": [0, 1, 0.05],
    "repeat_penalty": [1, 10, 1e-30],
    "frequency_penalty": [-2, 0, 2],
    "presence_penalty": [-2, 0, 2],
    "penalty_window": [-1, 0, 1, 2**31 - 1],
    "logit_bias": [None, {}, {5: 100}, {5: -100.0}, {5: -INF}, {np.int64(5): np.float32(1)}],
    "seed": [None, 0, 1, 2**63, 2**64 - 1, np.uint64(2**64 - 1)],
    "stop": [None, [], "x", ["x", "y"], ("x",), ["x"] * 16, "x" * 1024, "\u00e9\U0001f600\0"],
    "stop_token_ids": [None, [], [0, 1], (5,), np.array([5, 6]), range(4)],
    "min_tokens": [0, 2, 16],
    "ignore_eos": [True, False],
    "logprobs": [None, False, True, 0, 1, 20],
    "timeout": [None, 1, 0.5, 3600.0, 86400 * 365],
}


@pytest.fixture(scope="module")
def small(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=64) as model:
        yield model.with_optimizer(1, 1)


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [pytest.param(name, value, id=f"{name}-{i}") for name, values in table.items() for i, value in enumerate(values)]


def test_every_option_has_refused_and_accepted_values_here() -> None:
    assert set(REFUSED) == set(ACCEPTED) == set(_options.DEFAULTS)


@pytest.mark.contract("Z7")
@pytest.mark.parametrize(("name", "value"), cases(REFUSED))
def test_a_value_out_of_range_is_refused_by_name_at_the_call(small: llm.Model, name: str, value: Any) -> None:
    options = {"max_tokens": 16, name: value}
    for call in (small.generate, small.stream, small.start):
        with pytest.raises(InvalidRequestError, match=name) as caught:
            call(PROMPT, **options)  # type: ignore[operator]
        assert len(str(caught.value)) < 300


@pytest.mark.contract("Z7")
@pytest.mark.parametrize(("name", "value"), cases(ACCEPTED))
def test_a_value_in_range_is_accepted_up_to_the_bounds(small: llm.Model, name: str, value: Any) -> None:
    response = small.generate(PROMPT, **{"max_tokens": 16, "temperature": 0.5, name: value})
    assert len(response.token_ids()) <= 16
    if name == "seed" and value is not None:
        assert response.seed() == value


@pytest.mark.contract("Z7")
@pytest.mark.parametrize("name", ["max_token", "Temperature", "n_predict", "stream", "echo", "", "on_tex", "context"])
def test_an_unknown_option_is_refused_and_the_known_ones_are_named(small: llm.Model, name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"unknown option {name}.*max_tokens.*timeout"):
        small.generate(PROMPT, **{name: 1})


@pytest.mark.contract("Z7")
def test_options_that_contradict_each_other_are_refused(small: llm.Model) -> None:
    with pytest.raises(InvalidRequestError, match="min_tokens is 5 and max_tokens is 4"):
        small.generate(PROMPT, min_tokens=5, max_tokens=4)


@pytest.mark.contract("Z7")
@pytest.mark.parametrize("value", [True, "print", 5, [print]])
def test_an_on_text_that_cannot_be_called_is_refused(small: llm.Model, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="on_text must be callable"):
        small.generate(PROMPT, on_text=value)


@pytest.mark.contract("Z7")
def test_temperature_zero_is_greedy_whatever_the_filters_and_the_seed(small: llm.Model) -> None:
    plain = small.generate(PROMPT, max_tokens=12).token_ids()
    for seed in (0, 1, 2):
        assert small.generate(PROMPT, max_tokens=12, seed=seed, top_k=3, top_p=0.5, min_p=0.5).token_ids() == plain
    assert small.generate(PROMPT, max_tokens=12, temperature=100.0, top_k=1, seed=9).token_ids() == plain


@pytest.mark.contract("Z7")
def test_seed_zero_is_a_seed_like_any_other(small: llm.Model) -> None:
    outputs = [small.generate(PROMPT, max_tokens=12, temperature=3.0, seed=0) for _ in range(3)]
    assert {response.seed() for response in outputs} == {0}
    assert len({response.output_hash() for response in outputs}) == 1


anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 40), st.floats(), st.text(max_size=4), st.binary(max_size=4),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=3),
    st.dictionaries(st.integers(-2, 400) | st.text(max_size=2), st.floats() | st.integers() | st.none(), max_size=3),
)  # fmt: skip


@pytest.mark.contract("E2", "Z7")
@settings(max_examples=300, deadline=None)
@given(options=st.dictionaries(st.sampled_from(sorted(_options.DEFAULTS)), anything, max_size=4))
def test_any_mix_of_values_is_answered_or_refused_in_type(small: llm.Model, options: dict[str, Any]) -> None:
    try:
        response = small.generate(PROMPT, **options)
    except AnerError:
        return
    assert len(response.token_ids()) <= 64
    assert small.generate(PROMPT, max_tokens=1, ignore_eos=True).timings()["output_tokens"] == 1
