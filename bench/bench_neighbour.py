#!/usr/bin/env python3
"""Decode speed while another process keeps one of the cores busy, over decode speed on an idle machine.

    python bench/bench_neighbour.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf

The claim is that at least a third is kept. ``--peer`` runs llama-bench (unpatched, aner's flags) through the same.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import aner_runs
import llama_bench
import options
import peers
from aner import llm
from aner.measure import Sample, Side, describe_model, usable_cpus

FLOOR = 1 / 3
# Ends by itself when its parent is gone or after five minutes, so that not even a killed benchmark leaves it running.
BUSY = """
import os, time
parent, end = os.getppid(), time.monotonic() + 300
while os.getppid() == parent and time.monotonic() < end:
    for _ in range(1_000_000):
        pass
"""


@contextmanager
def busy_neighbour(cpu: int) -> Iterator[None]:
    """One process that never sleeps, on one CPU."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        os.sched_setaffinity(process.pid, {cpu})
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = options.parser(__doc__, "neighbour")
    parser.add_argument("--decode-steps", type=int, default=128)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each comparison (120)")
    parser.add_argument("--peer", action="store_true", help="llama-bench through the same, for comparison")
    chosen = parser.parse_args()
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit("this benchmark pins a process to a CPU, which this system cannot do")
    steps = chosen.decode_steps
    cpu = usable_cpus()[-1]
    with options.harness("neighbour", chosen, decode_steps=steps, neighbour_cpu=cpu) as harness:

        def compare(name: str, run: Callable[[int], Sample]) -> None:
            def disturbed(seed: int) -> Sample:
                with busy_neighbour(cpu):
                    return run(seed)

            harness.compare(
                name,
                Side("with neighbour", disturbed),
                Side("idle", run),
                pairs=chosen.pairs,
                budget_s=chosen.budget,
                references={"decode": FLOOR},
            )

        with llm.load(chosen.model, 64 + steps + 1, "cpu") as model:
            prompt = aner_runs.prompt_of(model, 64, chosen.seed)

            def aner(_seed: int) -> Sample:
                sample = aner_runs.generate(model, prompt, steps)
                return Sample({"decode": sample.values["decode"]}, sample.details)

            timings = aner(chosen.seed).details["timings"]
            harness.record("note", note="model", model=describe_model(model, chosen.model))
            compare("aner", aner)
        if chosen.peer:
            peer = peers.build("llama-bench")
            settings = llama_bench.Settings(threads=timings["threads"], flash_attn="off")
            harness.record("note", note="peer", peer=peer.facts())
            compare("llama-bench", lambda _seed: llama_bench.decode_once(peer, chosen.model, settings, steps))
    print(harness.table())
    print(f"'above': at least a third of the idle speed, beyond the A/A control's spread. Record: {chosen.output}")


if __name__ == "__main__":
    main()
