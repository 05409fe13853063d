#!/usr/bin/env python3
"""One sample of DEC1 by a process of its own, as llama-bench makes each of its: loads, warms up with a whole prefill, measures.

    python bench/aner_once.py '{"model": "MODEL.gguf", "seed": 0, "prompt_tokens": 512, "decode_steps": 128}'

Prints the sample as JSON, with the model's memory summary.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import aner_runs
from aner import llm
from aner.measure import Sample


def measure_once(model: Path, seed: int, prompt_tokens: int, decode_steps: int, flash_attention: str = "auto") -> Sample:
    """The sample of a child process."""
    asked = {
        "model": str(model),
        "seed": seed,
        "prompt_tokens": prompt_tokens,
        "decode_steps": decode_steps,
        "flash_attention": flash_attention,
    }
    done = subprocess.run([sys.executable, __file__, json.dumps(asked)], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"aner_once.py ended with {done.returncode}: {done.stderr[-2000:]}")
    return Sample(**json.loads(done.stdout))


def main() -> None:
    asked = json.loads(sys.argv[1])
    n_prompt, n_decode = asked["prompt_tokens"], asked["decode_steps"]
    # llama-bench's context holds n_prompt + n_decode positions; aner's has one more for the token that is never evaluated.
    context = n_prompt + n_decode + 1
    with llm.load(asked["model"], context, "cpu", flash_attention=asked.get("flash_attention", "auto")) as model:
        prompt = aner_runs.prompt_of(model, n_prompt, asked["seed"])
        aner_runs.generate(model, prompt, 1)
        sample = aner_runs.generate(model, prompt, n_decode)
        memory = dict(model.memory_summary())
    print(json.dumps(asdict(Sample(sample.values, {**sample.details, "memory": memory}))))


if __name__ == "__main__":
    main()
