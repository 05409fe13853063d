"""The shape of the sources: who may include what, one home for each setting, exported names, stubs, sizes."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import aner_native
import pytest

import aner

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "aner_native" / "core"
ENGINE = CORE / "llama"
BINDINGS = ROOT / "aner_native" / "bindings"
#: Folders that hold no source of ours: what is built, fetched, or kept by tools.
NOT_OURS = {".git", ".venv", "build", "dist", "models", "source", "results", "__pycache__"}


def sources(*suffixes: str, below: Path = ROOT) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(below):
        subfolders[:] = sorted(
            one for one in subfolders if one not in NOT_OURS and not one.endswith(("_cache", ".egg-info", ".hypothesis"))
        )
        yield from (Path(folder) / name for name in sorted(names) if name.endswith(suffixes))


def includes(source: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', source.read_text("utf-8"), re.MULTILINE)


def relative(paths: Iterator[Path] | list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


# -- layers ------------------------------------------------------------------------------------------------------------------


def test_the_core_never_includes_python() -> None:
    found = [
        source
        for source in sources(".cpp", ".hpp", below=CORE)
        if any(re.search("[Pp]ython|cython", one) for one in includes(source))
    ]
    assert relative(found) == []
    assert len(list(sources(".cpp", below=CORE))) > 20


def test_only_the_engine_folder_includes_the_engine() -> None:
    engine = re.compile(r"(^|/)(llama|ggml|gguf)[\w-]*\.h$")
    including = {
        source
        for source in sources(".cpp", ".hpp", ".h", ".pxd", ".pyx", below=ROOT / "aner_native")
        if any(map(engine.search, includes(source)))
    }
    assert relative([source for source in including if ENGINE not in source.parents]) == []
    assert ENGINE / "llama_decoder.cpp" in including or ENGINE / "llama_handles.hpp" in including
    externs = [
        line
        for source in sources(".pxd", ".pyx", below=BINDINGS)
        for line in source.read_text("utf-8").splitlines()
        if "cdef extern from" in line
    ]
    assert externs
    assert [line for line in externs if re.search(r"[<\"/](llama|ggml|gguf)[\w-]*\.h\b", line)] == []


def test_the_engines_private_headers_are_included_in_one_file() -> None:
    public = {"llama.h", "ggml.h", "ggml-backend.h", "ggml-cpu.h", "ggml-alloc.h", "gguf.h"}
    private = {
        source
        for source in sources(".cpp", ".hpp", below=ENGINE)
        if any(re.match(r"(llama|ggml)[-.]\w*", one) and one not in public for one in includes(source))
    }
    assert relative(sorted(private)) == ["aner_native/core/llama/llama_private.cpp"]


def test_the_core_never_prints_but_for_the_engines_last_words() -> None:
    printing = [
        source
        for source in sources(".cpp", ".hpp", below=CORE)
        if re.search(r"\b(printf|puts|putchar|fputs|cout|cerr|clog|perror)\b\s*[(<]", source.read_text("utf-8"))
    ]
    spoken = [source for source in sources(".cpp", ".hpp", below=CORE) if "fprintf" in source.read_text("utf-8")]
    assert relative(printing) == []
    assert relative(spoken) == ["aner_native/core/llama/backend.cpp"]  # on_abort: the process ends with that line


def test_no_cython_is_included_as_text() -> None:
    assert relative(sources(".pxi")) == []
    assert [
        line
        for source in sources(".pyx", ".pxd")
        for line in source.read_text("utf-8").splitlines()
        if re.match(r"\s*include\s+[\"']", line)
    ] == []


def test_one_file_sets_the_engines_options() -> None:
    setting = re.compile(
        r"(?:^|\s)(?:set|option|list|unset)\s*\(\s*(?:APPEND\s+)?\"?(?:GGML|LLAMA)_|-D(?:GGML|LLAMA)_|\"(?:GGML|LLAMA)_\w+\"\s*:",
        re.MULTILINE,
    )
    names = ("CMakeLists.txt", ".cmake", "CMakePresets.json", "pyproject.toml", "Makefile")
    found = [one for one in sources(*names) if setting.search(one.read_text("utf-8"))]
    ours = [one for one in found if ROOT / "bench" not in one.parents]  # the bench builds its peers with their own options
    assert relative(ours) == ["cmake/LlamaCpp.cmake"]


# -- exported names ----------------------------------------------------------------------------------------------------------


def public_modules() -> list[str]:
    names = [name for _, name, _ in pkgutil.walk_packages(aner.__path__, "aner.")]
    return ["aner", *(name for name in names if not any(part.startswith("_") for part in name.split(".")))]


def test_every_public_module_is_known() -> None:
    assert {"aner", "aner.errors", "aner.llm"} <= set(public_modules())


@pytest.mark.parametrize("name", public_modules())
def test_the_exported_names_of_a_public_module_equal_its_all(name: str) -> None:
    module = importlib.import_module(name)
    public = {
        attribute
        for attribute, value in vars(module).items()
        if not attribute.startswith("_") and str(getattr(value, "__module__", None)).partition(".")[0] == "aner"
    }
    exported = list(module.__all__)
    assert len(exported) == len(set(exported))
    assert [one for one in exported if not hasattr(module, one)] == []
    assert public - set(exported) == set()
    assert {one for one in exported if one.startswith("_")} <= {"__version__"}
    documented = [
        getattr(module, one)
        for one in exported
        if inspect.isclass(getattr(module, one)) or inspect.isroutine(getattr(module, one))
    ]
    assert [one.__name__ for one in documented if not inspect.getdoc(one)] == []


def test_private_modules_are_not_imported_by_users_of_a_public_name() -> None:
    documented = [ROOT / "README.md", *sources(".md", below=ROOT / "docs"), *sources(".py", below=ROOT / "bench")]
    found = [
        str(path.relative_to(ROOT))
        for path in documented
        if re.search(r"^\s*(from|import) aner(\.\w+)*\._", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert found == []


# -- stubs -------------------------------------------------------------------------------------------------------------------


def stub_names() -> dict[str, set[str]]:
    tree = ast.parse((BINDINGS / "aner_native.pyi").read_text("utf-8"))
    names: dict[str, set[str]] = {"": set()}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names[""].add(node.name)
        if isinstance(node, ast.ClassDef):
            names[node.name] = {
                one.name for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")
            }
    return names


def test_the_stub_has_every_name_of_the_extension_and_no_other() -> None:
    runtime = {
        "": {
            name for name, value in vars(aner_native).items() if not name.startswith("_") and not isinstance(value, ModuleType)
        }
    }
    for name in runtime[""]:
        if isinstance(getattr(aner_native, name), type):
            runtime[name] = {one for one in vars(getattr(aner_native, name)) if not one.startswith("_")}
    assert stub_names() == runtime


def test_the_stub_has_the_signatures_of_the_extension(tmp_path: Path) -> None:
    # What Cython adds to every module and class. The classes themselves, by name, are the business of the test above.
    classes = "|".join(name for name in stub_names() if name)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"aner_native(\\.\\w+)?\\.__(reduce_cython|setstate_cython|test|init)__\naner_native\\.({classes})\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "aner_native", "--allowlist", str(allowed), "--ignore-unused-allowlist"],
        capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(BINDINGS), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


# -- manner ------------------------------------------------------------------------------------------------------------------

CEILINGS = {".cpp": 400, ".hpp": 150, ".pyx": 500, ".py": 300}


def test_no_file_is_over_its_ceiling_unless_its_first_comment_says_why() -> None:
    """Tests are left out: a module of theirs is a list, and one subject each is what matters there."""
    over = {}
    for source in sources(*CEILINGS):
        if "tests" in source.relative_to(ROOT).parts:
            continue
        lines = source.read_text("utf-8").splitlines()
        if len(lines) > CEILINGS[source.suffix] and not any(re.search(r"\bOver its ceiling\b", line) for line in lines[:15]):
            over[str(source.relative_to(ROOT))] = len(lines)
    assert over == {}


def test_no_source_names_a_place_on_the_machine_that_it_was_written_on() -> None:
    places = {f"{place}/" for place in (ROOT, ROOT.parent, Path.home(), Path(sys.prefix))} - {"//", "/usr/"}
    suffixes = (
        ".py",
        ".pyx",
        ".pxd",
        ".pyi",
        ".cpp",
        ".hpp",
        ".cmake",
        ".txt",
        ".md",
        ".toml",
        ".json",
        ".patch",
        ".in",
        "Makefile",
        "run",
    )
    found = [source for source in sources(*suffixes) if any(place in source.read_text("utf-8") for place in places)]
    assert relative(found) == []


#: Typographic quotes, dashes, spaces, ellipses, arrows and signs that have an ASCII spelling.
TYPOGRAPHIC = re.compile("[\u00a0\u00ab\u00bb\u2000-\u206f\u2190-\u21ff\u2212\u2260\u2264\u2265\ufeff]")


def test_sources_have_ascii_punctuation_unix_lines_and_one_newline_at_the_end() -> None:
    wrong = []
    for source in sources(".py", ".pyx", ".pxd", ".pyi", ".cpp", ".hpp", ".cmake", "CMakeLists.txt"):
        text = source.read_bytes().decode("utf-8")
        ended = not text or (text.endswith("\n") and not text.endswith("\n\n"))
        if TYPOGRAPHIC.search(text) or not ended or "\r" in text or "\t" in text:
            wrong.append(source)
    assert relative(wrong) == []
