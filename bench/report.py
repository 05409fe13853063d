#!/usr/bin/env python3
"""Writes docs/results.md, and the table in README.md, from the records in bench/results.

python bench/report.py            # both; a test runs it with --check
python bench/report.py --check    # fails when they are not what the records say
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aner.measure import read_records

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
#: Record name: its heading, the command, and whether less is better.
SCRIPTS = {
    "dec1": ("Prefill and decode against llama-bench (tokens/s)", "bench_decode.py", False),
    "dec1_others": ("The same, against other settings (tokens/s)", "bench_decode.py --others", False),
    "neighbour": ("Decode beside a busy process (tokens/s)", "bench_neighbour.py --peer", False),
    "prefix": ("First token, warm against cold (ms)", "bench_prefix.py", True),
    "prefix_server": ("First token, warm, against llama-server (ms)", "bench_prefix.py --server", True),
    "speculation": ("Time per token, drafts against none (ms)", "bench_speculation.py", True),
    "speculation_sizes": ("Draft sizes against none (ms)", "bench_speculation.py --draft-sizes", True),
    "speculation_server": ("Copy work against llama-server (ms)", "bench_speculation.py --server", True),
    "batching_decode": ("Aggregate decode against llama-batched-bench (tokens/s)", "bench_batching.py --part decode", False),
    "batching_gap": ("Worst gap while a prompt of 1,800 tokens arrives (ms)", "bench_batching.py --part gap", True),
    "batching_mixed": ("Four clients, mixed lengths, against llama-server", "bench_batching.py --part mixed", False),
    "batching_late": ("A late short request behind long ones (ms)", "bench_batching.py --part late", True),
}
START, END = "<!-- results:start -->", "<!-- results:end -->"


def number(value: float) -> str:
    return "-1" if value < 0 else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def rows_of(summary: Mapping[str, Any]) -> list[str]:
    return [
        f"| {one['comparison']} | {one['figure']} | {one['ratio']:.3f} | {one['low']:.3f} to {one['high']:.3f} | {one['pairs']} "
        f"| {one['control_spread']:.3f} | {one['reference']:.3f} | {one['verdict']} | {number(one['median_a'])} "
        f"| {number(one['median_b'])} |"
        for one in summary["results"]
    ]


def section(name: str, records: Sequence[Mapping[str, Any]]) -> str:
    heading, command, less = SCRIPTS[name]
    run, summary = records[0], records[-1]
    machine, aner = run["provenance"]["machine"], run["provenance"]["aner"]
    facts = (
        f"{run['provenance']['date'][:10]}, {machine['cpu']}, {machine['cpus_usable']} CPUs, {machine['kernel']}; engine "
        f"{aner['build']['engine_commit']}, {aner['build']['compiler']}; "
        f"{summary['excluded_blocks']} blocks dropped as disturbed. Raw samples: [`{name}.jsonl`](../bench/results/{name}.jsonl)."
    )
    return "\n".join(
        [
            f"## {heading}",
            "",
            f"`python bench/{command} --model MODEL.gguf`. {'Below 1 is better for aner.' if less else 'Above 1 is better for aner.'}",
            "",
            "| comparison | figure | ratio | 95 % interval | pairs | A/A spread | reference | verdict | aner or A | B |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
            *rows_of(summary),
            "",
            facts,
            "",
        ]
    )


def page(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    intro = (
        "# Results\n\nWritten by `python bench/report.py` from the records in `bench/results`; the protocol is "
        "[bench/README.md](../bench/README.md). The ratio is\nthe geometric mean of interleaved pairs, A over B. A verdict is given only "
        "where the whole interval lies beyond the reference by more than\nthe A/A control strays from 1; `unresolved` claims nothing.\n\n"
    )
    return intro + "\n".join(section(name, records[name]) for name in SCRIPTS if name in records)


def table(records: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = ["| measured | against | ratio | 95 % interval |", "| --- | --- | --- | --- |"]
    for name in SCRIPTS:
        if name in records:
            lines += [
                f"| {SCRIPTS[name][0]}: {one['comparison']}, {one['figure']} | {one['b']} | {one['ratio']:.3f} "
                f"| {one['low']:.3f} to {one['high']:.3f} |"
                for one in records[name][-1]["results"]
            ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_args()
    found = {path.stem: read_records(path) for path in sorted(RESULTS.glob("*.jsonl")) if path.stem in SCRIPTS}
    records = {name: lines for name, lines in found.items() if not lines[0].get("quick") and lines[-1]["kind"] == "summary"}
    readme = (ROOT / "README.md").read_text()
    before, _, rest = readme.partition(START)
    _, _, after = rest.partition(END)
    wanted = {
        ROOT / "README.md": f"{before}{START}\n{table(records)}\n{END}{after}",
        ROOT / "docs" / "results.md": page(records),
    }
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    if chosen.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what the records say: run python bench/report.py")
        return 1 if stale else 0
    for path in stale:
        path.write_text(wanted[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
