#!/usr/bin/env python3
"""PRE1 to PRE3: time to first token with a warm prefix, over the same request into an empty context.

    python bench/bench_prefix.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf
    python bench/bench_prefix.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf --server

The figure is ``ttft_ms``, from the request to its first piece of text; below 1 is better.
    PRE1 identical        1,500 tokens and 24 of their own, asked before
    PRE1 changed suffix   the same 1,500 tokens, other 24 behind them: the claim, at most an eighth of cold
    PRE1 other domain     asked before of another lease, which shares nothing with this one: as cold
    PRE2                  two prefixes of 1,200 tokens in turn, a pool of two entries
    PRE3                  400 tokens shared, 1,400 of the request's own

The first 16 output tokens of warm and cold requests are compared; each difference stands in the record with its position and
logit gap.

``--server``: warm requests against llama-server from the same pin instead, prompt caching on, asked over its own HTTP.
``ttft_engine_ms`` takes the server's own time for the prompt, without HTTP, against all of aner's. The claim is at most
1.05 of the best of its settings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import aner_runs
import llama_server
import options
import peers
from aner import llm
from aner.measure import Harness, Sample, Side, describe_model, first_difference, median
from timed import Timed

CONTEXT = 4096
OUTPUT_TOKENS = 16
SUFFIX_TOKENS = 24
WARM_OVER_COLD = 1 / 8
OVER_SERVER = 1.05

Ask = Callable[[list[int]], Timed]


@dataclass(frozen=True)
class Scenario:
    """Requests of one seed: ``before`` makes the pool what it should be, ``asked`` are measured, in this order."""

    name: str
    entries: int  # of the pool
    reference: float  # of warm over cold
    before: Callable[[int], list[list[int]]]
    asked: Callable[[int], list[list[int]]]


class Prompts:
    """Prompts of exact lengths, the same for the same numbers."""

    def __init__(self, model: llm.Model) -> None:
        self._model = model

    def of(self, shared: int, shared_seed: int, own: int, own_seed: int) -> list[int]:
        words = random.Random(own_seed).choices(aner_runs.WORDS, k=own)
        tail = self._model.tokenize(" " + " ".join(words))[:own]
        if len(tail) != own:
            raise RuntimeError(f"{own} words gave {len(tail)} tokens")
        return aner_runs.prompt_of(self._model, shared, shared_seed) + tail


def scenarios(prompts: Prompts) -> list[Scenario]:
    def one(seed: int, own_seed: int) -> list[int]:
        return prompts.of(1500, seed, SUFFIX_TOKENS, own_seed)

    def two(seed: int, own_seed: int) -> list[list[int]]:
        return [prompts.of(1200, 2 * seed + which, SUFFIX_TOKENS, own_seed) for which in (0, 1)]

    return [
        Scenario("PRE1 identical", 1, WARM_OVER_COLD, lambda s: [one(s, s)], lambda s: [one(s, s)]),
        Scenario("PRE1 changed suffix", 1, WARM_OVER_COLD, lambda s: [one(s, s + 1000)], lambda s: [one(s, s)]),
        Scenario("PRE2", 2, WARM_OVER_COLD, lambda s: two(s, s + 1000), lambda s: two(s, s) + two(s, s + 2000)),
        Scenario("PRE3", 1, 1.0, lambda s: [prompts.of(400, 7, 1400, s + 1000)], lambda s: [prompts.of(400, 7, 1400, s)]),
    ]


class Outputs:
    """What was answered to each prompt, by which side."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}

    def keep(self, side: str, prompt: list[int], timed: Timed) -> None:
        self._of[(side, tuple(prompt))] = timed.tokens

    def compared(self, warm: str, cold: str, again: Callable[[list[int]], llm.Response]) -> dict[str, object]:
        """Warm outputs against cold ones; ``again`` repeats a cold request with log probabilities."""
        differences, equal = [], 0
        for (side, prompt), tokens in self._of.items():
            other = self._of.get((cold, prompt))
            if side != warm or other is None:
                continue
            if tokens == other:
                equal += 1
                continue
            difference = first_difference(again(list(prompt)), tokens)
            # None: the repeated cold request agrees with the warm one, so the cold one itself was not stable.
            differences.append("cold differs from itself" if difference is None else asdict(difference))
        return {"warm": warm, "cold": cold, "equal": equal, "different": differences}


def asking(model: llm.Model) -> Ask:
    return lambda prompt: aner_runs.stream(model, prompt, OUTPUT_TOKENS, ignore_eos=True)


def reusing(model: llm.Model, entries: int) -> llm.Model:
    return model.with_optimizer(llm.OptimizerProfile(prefix_cache_entries=entries))


def sample_of(asked: list[Timed], **more: float) -> Sample:
    count = len(asked)
    return Sample({"ttft_ms": sum(one.ttft_ms for one in asked) / count, **more}, {"requests": [one.details for one in asked]})


