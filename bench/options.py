"""What every benchmark script takes on its command line, and the harness made from it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from aner.measure import Harness, Limits

ROOT = Path(__file__).resolve().parent.parent


def parser(doc: str | None, scenario: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", type=Path, required=True, help="a GGUF file")
    made.add_argument("--output", type=Path, default=ROOT / "bench" / "results" / f"{scenario}.jsonl")
    made.add_argument("--pairs", type=int, default=10, help="interleaved pairs (10)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--foreign-limit", type=float, default=Limits().foreign_share, help="share of the CPUs used by others")
    made.add_argument("--stolen-limit", type=float, default=Limits().stolen_share, help="share of CPU time stolen")
    made.add_argument("--quick", action="store_true", help="two pairs: shows that the script works, and measures nothing")
    return made


def harness(scenario: str, chosen: argparse.Namespace, **facts: Any) -> Harness:
    if not chosen.model.is_file():
        raise SystemExit(f"{chosen.model} is not a file: give a GGUF model with --model (make demo brings one to models/)")
    if chosen.quick:
        chosen.pairs = 2
    limits = Limits(foreign_share=chosen.foreign_limit, stolen_share=chosen.stolen_limit)
    return Harness(scenario, chosen.output, seed=chosen.seed, limits=limits, checkout=ROOT, quick=bool(chosen.quick), **facts)
