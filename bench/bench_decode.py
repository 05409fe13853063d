#!/usr/bin/env python3
"""DEC1: prefill and decode against llama-bench, same model and settings, interleaved.

    python bench/bench_decode.py --model models/SmolLM2-135M-Instruct.Q4_1.gguf

Figures, in tokens per second:
    prefill           512 prompt tokens into an empty context
    decode            128 decode steps behind 512 tokens: aner with sampling, llama-bench without
    decode_delivered  the same steps as a caller of aner sees them, against llama-bench's decode

Comparisons, the last two with --others:
    same settings    llama-bench with aner's compiler flags, threads, batch sizes, KV type and, for each figure, the flash
                     attention that aner uses for it: the claim
    other attention  the same program with the other one for each figure: whether the peer would have done better with it
    peer's defaults  upstream's default build and options, OpenMP included
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import aner_once
import llama_bench
import options
import peers
from aner import llm
from aner.measure import Sample, Side, describe_model

FLOOR = 0.97
Run = Callable[[int], Sample]


def settings_of(memory: Mapping[str, Any], timings: Mapping[str, int]) -> llama_bench.Settings:
    """What aner resolved, in llama-bench's terms: "prefill" is on for the prompt and off for decode."""
    attention = memory["flash_attention_resolved"]
    return llama_bench.Settings(
        threads=timings["threads"],
        prefill_threads=timings["prefill_threads"],
        batch_size=timings["batch_tokens"],
        ubatch_size=timings["micro_batch_tokens"],
        flash_attn="on" if attention == "on" else "off",
        prefill_flash_attn="off" if attention == "off" else "on",
        cache_type=memory["kv_cache_type"],
    )


def llama_bench_run(peer: peers.Peer, model: Path, settings: llama_bench.Settings, n_prompt: int, n_decode: int) -> Run:
    """llama-bench has one decode figure, which stands against both of aner's, and takes no seed."""

    def once(_seed: int) -> Sample:
        sample = llama_bench.measure_once(peer, model, settings, n_prompt, n_decode)
        return Sample({**sample.values, "decode_delivered": sample.values["decode"]}, sample.details)

    return once


def main() -> None:
    parser = options.parser(__doc__, "dec1")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--decode-steps", type=int, default=128)
    parser.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--budget", type=float, default=280.0, help="seconds for all comparisons (280)")
    parser.add_argument("--others", action="store_true", help="the other two comparisons, into a record of its own")
    parser.set_defaults(pairs=16)
    chosen = parser.parse_args()
    if chosen.others and chosen.output.name == "dec1.jsonl":
        chosen.output = chosen.output.with_name("dec1_others.jsonl")
    path: Path = chosen.model
    n_prompt, n_decode = chosen.prompt_tokens, chosen.decode_steps
    fair, stock = (peers.build("llama-bench", variant) for variant in ("same-flags", "stock"))
    facts = {"prompt_tokens": n_prompt, "decode_steps": n_decode, "peers": [fair.facts(), stock.facts()]}
    with options.harness("dec1", chosen, **facts) as harness:

        def aner(seed: int) -> Sample:
            return aner_once.measure_once(path, seed, n_prompt, n_decode, chosen.flash_attention)

        with llm.load(path, 64, "cpu", flash_attention=chosen.flash_attention) as model:
            described = describe_model(model, path)
        first = aner(chosen.seed)
        same = settings_of(first.details["memory"], first.details["timings"])
        flipped = {"on": "off", "off": "on"}
        other = replace(
            same, flash_attn=flipped[str(same.flash_attn)], prefill_flash_attn=flipped[str(same.prefill_flash_attn)]
        )
        harness.record("note", note="model and settings", model=described, same_settings=asdict(same))
        opponents = [("same settings", "llama-bench", fair, same)]
        if chosen.others:
            opponents = [
                ("other attention", "llama-bench", fair, other),
                ("peer's defaults", "llama-bench stock", stock, llama_bench.Settings()),
            ]
        for place, (name, label, peer, settings) in enumerate(opponents):
            harness.compare(
                name,
                Side("aner", aner),
                Side(label, llama_bench_run(peer, path, settings, n_prompt, n_decode)),
                pairs=chosen.pairs,
                budget_s=chosen.budget / len(opponents),
                reuse_control=place > 0,
                references=dict.fromkeys(("prefill", "decode", "decode_delivered"), FLOOR),
            )
    print(harness.table())
    print(f"'above': at least {FLOOR} of the peer, beyond the A/A control's spread. Record: {chosen.output}")


if __name__ == "__main__":
    main()
