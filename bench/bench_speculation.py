#!/usr/bin/env python3
"""SPE1 to SPE3: time per output token with prompt-lookup speculation, over the same profile without it.

    python bench/bench_speculation.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf
    python bench/bench_speculation.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --draft-sizes
    python bench/bench_speculation.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --server

The figures are ``tpot_ms``, (end - first piece) / (output tokens - 1), of each task and, as ``tpot_ms`` alone, the geometric
mean of those whose output does not loop.
    SPE1   work that copies from its prompt, speculating over plain: below 1 is better, the claim is at most 1 / 1.5
    SPE2   open text, likewise: the claim is at most 1.03
    SPE3   ``--draft-sizes``: plain over each draft size on SPE1, above 1 is better, with the lease's table T(n)
    ``--server``: SPE1 against llama-server from the same pin with its best n-gram speculation and flash attention, found first,
    over its own HTTP: below 1 is better

The record has, for each task, the accepted tokens by where they came from, the ratio of distinct 4-grams (a loop below 0.5),
the output's first difference from the plain one with its logit gap, and what a replay of the drafts estimates.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import aner_runs
import llama_server
import options
import peers
import workloads
from aner import llm
from aner.measure import (
    Harness,
    Recording,
    Sample,
    Side,
    call_costs,
    describe_model,
    distinct_ngram_ratio,
    first_difference,
    geometric_mean,
    recording_of,
    replay,
    replay_as,
)
from timed import Timed

CONTEXT = 2048
DRAFT = 7  # with the pending token a call of eight rows
DRAFT_SIZES = (1, 2, 3, 4, 6, 7, 8, 15)
LOOP = 0.5  # fewer distinct 4-grams than that: the output goes in circles, and its drafts prove nothing
COPY_CLAIM = 1 / 1.5
OPEN_CLAIM = 1.03


@dataclass(frozen=True)
class Task:
    """One prompt with its plain output."""

    name: str
    prompt: list[int]
    plain: llm.Response
    recording: Recording
    loops: bool


def tasks_of(harness: Harness, model: llm.Model, work: Mapping[str, workloads.Messages], max_tokens: int) -> list[Task]:
    """The tasks with the outputs of the plain model, from which everything that is a function of the tokens follows."""
    found = []
    for name, messages in work.items():
        prompt = aner_runs.rendered(model, messages)
        plain = model.generate(prompt, max_tokens=max_tokens, logprobs=20)
        ratio = distinct_ngram_ratio(plain.token_ids())
        recording = recording_of(model, prompt, plain, max_tokens=max_tokens)
        found.append(Task(name, prompt, plain, recording, ratio < LOOP))
        tokens = {"input_tokens": len(prompt), "output_tokens": len(plain.token_ids()), "distinct_4_grams": ratio}
        harness.record("note", note="task", task=name, text=plain.text(), output_hash=plain.output_hash(), **tokens)
    return found


def profile(speculative_tokens: int) -> llm.OptimizerProfile:
    """With prefix reuse, so that only the first run of a prompt pays for its prefill, which no figure here contains."""
    return llm.OptimizerProfile(prefix_cache_entries=4, speculative_tokens=speculative_tokens)


def measure(tasks: Sequence[Task], ask: Any) -> Sample:
    asked: dict[str, Timed] = {task.name: ask(task.prompt, task.recording.max_tokens) for task in tasks}
    values = {f"tpot_ms {name}": one.tpot_ms for name, one in asked.items()}
    headline = [asked[task.name].tpot_ms for task in tasks if not task.loops]
    return Sample(
        {"tpot_ms": geometric_mean(headline), **values},
        {name: {**one.details, "ttft_ms": one.ttft_ms} for name, one in asked.items()},
    )


def running(name: str, model: llm.Model, tasks: Sequence[Task]) -> Side:
    return Side(name, lambda _seed: measure(tasks, lambda prompt, n: aner_runs.stream(model, prompt, n)))


def describe_drafts(harness: Harness, name: str, model: llm.Model, tasks: Sequence[Task]) -> None:
    """For each task what the drafts did, against the plain output."""
    costs = call_costs(model)
    for task in tasks:
        response = model.generate(task.prompt, max_tokens=task.recording.max_tokens)
        recording = recording_of(model, task.prompt, response, max_tokens=task.recording.max_tokens)
        replayed = replay_as(model, recording)
        timings = response.timings()
        names = ("proposed_tokens", "accepted_tokens", "verification_steps")
        if any(timings[f"speculative_{one}"] != getattr(replayed, one) for one in names):
            raise RuntimeError(f"the replay of {task.name} says {replayed}, and the timings say {dict(timings)}")
        difference = first_difference(task.plain, response.token_ids())
        harness.record(
            "note",
            note="drafts",
            comparison=name,
            task=task.name,
            loops=task.loops,
            output_hash=response.output_hash(),
            difference_from_plain=difference and asdict(difference),
            replay=asdict(replayed),
            accepted_from_output=replayed.accepted_tokens - replayed.accepted_from_prompt,
            estimated_speed_up=replayed.speed_up(costs),
        )


def speculation(harness: Harness, model: llm.Model, chosen: argparse.Namespace) -> None:
    """SPE1 and SPE2."""
    with model.with_optimizer(profile(chosen.draft)) as tuned, model.with_optimizer(profile(0)) as plain:
        harness.record("note", note="call costs", draft=chosen.draft, costs=call_costs(tuned))
        for name, work, reference in (("SPE1", workloads.COPY, COPY_CLAIM), ("SPE2", workloads.OPEN, OPEN_CLAIM)):
            tasks = tasks_of(harness, plain, work, chosen.max_tokens)
            describe_drafts(harness, name, tuned, tasks)
            harness.compare(
                name,
                running(f"{name} speculating", tuned, tasks),
                running("plain", plain, tasks),
                pairs=chosen.pairs,
                budget_s=chosen.budget,
                references=dict.fromkeys(["tpot_ms", *(f"tpot_ms {task.name}" for task in tasks)], reference),
            )


def draft_sizes(harness: Harness, model: llm.Model, chosen: argparse.Namespace) -> None:
    """SPE3."""
    with model.with_optimizer(profile(0)) as plain:
        tasks = tasks_of(harness, plain, workloads.COPY, chosen.max_tokens)
        for place, size in enumerate(DRAFT_SIZES):
            with model.with_optimizer(profile(size)) as tuned:
                costs = call_costs(tuned)
                estimates = {task.name: replay(task.recording, size, costs).speed_up(costs) for task in tasks}
                harness.record("note", note="draft size", draft=size, costs=costs, estimated_speed_up=estimates)
                harness.compare(
                    f"SPE3 {size}",
                    running("plain", plain, tasks),
                    running(f"drafts of {size}", tuned, tasks),
                    pairs=min(chosen.pairs, 6),
                    budget_s=chosen.budget / 4,
                    reuse_control=place > 0,
                )


def server_settings(resolved: Mapping[str, Any]) -> list[llama_server.Settings]:
    """Every kind of n-gram speculation, with its defaults and with shorter sizes, with either flash attention."""
    sizes = (("n", "3"), ("m", "7")), (("n", "4"), ("m", "12")), (("n", "8"), ("m", "16"))
    kinds: list[tuple[str, ...]] = [(), ("ngram-cache",)]
    for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
        kinds.append((kind,))
        kinds += [(kind, *itertools.chain(*((f"--spec-{kind}-size-{which}", n) for which, n in pair))) for pair in sizes]
    kinds.append(("ngram-mod",))
    kinds.append(("ngram-mod", "--spec-ngram-mod-n-match", "4", "--spec-ngram-mod-n-min", "1", "--spec-ngram-mod-n-max", "7"))
    base = llama_server.Settings(
        "",
        CONTEXT,
        resolved["threads"],
        resolved["batch_tokens"],
        resolved["micro_batch_tokens"],
        parallel=1,
    )
    return [
        replace(
            base,
            name=f"-fa {attention} {' '.join(kind) or 'plain'}",
            flash_attn=attention,
            more=("--spec-type", *kind) if kind else (),
        )
        for attention in ("off", "on")
        for kind in kinds
    ]


def against_server(harness: Harness, model: llm.Model, chosen: argparse.Namespace) -> None:
    """The server's settings are tried with flash attention off, then the best three with it on; then the best is compared."""
    peer = peers.build("llama-server")
    harness.record("note", note="peer", peer=peer.facts())
    with model.with_optimizer(profile(chosen.draft)) as tuned, model.with_optimizer(profile(0)) as plain:
        tasks = tasks_of(harness, plain, workloads.COPY, chosen.max_tokens)
        describe_drafts(harness, "server", tuned, tasks)
        tried: dict[str, float] = {}
        settings = server_settings(tasks[0].plain.timings())
        middle = len(settings) // 2

        def attempt(one: llama_server.Settings) -> None:
            with llama_server.serving(peer, chosen.model, one) as server:
                tried[one.name] = min(measure(tasks, server.complete).values["tpot_ms"] for _ in range(chosen.tries))

        for one in settings[:middle]:
            attempt(one)
        for place in sorted(range(middle), key=lambda i: tried[settings[i].name])[:3]:
            attempt(settings[middle + place])
        best = min((one for one in settings if one.name in tried), key=lambda one: tried[one.name])
        harness.record("note", note="server settings tried", tpot_ms=tried, best=best.name)
        without = next(one for one in settings if one.flash_attn == best.flash_attn and not one.more)
        for place, one in enumerate((best, without)):
            with llama_server.serving(peer, chosen.model, one) as server:
                ask = server.complete
                harness.compare(
                    f"SPE1 / {one.name}",
                    running("aner", tuned, tasks),
                    Side("llama-server", lambda _seed, ask=ask: measure(tasks, ask)),
                    pairs=chosen.pairs,
                    budget_s=chosen.budget / 2,
                    reuse_control=place > 0,
                )


