"""The aner side of the benchmarks: prompts of an exact length, and figures taken from the timings."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aner import llm
from aner.measure import MISSING, Sample
from timed import Timed

WORDS = ("the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as", "his")


def prompt_of(model: llm.Model, tokens: int, seed: int) -> list[int]:
    """Exactly ``tokens`` token ids of plain words, begin-of-text first where the model wants one."""
    words = random.Random(seed).choices(WORDS, k=tokens)
    return model.tokenize(" ".join(words), add_bos=True)[:tokens]


def rendered(model: llm.Model, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """The token ids of a conversation under the model's chat template, for programs that take ids."""
    return model._prompter.conversation(model._require(), messages)[0]


def generate(model: llm.Model, prompt: list[int], n_decode: int) -> Sample:
    """One request: the prompt, then ``n_decode`` decode steps behind it. Figures in tokens per second.

    ``prefill``: prompt tokens over ``prefill_duration``, which holds the sampling of the first token too. That token comes out
    of the prefill, so ``n_decode + 1`` are asked for. ``decode``: the others over ``generation_duration``, engine calls and
    sampling. ``decode_delivered``: the others over the time from the first token to the response, text and Python included.
    """
    started = time.perf_counter_ns()
    response = model.generate(prompt, max_tokens=n_decode + 1, temperature=0.0, ignore_eos=True)
    wall = time.perf_counter_ns() - started
    t = dict(response.timings())
    if (t["evaluated_input_tokens"], t["output_tokens"]) != (len(prompt), n_decode + 1):
        raise RuntimeError(f"{len(prompt)} tokens in and {n_decode + 1} out were asked for, and the timings say {t}")
    return Sample(
        {
            "prefill": _per_second(t["evaluated_input_tokens"], t["prefill_duration"]),
            "decode": _per_second(n_decode, t["generation_duration"]),
            "decode_delivered": _per_second(n_decode, wall - t["first_token_duration"]),
        },
        {"timings": t, "wall_ns": wall, "output_hash": response.output_hash(), "finish_reason": response.finish_reason()},
    )


def stream(model: llm.Model, prompt: list[int], max_tokens: int, **options: Any) -> Timed:
    """One greedy request, read piece by piece."""
    started = time.perf_counter_ns()
    handle = model.stream(prompt, max_tokens=max_tokens, temperature=0.0, **options)
    pieces = [(time.perf_counter_ns() - started) / 1e6 for _piece in handle]
    total = time.perf_counter_ns() - started
    response = handle.response()
    tokens = tuple(response.token_ids())
    details = {
        "timings": dict(response.timings()),
        "output_hash": response.output_hash(),
        "finish_reason": response.finish_reason(),
    }
    return Timed(len(tokens), pieces[0] if pieces else MISSING, total / 1e6, details, tokens, tuple(pieces))


def _per_second(tokens: int, nanoseconds: int) -> float:
    return 1e9 * tokens / nanoseconds if tokens > 0 and nanoseconds > 0 else MISSING
