"""``aner doctor``: how this installation fits this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aner.cli._output import print_figures, print_json, size
from aner.cli._parameters import AsJson, LoadOptions, with_groups

if TYPE_CHECKING:
    from aner.llm import Model

_PROMPT_TOKENS, _ANSWER_TOKENS = 128, 32


@with_groups
def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Load this GGUF file and take its speed, once.", show_default=False),
    ] = None,
    *,
    load: LoadOptions,
    json: AsJson = False,
) -> None:
    """Look at the build, the CPU and the load of this machine, and say what would make it faster."""
    load.refuse_unless(model is not None, "a MODEL")
    from aner.cli._advice import advice
    from aner.cli._machine import examine

    facts = examine()  # before the model is loaded: then the machine would be busy with that
    if model is not None:
        with load.load(model) as lease:
            facts["model"] = {"path": model, **_trial(lease)}
    facts["advice"] = advice(facts)
    if json:
        print_json(facts)
        return
    print_figures(_for_people(facts))
    print()
    for one in facts["advice"]:
        print(f"- {one['text']}")
    if not facts["advice"]:
        print("Nothing was found that would make it faster.")


def _trial(lease: Model) -> dict[str, Any]:
    """One short request after a warm-up: an impression, not a measurement."""
    summary = lease.memory_summary()
    needed = [summary[name] for name in ("weights_bytes_shared", "kv_bytes_per_context", "compute_bytes_per_context")]
    room = summary["context"] - 1
    words = "The quick brown fox jumps over the lazy dog. " * _PROMPT_TOKENS
    prompt = lease.tokenize(words)[: min(_PROMPT_TOKENS, room)]
    lease.generate(prompt[:8], max_tokens=2, ignore_eos=True)
    response = lease.generate(prompt, max_tokens=_ANSWER_TOKENS, ignore_eos=True)
    timings = response.timings()
    return {
        "device": lease.device(),
        "fingerprint": lease.fingerprint(),
        "flash_attention": summary["flash_attention_resolved"],
        "kv_cache_type": summary["kv_cache_type"],
        "threads": timings["threads"],
        "prefill_threads": timings["prefill_threads"],
        "needed_bytes": sum(n for n in needed if n > 0),
        "prefill_tokens_per_second": round(timings["evaluated_input_tokens"] / (timings["prefill_duration"] / 1e9), 1),
        "decode_tokens_per_second": round(response.tokens_per_second() or -1.0, 1),
    }


def _for_people(facts: Mapping[str, Any]) -> dict[str, object]:
    build, cpu, cpus, memory, now = (facts[name] for name in ("build", "cpu", "cpus", "memory", "now"))
    shown: dict[str, object] = {
        "aner": f"{build['version']}, {'native' if build['native'] else 'portable'} build",
        "compiler": f"{build['compiler']}, {build['build_type']}, {build['flags']}",
        "engine": f"llama.cpp {build['engine_version']} (commit {build['engine_commit']}, {build['engine_origin']})",
        "backends": ", ".join(build["backends"]),
        "devices": "\n".join(map(_device, facts["devices"])),
        "CPU": f"{cpu['model']}, {cpu['architecture']}",
        "features": f"{', '.join(cpu['features_used']) or 'none'}\nnot used: {', '.join(cpu['features_unused']) or 'none'}",
        "CPUs": f"{cpus['usable']} usable of {cpus['machine']} (affinity {cpus['affinity']}, quota {_known(cpus['quota'])}, "
        f"cores {_known(cpus['cores'])})",
        "governor": ", ".join(cpus["governors"]) or "not known",
        "memory": f"{_size(memory['available_bytes'])} available of {_size(memory['total_bytes'])}, "
        f"limit {_size(memory['limit_bytes'])}",
        "now": f"others use {_share(now['others_share'])} of these CPUs, {_share(now['stolen_share'])} stolen, "
        f"load average {', '.join(f'{n:.2f}' for n in now['load_average'])}",
    }
    if "model" in facts:
        model = facts["model"]
        shown["model"] = (
            f"{model['device']}, {model['threads']} threads, flash attention {model['flash_attention']}, needs "
            f"{size(model['needed_bytes'])}\n"
            f"once: prefill {model['prefill_tokens_per_second']} tokens/s, decode {model['decode_tokens_per_second']} tokens/s"
        )
    return shown


def _device(device: Mapping[str, Any]) -> str:
    memory = f", {size(device['memory_free'])} free of {size(device['memory_total'])}" if device["memory_total"] > 0 else ""
    return f"{device['name']}: {device['description']}{memory}"


def _known(number: float) -> str:
    return "none or not known" if number < 0 else f"{number:g}"


def _size(n_bytes: int) -> str:
    return "none or not known" if n_bytes < 0 else size(n_bytes)


def _share(share: float) -> str:
    return "an unknown part" if share < 0 else f"{share:.0%}"
