"""The aner side of the benchmarks: a loaded model, prompts of an exact length, and figures taken from the timings."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from aner import llm
from aner.measure import MISSING, Sample

WORDS = ("the", "of", "and", "to", "in", "is", "it", "you", "that", "he", "was", "for", "on", "are", "with", "as", "his")


def load(path: Path, context: int, threads: int = 0, **options: Any) -> llm.Model:
    """A lease on the CPU with the default profile, or with ``threads`` for both kinds of step."""
    model = llm.load(str(path), context=context, device="cpu", **options)
    if not threads:
        return model
    with model:
        return model.with_optimizer(threads=threads, prefill_threads=threads)


def prompt_of(model: llm.Model, tokens: int, seed: int) -> str:
    """Plain words of which ``raw=True`` evaluates exactly ``tokens`` tokens, begin-of-text included where the model has one."""
    draw = random.Random(seed)
    words: list[str] = []
    wanted = tokens
    for _ in range(4):
        while len(model.tokenize(" ".join(words))) < wanted:
            words += draw.choices(WORDS, k=max(1, (wanted - len(words)) // 2))
        while len(model.tokenize(" ".join(words))) > wanted:
            words.pop()
        text = " ".join(words)
        found = int(model.generate(text, max_tokens=1, temperature=0.0, raw=True).timings()["evaluated_input_tokens"])
        if found == tokens:
            return text
        wanted += tokens - found
    raise SystemExit(f"no prompt of exactly {tokens} tokens was found for this model's vocabulary")


def generate(model: llm.Model, prompt: str, n_decode: int) -> Sample:
    """One request: the prompt, then ``n_decode`` decode steps behind it. Figures in tokens per second.

    ``prefill``: prompt tokens over ``prefill_duration``, which holds the sampling of the first token too. That token comes out
    of the prefill, so ``n_decode + 1`` are asked for. ``decode``: the others over ``generation_duration``, engine calls and
    sampling. ``decode_delivered``: the others over the time from the first token to the response, text and Python included.
    """
    started = time.perf_counter_ns()
    response = model.generate(prompt, max_tokens=n_decode + 1, temperature=0.0, raw=True, ignore_eos=True)
    wall = time.perf_counter_ns() - started
    t = dict(response.timings())
    if t["output_tokens"] != n_decode + 1:
        raise RuntimeError(f"{n_decode + 1} tokens were asked for and {t['output_tokens']} came")
    return Sample(
        {
            "prefill": _per_second(t["evaluated_input_tokens"], t["prefill_duration"]),
            "decode": _per_second(n_decode, t["generation_duration"]),
            "decode_delivered": _per_second(n_decode, wall - t["first_token_duration"]),
        },
        {"timings": t, "wall_ns": wall, "output_hash": response.output_hash(), "finish_reason": response.finish_reason()},
    )


def _per_second(tokens: int, nanoseconds: int) -> float:
    return 1e9 * tokens / nanoseconds if tokens > 0 and nanoseconds > 0 else MISSING