def main() -> None:
    parser = options.parser(__doc__, "speculation")
    parser.add_argument("--draft", type=int, default=DRAFT, help=f"speculative_tokens ({DRAFT})")
    parser.add_argument("--max-tokens", type=int, default=160, help="of each answer (160)")
    parser.add_argument("--budget", type=float, default=140.0, help="seconds for each comparison (140)")
    parser.add_argument("--tries", type=int, default=1, help="runs of each setting of the server that is tried (1)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--draft-sizes", action="store_true", help="SPE3, into a record of its own")
    kind.add_argument("--server", action="store_true", help="SPE1 against llama-server, into a record of its own")
    chosen = parser.parse_args()
    name, run = "speculation", speculation
    if chosen.draft_sizes:
        name, run = "speculation_sizes", draft_sizes
    elif chosen.server:
        name, run = "speculation_server", against_server
    if chosen.output.name == "speculation.jsonl":
        chosen.output = chosen.output.with_name(f"{name}.jsonl")
    facts = {"max_tokens": chosen.max_tokens, "draft": chosen.draft, "context": CONTEXT, "loop_below": LOOP}
    with options.harness(name, chosen, **facts) as harness, llm.load(chosen.model, CONTEXT, "cpu") as model:
        harness.record("note", note="model", model=describe_model(model, chosen.model))
        run(harness, model, chosen)
    print(harness.table())
    print(f"The verdict is against the reference, beyond the A/A control's spread. Record: {chosen.output}")


if __name__ == "__main__":
    main()