def against_cold(harness: Harness, model: llm.Model, prompts: Prompts, pairs: int, budget_s: float) -> None:
    """Each scenario on a lease of its own against the model without prefix reuse."""
    outputs = Outputs()

    def keeping(side: str, ask: Ask, prompt: list[int]) -> Timed:
        timed = ask(prompt)
        outputs.keep(side, prompt, timed)
        return timed

    def again(prompt: list[int]) -> llm.Response:
        return model.generate(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, logprobs=20)

    def compare(scenario: Scenario, warm: Callable[[int], Sample]) -> None:
        def cold(seed: int) -> Sample:
            return sample_of([keeping("cold", asking(model), prompt) for prompt in scenario.asked(seed)[:2]])

        harness.compare(
            scenario.name,
            Side(scenario.name, warm),
            Side("cold", cold),
            pairs=pairs,
            budget_s=budget_s,
            references={"ttft_ms": scenario.reference},
        )
        harness.record("note", note="outputs", scenario=scenario.name, **outputs.compared(scenario.name, "cold", again))

    for scenario in scenarios(prompts):
        with reusing(model, scenario.entries) as lease:

            def warm(seed: int, scenario: Scenario = scenario, lease: llm.Model = lease) -> Sample:
                for prompt in scenario.before(seed):
                    asking(lease)(prompt)
                asked = [keeping(scenario.name, asking(lease), prompt) for prompt in scenario.asked(seed)]
                return sample_of(asked)

            compare(scenario, warm)
    identical = scenarios(prompts)[0]
    with reusing(model, 1) as here, reusing(model, 1) as elsewhere:

        def other_domain(seed: int) -> Sample:
            (prompt,) = identical.asked(seed)
            asking(elsewhere)(prompt)
            asking(here)(aner_runs.prompt_of(model, 64, -1))  # what this lease knew before is gone
            return sample_of([keeping("PRE1 other domain", asking(here), prompt)])

        compare(replace(identical, name="PRE1 other domain", reference=1.0), other_domain)


def server_settings(resolved: dict[str, int], attention: str) -> list[llama_server.Settings]:
    """Aner's own settings, the other flash attention, no host cache, and the program's defaults."""
    same = llama_server.Settings(
        f"same settings, -fa {attention}",
        CONTEXT,
        resolved["threads"],
        resolved["batch_tokens"],
        resolved["micro_batch_tokens"],
        attention,
        1,
    )
    other = "off" if attention == "on" else "on"
    return [
        same,
        replace(same, name=f"same settings, -fa {other}", flash_attn=other),
        replace(same, name=f"two slots, -fa {attention}", parallel=2, context=2 * CONTEXT),
        llama_server.Settings("defaults", CONTEXT),
    ]


def against_server(harness: Harness, model: llm.Model, prompts: Prompts, pairs: int, budget_s: float, path: Path) -> None:
    """Warm against warm: each scenario with the server's best setting, found first; the claim's with the others too."""
    peer = peers.build("llama-server")
    memory, timings = model.memory_summary(), dict(asking(model)(prompts.of(64, 0, 8, 0)).details["timings"])
    # A warm request computes few rows: aner does those without flash attention unless it was set to "on".
    settings = server_settings(timings, "on" if memory["flash_attention_resolved"] == "on" else "off")
    harness.record("note", note="peer", peer=peer.facts(), settings=[asdict(one) for one in settings])

    @contextmanager
    def serving(one: llama_server.Settings, scenario: Scenario) -> Iterator[Callable[[int], Sample]]:
        with llama_server.serving(peer, path, one) as server:

            def ask(seed: int) -> Sample:
                for prompt in scenario.before(seed):
                    server.complete(prompt, OUTPUT_TOKENS, ignore_eos=True)
                asked = [server.complete(prompt, OUTPUT_TOKENS, ignore_eos=True) for prompt in scenario.asked(seed)]
                engine = sum(one.details["timings"]["prompt_ms"] for one in asked) / len(asked)
                return sample_of(asked, ttft_engine_ms=engine)

            yield ask

    for scenario in scenarios(prompts):
        tried: dict[str, float] = {}
        for one in settings:
            with serving(one, scenario) as ask:
                tried[one.name] = median([ask(harness.seed).values["ttft_ms"] for _ in range(3)])
        best = min(settings, key=lambda one: tried[one.name])
        harness.record("note", note="server settings tried", scenario=scenario.name, median_ttft_ms=tried, best=best.name)
        opponents = [best] + [one for one in settings if "changed" in scenario.name and one.name != best.name]
        with reusing(model, scenario.entries) as lease:

            def warm(seed: int, scenario: Scenario = scenario, lease: llm.Model = lease) -> Sample:
                for prompt in scenario.before(seed):
                    asking(lease)(prompt)
                sample = sample_of([asking(lease)(prompt) for prompt in scenario.asked(seed)])
                return Sample({**sample.values, "ttft_engine_ms": sample.values["ttft_ms"]}, sample.details)

            for place, one in enumerate(opponents):
                with serving(one, scenario) as ask:
                    harness.compare(
                        f"{scenario.name} / {'best: ' if one is best else ''}{one.name}",
                        Side(f"aner {scenario.name}", warm),
                        Side("llama-server", ask),
                        pairs=pairs,
                        budget_s=budget_s,
                        references=dict.fromkeys(("ttft_ms", "ttft_engine_ms"), OVER_SERVER),
                        reuse_control=place > 0,
                    )


def main() -> None:
    parser = options.parser(__doc__, "prefix")
    parser.add_argument("--server", action="store_true", help="against llama-server, into a record of its own")
    parser.add_argument("--budget", type=float, default=55.0, help="seconds for each comparison (55)")
    chosen = parser.parse_args()
    if chosen.server and chosen.output.name == "prefix.jsonl":
        chosen.output = chosen.output.with_name("prefix_server.jsonl")
    facts = {"output_tokens": OUTPUT_TOKENS, "suffix_tokens": SUFFIX_TOKENS, "context": CONTEXT}
    name = "prefix_server" if chosen.server else "prefix"
    with options.harness(name, chosen, **facts) as harness, llm.load(chosen.model, CONTEXT, "cpu") as model:
        harness.record("note", note="model", model=describe_model(model, chosen.model))
        prompts = Prompts(model)
        if chosen.server:
            against_server(harness, model, prompts, chosen.pairs, chosen.budget, chosen.model)
        else:
            against_cold(harness, model, prompts, chosen.pairs, chosen.budget)
    print(harness.table())
    print(f"'below': the claim holds, beyond the A/A control's spread. Record: {chosen.output}")


if __name__ == "__main__":
    main()
