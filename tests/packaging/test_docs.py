"""The pages: their examples run, their links and file names resolve, and what the API has is described.

A Python block under ``<!-- run -->`` is run on the demo model, in an empty folder; the ``text`` block after it is its output.
``<!-- varies: 2, 5 -->`` between the two names the lines of the output, from 1, that depend on the machine.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
from pathlib import Path

import pytest

import aner
from aner import errors, llm
from aner.llm._options import DEFAULTS

ROOT = Path(__file__).resolve().parents[2]
MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"  # as the pages name it
FOLDERS = ("aner_native", "bench", "cmake", "docs", "python", "tests", "tools")
FILES = [path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
# Made by builds and runs; the last one ends with its last line.
UNTRACKED = ("build/", "models/", ".venv/", "vendor/llama.cpp/source/", "bench/results/", "tests/contract_pending.txt")
PAGES = sorted(
    page.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "bench/*.md", "aner_native/*.md", "vendor/llama.cpp/*.md")
    for page in ROOT.glob(pattern)
)
EXAMPLE = re.compile(r"<!-- run -->\n```python\n(.*?)```\n(?:<!-- varies: ([\d, ]+) -->\n)?(?:```text\n(.*?)```\n)?", re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|pyi|pyx|pxd|cpp|hpp|md|toml|cmake|txt|sh|json|patch|sha256|map)")


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def examples() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        for n, match in enumerate(EXAMPLE.finditer(text_of(page)), 1):
            varying = {int(number) for number in (match[2] or "").split(",") if number.strip()}
            found.append(pytest.param(match[1], match[3] or "", varying, id=f"{page}-{n}"))
    return found


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def rows_of(page: str, heading: str) -> dict[str, str]:
    """The first cell of each table row of a section, without its backticks, to the rest of the row."""
    section = text_of(page).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]*`) +\|(.*)\|$", section, re.MULTILINE)
    return {name: rest for names, rest in rows for name in re.findall(r"`([^`]+)`", names)}


@pytest.mark.parametrize(("program", "expected", "varying"), examples())
def test_an_example_prints_what_the_page_says(
    program: str, expected: str, varying: set[int], demo_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / MODEL).symlink_to(demo_model_path.resolve())
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(program, "example", "exec"), {"__name__": "__main__"})
    shown, printed = expected.splitlines(), output.getvalue().splitlines()
    assert len(printed) == len(shown), output.getvalue()
    assert varying <= set(range(1, len(shown) + 1))
    assert [line for n, line in enumerate(printed, 1) if n not in varying] == [
        line for n, line in enumerate(shown, 1) if n not in varying
    ]


def test_the_pages_with_examples_have_them() -> None:
    counted = {page: len(EXAMPLE.findall(text_of(page))) for page in PAGES}
    assert counted["README.md"] >= 1
    assert counted["docs/generation.md"] >= 3
    for page in PAGES:  # no marker without a block that was found
        assert len(re.findall(r"^<!-- run -->$", text_of(page), re.MULTILINE)) == counted[page], page


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_resolves(page: str) -> None:
    for target in LINK.findall(FENCE.sub("", text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        assert file.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors_of(file), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text_of(page))):
        for name in code.split():
            if name.startswith(UNTRACKED) or not (FILE.fullmatch(name) or re.fullmatch(r"(?:[\w.-]+/)+", name)):
                continue
            beside = (ROOT / page).parent / name
            assert beside.exists() or (ROOT / name).exists() or any(path.endswith("/" + name) for path in FILES), (
                f"{page}: {name}"
            )


@pytest.mark.contract("Z7")
def test_every_option_of_a_request_is_described_with_its_default() -> None:
    rows = rows_of("docs/generation.md", "Options")
    assert list(rows) == list(DEFAULTS)
    for name, default in DEFAULTS.items():
        assert f"`{default}`" in rows[name].split("|")[0], name


@pytest.mark.contract("T1")
def test_every_timing_is_described(demo_model: llm.Model) -> None:
    timings = demo_model.generate("hello", max_tokens=1).timings()
    assert list(rows_of("docs/timings.md", "Fields")) == list(timings)


@pytest.mark.contract("M1")
def test_every_figure_of_the_memory_and_load_summaries_is_described(demo_model: llm.Model) -> None:
    assert list(rows_of("docs/memory.md", "Figures")) == list(demo_model.memory_summary())
    assert list(rows_of("docs/loading.md", "What the load cost")) == list(demo_model.load_summary())


@pytest.mark.contract("M3")
def test_every_figure_that_a_plan_adds_is_described(demo_model: llm.Model, demo_model_path: Path) -> None:
    added = [name for name in llm.plan(demo_model_path, budget=0) if name not in demo_model.memory_summary()]
    assert list(rows_of("docs/memory.md", "Before a load")) == added


@pytest.mark.contract("E1")
def test_every_exception_is_described_with_its_status() -> None:
    rows = rows_of("docs/errors.md", "What to do")
    assert sorted(rows) == sorted(errors.__all__)
    for name, rest in rows.items():
        kind = getattr(aner, name)
        status = next(errors.HTTP_STATUS[base] for base in kind.__mro__ if base in errors.HTTP_STATUS)
        assert rest.split("|")[0].strip() == str(status), name


@pytest.mark.contract("T5")
def test_what_the_readme_says_this_release_holds_is_there(demo_model: llm.Model) -> None:
    held = text_of("README.md").split("holds loading", 1)[1].split("model.supports(name)", 1)[0]
    with demo_model.with_batching(1) as batching:
        there = {
            "optimizer profiles": demo_model.supports("optimizer"),
            "sessions": demo_model.supports("session"),
            "LoRA adapters": demo_model.supports("adapter"),
            "continuous batching": batching.supports("continuous_batching"),
            "planning": hasattr(llm, "plan"),
            "HTTP serving": importlib.util.find_spec("aner.api") is not None,
        }
    assert there == {name: name in held for name in there}
