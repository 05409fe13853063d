"""The main job on one page: load, generate, and print the answer with what it cost."""

from __future__ import annotations

import sys

from aner import llm


def main(path: str) -> None:
    with llm.load(path, context=2048) as model:
        print(f"{model!r}\n\n== load ==\n{model.load_summary()}\n\n== answer ==")
        response = model.generate(
            "Explain gravity in three short sentences.", max_tokens=96, on_text=lambda text: print(text, end="", flush=True)
        )
        print(f"\n\n== timings ==\n{response.timings()}")
        rate = response.tokens_per_second()
        print(f"\n{'not measured' if rate is None else f'{rate:.1f}'} tokens/s, output {response.output_hash()[:16]}")
        print(f"\n== memory ==\n{model.memory_summary()}")


if __name__ == "__main__":
    main(sys.argv[1])
