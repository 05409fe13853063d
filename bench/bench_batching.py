#!/usr/bin/env python3
"""BAT1, BAT2, BAT3, BAT5, BAT6: the throughput profile against llama-batched-bench and llama-server, same model, interleaved.

python bench/bench_batching.py --model MODEL.gguf [--part decode | gap | mixed | late | limits]

decode  aggregate tokens/s while 4 and 8 sequences decode, against llama-batched-bench at the same depth (BAT2)
gap     worst gap of a running stream while a prompt of 1,800 tokens arrives (BAT1), against llama-server's defaults and tuned
mixed   aggregate tokens/s of 4 clients with mixed lengths (BAT2), against llama-server
late    time to first token of a short request that comes after three long ones (BAT3), against llama-server
limits  overload (BAT5) and cancellation in prefill (BAT6): figures of aner alone
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import aner_runs
import llama_server
import options
import peers
from aner import BusyError, CancelledError, llm
from aner.measure import Harness, Sample, Side, describe_model
from timed import Timed

CONTEXT = 2560
CLIENTS = 4
Ask = Callable[[Sequence[int], int], Timed]  # prompt, output tokens
Scenario = Callable[[list[Ask], int], Sample]


# -- what the clients do -------------------------------------------------------------------------------------------------------


def together(work: Sequence[Callable[[], Timed]]) -> tuple[list[Timed], float]:
    """Runs all at once; their answers and the seconds until the last."""
    with ThreadPoolExecutor(len(work)) as clients:
        started = time.perf_counter()
        answers = [one.result() for one in [clients.submit(job) for job in work]]
    return answers, time.perf_counter() - started


def gap(prompt_of: Callable[[int, int], list[int]]) -> Scenario:
    def run(asks: list[Ask], seed: int) -> Sample:
        arrived = threading.Timer(0.8, lambda: late.append(asks[1](prompt_of(1800, seed + 1), 8)))
        late: list[Timed] = []
        arrived.start()
        running = asks[0](prompt_of(64, seed), 400)
        arrived.join()
        values = {"worst_gap_ms": running.worst_gap_ms, "late_ttft_ms": late[0].ttft_ms}
        return Sample(values, {"running_tokens": running.n_tokens, "total_ms": running.total_ms})

    return run


def mixed(prompt_of: Callable[[int, int], list[int]]) -> Scenario:
    """Lengths in the shape of published traces, a tenth of them, so that a sample takes seconds."""

    def run(asks: list[Ask], seed: int) -> Sample:
        chance = random.Random(seed)
        lengths = [(chance.randint(20, 250), chance.choice([12, 24, 48, 96])) for _ in range(3 * CLIENTS)]
        queue = iter(range(len(lengths)))
        lock = threading.Lock()
        answers: list[Timed] = []

        def client(ask: Ask) -> None:
            while True:
                with lock:
                    i = next(queue, None)
                if i is None:
                    return
                answer = ask(prompt_of(lengths[i][0], 1000 * seed + i), lengths[i][1])
                with lock:
                    answers.append(answer)

        threads = [threading.Thread(target=client, args=(ask,)) for ask in asks[:CLIENTS]]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - started
        n_tokens = sum(answer.n_tokens for answer in answers)
        values = {"tokens_per_s": n_tokens / wall, "ttft_p50_ms": median(answer.ttft_ms for answer in answers)}
        return Sample(values, {"output_tokens": n_tokens, "wall_s": wall, "lengths": lengths})

    return run


def late(prompt_of: Callable[[int, int], list[int]]) -> Scenario:
    def run(asks: list[Ask], seed: int) -> Sample:
        def short() -> Timed:
            time.sleep(0.3)
            return asks[3](prompt_of(32, seed), 4)

        longer = [lambda i=i: asks[i](prompt_of(700, seed + 10 + i), 16) for i in range(3)]
        answers, _ = together([*longer, short])
        return Sample({"late_ttft_ms": answers[3].ttft_ms, "long_ttft_ms": max(one.ttft_ms for one in answers[:3])})

    return run


# -- who serves them -----------------------------------------------------------------------------------------------------------


def aner_asks(batching: llm.Model, n: int) -> list[Ask]:
    def of(lease: llm.Model) -> Ask:
        return lambda prompt, n_tokens: aner_runs.stream(lease, list(prompt), n_tokens, ignore_eos=True)

    return [of(lease) for lease in batching.siblings(n)]


@contextmanager
def server_asks(peer: peers.Peer, model: Path, settings: llama_server.Settings, n: int) -> Iterator[list[Ask]]:
    with llama_server.serving(peer, model, settings) as server:
        yield [lambda prompt, n_tokens: server.complete(prompt, n_tokens, ignore_eos=True)] * n


def against_server(
    harness: Harness, batching: llm.Model, model: Path, name: str, scenario: Scenario, chosen: argparse.Namespace
) -> None:
    """Against the program's defaults and a tuned setting: small batches, flash attention off, separate KV."""
    peer = peers.build("llama-server")
    n = CLIENTS
    defaults = llama_server.Settings("defaults", n * CONTEXT, parallel=n)
    tuned = llama_server.Settings(
        "tuned: -b 128 -ub 128 -fa off --no-kv-unified", n * CONTEXT, 2, 128, 128, "off", n, ("--no-kv-unified",)
    )
    references = {
        "gap": {"defaults": {"worst_gap_ms": 0.2}, "tuned": {"worst_gap_ms": 1.0}},
        "mixed": {"defaults": {"tokens_per_s": 1.3}, "tuned": {"tokens_per_s": 1.0}},
    }.get(name, {})
    for place, settings in enumerate((defaults, tuned)):
        with server_asks(peer, model, settings, n) as asks:
            harness.compare(
                f"{name} / {settings.name}",
                Side("aner", lambda seed: scenario(aner_asks(batching, n), seed)),
                Side("llama-server", lambda seed, asks=asks: scenario(asks, seed)),  # type: ignore[misc]
                pairs=chosen.pairs,
                budget_s=chosen.budget / 2,
                references=references.get(settings.name.split(":")[0], {}),
                reuse_control=place > 0,
            )


