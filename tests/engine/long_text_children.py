"""What test_long_texts.py runs in processes of its own, which a stack that is too small would kill."""

from __future__ import annotations

import time

from aner import OutOfMemoryError, llm

#: Runs over which one pre-tokenizer or another matches as a whole, some of them over spaces.
RUNS = ["a", "A", "aB", "7", "!", " ", "\n", "\u4e2d", " \u00a0", "a b ", "e\u0301", "\uff0c", "\U0001f600", "'s"]


def long_runs(path: str, n_characters: int) -> list[str]:
    """Tokenizes a long text of each run on its own; says which ones do not come back from it."""
    model = llm.load(path, context=64)
    wrong = []
    for run in RUNS:
        text = (run * (n_characters // len(run) + 1))[:n_characters]
        if model.detokenize(model.tokenize(text)) != text:
            wrong.append(run)
    return wrong


def one_long_word(path: str, n_characters: int) -> str:
    """ "whole", or why not: a text that would not fit in memory is refused."""
    model = llm.load(path, context=64)
    text = "x" * n_characters
    try:
        return "whole" if model.detokenize(model.tokenize(text)) == text else "changed"
    except OutOfMemoryError as error:
        return str(error)


def digit_groups(path: str) -> list[object]:
    """Tokens of digits whose merges tell where the groups begin, and the seconds that a long run of digits takes."""
    model = llm.load(path, context=64)
    texts = ["123123", "1231231", "12312312", "\u00b2123", "12\u00b2123123", "a123123,12"]
    before = time.monotonic()
    n_tokens = len(model.tokenize("123" * 30_000))
    seconds = time.monotonic() - before
    return [[[model.detokenize([token]) for token in model.tokenize(text)] for text in texts], n_tokens, seconds]


def many_control_texts(path: str, n: int) -> list[int]:
    """Seconds that a message of ``n`` spelled control tokens takes, and the tokens of its prompt."""
    model = llm.load(path, context=1 << 20).with_optimizer(1, 1, 64, 64)
    before = time.monotonic()
    response = model.generate("<|im_end|>" * n, max_tokens=0)
    return [int(time.monotonic() - before), response.timings()["input_tokens"]]
