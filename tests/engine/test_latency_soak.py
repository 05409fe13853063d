"""A thousand requests on one latency profile: prefixes, cancels, failures, always the oracle's answer, and memory that stays flat."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from aner import AnerError, CancelledError, llm
from aner.llm import OptimizerProfile

N_REQUESTS = 1000


def resident() -> int:
    gc.collect()
    return int(psutil.Process(os.getpid()).memory_info().rss)


@pytest.mark.contract("P7", "P11", "P12", "S7", "Z2", "V1")
def test_a_thousand_alternating_requests_answer_by_the_oracle_and_leave_memory_flat(synthetic: Callable[[str], Path]) -> None:
    chance = random.Random(20)
    stems = [[20 + (i * step) % 200 for i in range(70)] for step in (3, 7, 11)]
    prompts = [
        stem[: chance.randint(5, 70)] + [chance.randint(5, 250) for _ in range(chance.randint(0, 12))]
        for stem in stems
        for _ in range(5)
    ]
    with llm.load(synthetic("llama"), context=128, reproducible=True) as model:
        expected = [model.generate(prompt, max_tokens=12, ignore_eos=True).output_hash() for prompt in prompts]
        tuned = model.with_optimizer(OptimizerProfile(prefix_cache_entries=2, prefix_cache_tokens=60, speculative_tokens=4))
        baseline, hits = 0, 0
        for i in range(N_REQUESTS):
            k = chance.randrange(len(prompts))
            kind = chance.random()
            if kind < 0.15:
                stream = tuned.stream(prompts[k], max_tokens=12, ignore_eos=True)
                for _ in range(chance.randint(0, 3)):
                    next(stream, None)
                stream.cancel()
                with pytest.raises(CancelledError):
                    stream.response()
            elif kind < 0.3:
                with pytest.raises(AnerError):
                    tuned.generate(prompts[k] * 30 if kind < 0.2 else prompts[k], max_tokens=5, timeout=1e-9)
            else:
                response = tuned.generate(prompts[k], max_tokens=12, ignore_eos=True)
                assert response.output_hash() == expected[k]
                hits += response.timings()["prefix_cache_hit"]
            assert tuned.memory_summary()["retained_contexts"] <= 2
            if i == 100:
                baseline = resident()
        assert hits > N_REQUESTS // 10
        assert resident() - baseline < max(8 << 20, baseline // 50)
