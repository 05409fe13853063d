"""``aner plan``: what a model would occupy, before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from aner.cli._output import print_figures, print_json, size
from aner.cli._parameters import AsJson, ModelPath


def plan(
    model: ModelPath,
    *,
    budget: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Such as 8GiB; without it, the memory that is available now.", show_default=False),
    ] = None,
    context: Annotated[int, typer.Option(help="Positions of one conversation: prompt and answer together.")] = 4096,
    kv_cache_type: Annotated[str, typer.Option(help="f16, f32, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.")] = "f16",
    flash_attention: Annotated[str, typer.Option(help="auto, on or off.")] = "auto",
    max_sequences: Annotated[int, typer.Option(help="Conversations in one shared context; 1: no batching.")] = 1,
    batch_tokens: Annotated[int, typer.Option(help="Rows of one target call.")] = 512,
    micro_batch_tokens: Annotated[
        int | None, typer.Option(help="Rows of one graph; 512 or --batch-tokens if less.", show_default=False)
    ] = None,
    prefix_cache_entries: Annotated[int, typer.Option(help="Prompts whose KV is kept for the next, 0 to 4.")] = 0,
    speculative_tokens: Annotated[int, typer.Option(help="Longest draft of prompt lookup, 0 to 32.")] = 0,
    reproducible: Annotated[bool, typer.Option("--reproducible", help="Reference kernels.")] = False,
    mapped: Annotated[bool, typer.Option("--mapped/--no-mapped", help="Map the weights, or read them.")] = True,
    json: AsJson = False,
) -> None:
    """Say what a model would occupy on the CPU, and the largest context, slots and KV types that fit, without loading it."""
    from aner import llm

    figures = llm.plan(
        model, budget=budget, context=context, kv_cache_type=kv_cache_type, flash_attention=flash_attention,
        max_sequences=max_sequences, batch_tokens=batch_tokens, micro_batch_tokens=micro_batch_tokens,
        prefix_cache_entries=prefix_cache_entries, speculative_tokens=speculative_tokens, reproducible=reproducible,
        mapped=mapped,
    )  # fmt: skip
    if json:
        print_json(dict(figures))
    else:
        print_figures(_for_people(figures, "asked for" if budget is not None else "available now"))


def _for_people(figures: Mapping[str, Any], source: str) -> dict[str, object]:
    sequences = figures["sequences_per_context"]
    kinds = {
        kind.replace("_", " "): figures[f"kv_{kind}_bytes_per_context"] for kind in ("attention", "sliding_window", "recurrent")
    }
    layers = [f"{kind} {size(n)}" for kind, n in kinds.items() if n > 0]
    reserved, written = figures["compute_bytes_per_context"], figures["compute_written_bytes_per_context"]
    contexts = max(1, figures["retained_contexts_limit"])
    shown: dict[str, object] = {
        "settings": f"context {figures['context']:,}, {sequences} at a time, KV {figures['kv_cache_type']}, "
        f"flash attention {figures['flash_attention_resolved']}",
        "weights": f"{size(figures['weights_bytes_shared'])}, {'mapped' if figures['weights_mapped'] else 'read'}",
        "KV": size(figures["kv_bytes_per_context"]) + (f": {', '.join(layers)}" if len(layers) > 1 else ""),
        "workspace": size(written) + (f", of {size(reserved)} reserved" if written < reserved else ""),
        "output rows": size(figures["output_rows_bytes_per_context"]),
        "contexts": f"{contexts} of these three",
        "tables": f"about {size(figures['tables_bytes'])}",
        "total": size(figures["total_bytes"]),
    }
    if figures["fits"] is None:
        shown["memory"] = "what is available is not known: give a --budget"
        return shown
    verdict = "it fits" if figures["fits"] else "it does not fit"
    shown["memory"] = f"{size(figures['budget_bytes'])} {source}: {verdict}"
    shown["would fit"] = (
        f"context up to {figures['largest_context']:,}\n"
        f"{figures['largest_max_sequences']} at a time\n"
        f"KV types: {', '.join(figures['kv_cache_types_that_fit']) or 'none'}"
    )
    return shown
