"""``aner info``: what a model file is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from aner.cli._output import measured, print_figures, print_json, progress_bar, size
from aner.cli._parameters import AsJson, LoadOptions, ModelPath, with_groups

_NAMED_TYPE = re.compile(
    r"(?<![A-Z0-9])(((?:IQ|TQ|Q)\d_[A-Z0-9]+|BF16|FP?16|FP?32|MXFP4)(?:_(?:S|M|L|XL))?)(?![A-Z0-9])", re.IGNORECASE
)
_MIXTURES = {"IQ2_M": "IQ2_S", "IQ3_M": "IQ3_S", "FP16": "F16", "FP32": "F32"}
_TEMPLATE_LINES, _TEMPLATE_WIDTH = 4, 100


@with_groups
def info(
    model: ModelPath,
    *,
    load: LoadOptions,
    loaded: Annotated[
        bool, typer.Option("--load", help="Load it, with the options below, to see what such a lease supports and occupies.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Say what a model file is: architecture, real tensor types, chat template, fingerprint.

    The headers are checked and the content is digested; without --load the weights are not loaded.
    """
    load.refuse_unless(loaded, "--load", allowed=("expected_sha256",))
    from aner import llm
    from aner.llm._model import OPERATIONS

    if loaded:
        lease = load.load(model)
        facts: dict[str, Any] = dict(lease.metadata())
        facts["content_bytes"] = lease.load_summary()["content_bytes"]
    else:
        with progress_bar() as progress:
            facts = dict(llm.inspect(model, expected_sha256=load.expected_sha256, progress=progress))
    facts["name_disagrees"] = disagreement(Path(model).name, facts["tensor_types"])
    if loaded:
        facts["lease"] = {
            "device": lease.device(),
            "supports": {operation: lease.supports(operation) for operation in OPERATIONS},
            "memory": dict(lease.memory_summary()),
            "load": dict(lease.load_summary()),
        }
    if json:
        print_json(facts)
        return
    print_figures(_for_people(facts))
    if loaded:
        supports = facts["lease"]["supports"]
        print()
        print_figures(
            {
                "device": lease.device(),
                "supports": ", ".join(name for name, is_so in supports.items() if is_so),
                "does not": ", ".join(name for name, is_so in supports.items() if not is_so),
            }
        )
        print(f"\n{measured(lease.memory_summary())}\n\n{measured(lease.load_summary())}")


def disagreement(file_name: str, types: Mapping[str, Mapping[str, int]]) -> str | None:
    """What the name says of the tensors and the bytes do not, or None."""
    found = _NAMED_TYPE.findall(file_name)
    total = sum(use["bytes"] for use in types.values())
    if not found or total == 0:
        return None
    label, base = (text.upper() for text in found[-1])
    named = _MIXTURES.get(base, base)
    share = {name.upper(): use["bytes"] / total for name, use in types.items()}
    if share.get(named, 0.0) >= 0.5:
        return None
    most = max(share, key=lambda name: share[name])
    says = f"the file's name says {label}"
    return f"{says}, but of the bytes {share.get(named, 0.0):.0%} are {named} and {share[most]:.0%} are {most}"


def _for_people(facts: Mapping[str, Any]) -> dict[str, object]:
    types = sorted(facts["tensor_types"].items(), key=lambda item: -item[1]["bytes"])
    rows = [
        f"{name.upper():<7} {use['tensors']:>5} tensors {size(use['bytes']):>11} {use['bytes'] / facts['tensor_bytes']:>6.1%}"
        for name, use in types
    ]
    template = facts["chat_template"]
    shown: dict[str, object] = {
        "architecture": facts["architecture"],
        "name": facts["name"] or "not said",
        "parameters": f"{facts['parameters']:,}",
        "layers": f"{facts['layers']}, embedding {facts['embedding']}",
        "heads": f"{_range(facts['heads'])}, KV heads {_range(facts['kv_heads'])}, "
        f"head size {facts['key_head_dimension']} (key), {facts['value_head_dimension']} (value)",
        "vocabulary": f"{facts['vocabulary']:,} tokens, {facts['vocabulary_kind'] or 'kind not said'}",
        "trained context": f"{facts['context_train']:,}",
        "content": f"{size(facts['content_bytes'])}, tensors {size(facts['tensor_bytes'])}",
        "tensor types": "\n".join(rows),
        "fingerprint": facts["fingerprint"],
        "chat template": _head(template) if template else "none: a prompt is taken as raw text",
    }
    if facts["sliding_window"]:
        shown["sliding window"] = f"{facts['sliding_window']:,}"
    if facts["name_disagrees"]:
        shown["note"] = facts["name_disagrees"]
    if facts.get("covered") is False:
        shown["coverage"] = "no test of aner covers this architecture: a load tries it in a child process first"
    return shown


def _range(values: list[int]) -> str:
    """One number for all layers, or the least and the greatest."""
    if not values:
        return "0"
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"


def _head(template: str) -> str:
    lines = template.strip().splitlines()
    head = [line if len(line) <= _TEMPLATE_WIDTH else line[:_TEMPLATE_WIDTH] + "..." for line in lines[:_TEMPLATE_LINES]]
    return "\n".join([f"{len(template):,} characters, {len(lines)} lines:", *head, *["..."] * (len(lines) > len(head))])
