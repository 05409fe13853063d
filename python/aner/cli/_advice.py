"""What would make it faster: rules over the facts of ``_machine.examine``, and of a model when one was tried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_BUSY, _STOLEN = 0.05, 0.03  # shares of the CPUs; aner.measure drops a measurement beyond them
_SLOW_GOVERNORS = {"powersave", "conservative", "userspace"}
#: What the operating system shows: the backends that would use it, its name, the option to build with.
_ACCELERATORS = {
    "nvidia": ({"cuda", "vulkan"}, "the NVIDIA GPU", "ANER_CUDA"),
    "amd": ({"vulkan"}, "the AMD GPU", "ANER_VULKAN"),
    "apple": ({"metal"}, "the GPU", "ANER_METAL"),
}

Facts = Mapping[str, Any]
Finding = tuple[str, str]  # topic, text


def advice(facts: Facts) -> list[dict[str, str]]:
    """The largest effects first; empty when nothing was found."""
    rules = (_accelerator, _build, _busy, _memory, _cpus, _governor, _environment)
    return [{"topic": topic, "text": text} for rule in rules for topic, text in rule(facts)]


def _accelerator(facts: Facts) -> Iterator[Finding]:
    for seen in facts["accelerators_seen"]:
        backends, name, option = _ACCELERATORS[seen]
        if not backends & set(facts["build"]["backends"]):
            yield "accelerator", f"this build cannot use {name} of this machine: reinstall with -C cmake.define.{option}=ON"


def _build(facts: Facts) -> Iterator[Finding]:
    build, unused = facts["build"], ", ".join(facts["cpu"]["features_unused"])
    if unused and not build["native"]:
        command = "pip install --force-reinstall --no-binary aner aner"
        yield "build", f"this is a portable build, and the CPU has {unused} besides: build aner on this machine ({command})"
    elif unused:
        yield "build", f"the CPU has {unused}, and {build['compiler']} did not use it: rebuild here with a newer compiler"
    if build["build_type"] not in {"Release", "RelWithDebInfo"} or "-O0" in build["flags"]:
        yield "build", f"the build type is {build['build_type'] or 'not set'} ({build['flags']}): reinstall with Release"
    if "-fsanitize" in build["flags"]:
        yield "build", "this build has sanitizers in it, for tests"
    if build["engine_origin"] != "pinned":
        text = (
            "the engine is a tree of your own, without aner's patches: a busy process beside it may stop its threads for long"
        )
        yield "engine", f"{text}, and reproducible=True may not be exact"


def _busy(facts: Facts) -> Iterator[Finding]:
    now = facts["now"]
    if now["others_share"] > _BUSY:
        yield "busy", f"other processes use {now['others_share']:.0%} of these CPUs: every speed measured now is too low"
    if now["stolen_share"] > _STOLEN:
        yield "busy", f"the hypervisor gives {now['stolen_share']:.0%} of the time of these CPUs to other machines"


def _memory(facts: Facts) -> Iterator[Finding]:
    memory, model = facts["memory"], facts.get("model")
    free = min((n for n in (memory["available_bytes"], memory["limit_bytes"]) if n >= 0), default=-1)
    if model is not None and 0 <= free < model["needed_bytes"]:
        needs = f"the model and one context need {model['needed_bytes'] / 2**30:.1f} GiB, and there are {free / 2**30:.1f}"
        yield "memory", f"{needs}: weights will be read from the disk again and again; take a smaller model, context or KV type"


def _cpus(facts: Facts) -> Iterator[Finding]:
    cpus = facts["cpus"]
    if cpus["affinity"] < cpus["machine"]:
        yield "cpus", f"this process may run on {cpus['affinity']} of {cpus['machine']} CPUs (taskset, or its container)"
    if 0 < cpus["quota"] < cpus["affinity"]:
        text = f"the control group grants {cpus['quota']:g} CPUs"
        if cpus["quota"] != int(cpus["quota"]):
            text += f": {cpus['usable']} threads are stopped now and then; {max(1, int(cpus['quota']))} may be faster"
        yield "cpus", text
    if 0 < cpus["cores"] < cpus["affinity"]:
        threads = min(cpus["cores"], cpus["usable"])
        yield "cpus", f"{cpus['affinity']} CPUs are {cpus['cores']} cores with hyper-threads: aner takes {threads} threads"


def _governor(facts: Facts) -> Iterator[Finding]:
    if slow := _SLOW_GOVERNORS & set(facts["cpus"]["governors"]):
        yield "governor", f"the frequency governor is {', '.join(sorted(slow))}: 'performance' may be faster"


def _environment(facts: Facts) -> Iterator[Finding]:
    if names := sorted(facts["environment"]):
        yield "environment", f"{', '.join(names)} in the environment may change how the engine works"