# -- the decode phase ----------------------------------------------------------------------------------------------------------


def aner_decode(
    lease: llm.Model, prompt_of: Callable[[int, int], list[int]], n: int, depth: int, steps: int
) -> Callable[[int], Sample]:
    def run(seed: int) -> Sample:
        streams = [
            one.start(prompt_of(depth, seed + i), max_tokens=steps + 1, ignore_eos=True)
            for i, one in enumerate(lease.siblings(n))
        ]
        timings = [dict(stream.response().timings()) for stream in streams]
        slowest = max(t["generation_duration"] for t in timings)
        return Sample({"tokens_per_s": n * steps * 1e9 / slowest}, {"timings": timings})

    return run


def batched_bench(peer: peers.Peer, model: Path, n: int, depth: int, steps: int, attention: str) -> Callable[[int], Sample]:
    shape = [
        "-npp",
        str(depth),
        "-ntg",
        str(steps),
        "-npl",
        str(n),
        "-c",
        str(n * (depth + steps + 1)),
        "-b",
        "512",
        "-ub",
        "512",
    ]
    command = [str(peer.path), "-m", str(model), *shape, "-t", "2", "-tb", "2", "-fa", attention, "--output-format", "jsonl"]

    def run(_seed: int) -> Sample:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        (result,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Sample({"tokens_per_s": result["speed_tg"]}, {"result": result})

    return run


def decode(harness: Harness, model: llm.Model, path: Path, chosen: argparse.Namespace) -> None:
    peer = peers.build("llama-batched-bench")
    prompt_of = lambda n, seed: aner_runs.prompt_of(model, n, seed)  # noqa: E731
    for n in (4, 8):
        with model.with_batching(n, step_target_ms=0) as batching:
            for place, attention in enumerate(("off", "on")):
                harness.compare(
                    f"decode {n} / -fa {attention}",
                    Side("aner", aner_decode(batching, prompt_of, n, 128, 64)),
                    Side("llama-batched-bench", batched_bench(peer, path, n, 128, 64, attention)),
                    pairs=chosen.pairs if attention == "off" else 4,
                    budget_s=chosen.budget * (0.35 if attention == "off" else 0.15),
                    references={"tokens_per_s": 0.85},
                    reuse_control=place > 0,
                )


# -- limits --------------------------------------------------------------------------------------------------------------------


def limits(harness: Harness, model: llm.Model, prompt_of: Callable[[int, int], list[int]]) -> None:
    with model.with_batching(2) as batching:
        leases = batching.siblings(40)
        accepted, refused_us = [], []
        for i, lease in enumerate(leases):
            before = time.perf_counter_ns()
            try:
                accepted.append(lease.start(prompt_of(64, i), max_tokens=24, ignore_eos=True))
            except BusyError:
                refused_us.append((time.perf_counter_ns() - before) / 1e3)
        finished = sum(stream.response().timings()["output_tokens"] == 24 for stream in accepted)
        overload = {"accepted": len(accepted), "finished": finished, "refused": len(refused_us), "refused_us": refused_us}
        harness.record("note", note="BAT5 overload: 40 arrivals, 2 slots", **overload)
        print(
            f"BAT5: {len(accepted)} accepted, {finished} finished, {len(refused_us)} refused, median {median(refused_us):.0f} us"
        )
    with model.with_batching(1) as batching:
        first, second = batching.siblings(2)
        reusable_ms = []
        for seed in range(12):
            stream = first.start(prompt_of(1800, seed), max_tokens=4)
            time.sleep(0.2)
            before = time.perf_counter_ns()
            stream.cancel()
            waiting = second.generate(prompt_of(8, seed), max_tokens=1)
            queued = waiting.timings()["queue_duration"]
            reusable_ms.append(max(queued, 0) / 1e6)
            with suppress(CancelledError):
                stream.response()
            harness.record("sample", note="BAT6", queue_ms=queued / 1e6, wall_ms=(time.perf_counter_ns() - before) / 1e6)
        print(
            f"BAT6: a slot that was cancelled in prefill is another's after {median(reusable_ms):.0f} ms (median of {len(reusable_ms)})"
        )


def main() -> None:
    parser = options.parser(__doc__, "batching")
    parser.add_argument("--part", choices=("decode", "gap", "mixed", "late", "limits"), default="decode")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for all comparisons (240)")
    chosen = parser.parse_args()
    chosen.output = chosen.output.with_name(f"{chosen.output.stem}_{chosen.part}.jsonl")
    with (
        options.harness(f"batching_{chosen.part}", chosen, context=CONTEXT) as harness,
        llm.load(chosen.model, CONTEXT, "cpu") as model,
    ):
        harness.record("note", note="model", model=describe_model(model, chosen.model))

        def prompt_of(n: int, seed: int) -> list[int]:
            return aner_runs.prompt_of(model, n, seed)

        if chosen.part == "decode":
            decode(harness, model, chosen.model, chosen)
        elif chosen.part == "limits":
            limits(harness, model, prompt_of)
        else:
            scenario = {"gap": gap, "mixed": mixed, "late": late}[chosen.part](prompt_of)
            with model.with_batching(CLIENTS) as batching:
                harness.record("note", note="profile", profile=repr(batching.profile()))
                against_server(harness, batching, chosen.model, chosen.part, scenario, chosen)
    print(harness.table())
    print(f"The verdict is against the reference, beyond the A/A control's spread. Record: {chosen.output}")


if __name__ == "__main__":
    main()
