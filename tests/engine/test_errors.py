"""The tree of errors and its tables, what handles refuse, and that the library is silent."""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import logging
import multiprocessing
import os
import pickle
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aner_native
import pytest

import aner
from aner import errors, llm
from tests.support import gguf_files
from tests.support.call_in_child import call_in_child
from tests.support.malformed_gguf import malformed_files

Synthetic = Callable[[str], Path]


# -- E1: the tree and its tables ---------------------------------------------------------------------------------------------


def classes() -> dict[str, type[Exception]]:
    return {name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}


@pytest.mark.contract("E1")
def test_every_class_is_exported_from_errors_and_from_aner_and_derives_from_the_root() -> None:
    assert sorted(errors.__all__) == errors.__all__ == sorted(classes())
    for name, one in classes().items():
        assert issubclass(one, errors.AnerError)
        assert getattr(aner, name) is one
        assert one.__doc__
    assert set(aner.__all__) == {"__version__", "build_info", *errors.__all__}


@pytest.mark.contract("E1")
def test_the_tree_in_the_docstring_is_the_tree_of_the_classes_with_their_builtins() -> None:
    drawn: dict[str, tuple[str, str | None]] = {}
    path: list[str] = ["AnerError"]
    assert errors.__doc__ is not None
    lines = errors.__doc__.splitlines()
    [root] = [line for line in lines if line.strip() == "AnerError"]
    for line in lines:
        found = re.match(r"((?:\|  |   )*)[|`]- (\w+)(?: \((\w+)\))?", line[root.index("A") :])
        if found:
            depth = len(found[1]) // 3
            drawn[found[2]] = (path[depth], found[3])
            path[depth + 1 :] = [found[2]]
    actual = {}
    for name, one in classes().items():
        if one is errors.AnerError:
            continue
        parent, *rest = one.__bases__
        builtin = next((base.__name__ for base in rest if vars(builtins).get(base.__name__) is base), None)
        actual[name] = (parent.__name__, builtin)
    assert drawn == actual


@pytest.mark.contract("E1")
def test_every_native_code_has_an_exception_and_every_class_is_one_that_something_raises() -> None:
    assert set(errors.BY_NATIVE_CODE) == set(aner_native.error_codes().values())
    assert all(issubclass(one, errors.AnerError) for one in errors.BY_NATIVE_CODE.values())
    sources = [path.read_text("utf-8") for path in Path(aner.__file__).parent.rglob("*.py") if path.name != "errors.py"]
    for name, one in classes().items():
        assert one in errors.BY_NATIVE_CODE.values() or any(f"{name}(" in source for source in sources), name


@pytest.mark.contract("E1")
def test_every_class_resolves_to_one_http_status_through_its_bases() -> None:
    for one in classes().values():
        lines = [errors.HTTP_STATUS[base] for base in one.__mro__ if base in errors.HTTP_STATUS]
        assert lines, one
        assert 400 <= lines[0] <= 599
    assert all(issubclass(one, errors.AnerError) for one in errors.HTTP_STATUS)
    status = {one: next(errors.HTTP_STATUS[b] for b in one.__mro__ if b in errors.HTTP_STATUS) for one in classes().values()}
    wanted = {"ContextFullError": 400, "TemplateError": 400, "BusyError": 429, "RequestTimeoutError": 504, "ClosedError": 503}
    assert {name: status[getattr(errors, name)] for name in wanted} == wanted


@pytest.mark.contract("E1")
@pytest.mark.parametrize(
    ("builtin", "cause"),
    [
        (FileNotFoundError, lambda path: llm.load("no such file")),
        (ValueError, lambda path: llm.load(path, context=0)),
        (RuntimeError, lambda path: llm.load(path, device="vulkan:999")),
        (ValueError, lambda path: llm.load(path, context=16).generate([1], temperature=-1)),
        (ValueError, lambda path: llm.load(path, context=16).generate([1] * 16)),
        (TimeoutError, lambda path: llm.load(path, context=16).generate([1], timeout=1e-9)),
        (TypeError, lambda path: pickle.dumps(llm.load(path, context=16))),
    ],
)  # fmt: skip
def test_an_error_is_also_the_builtin_that_fits(
    synthetic: Synthetic, builtin: type[Exception], cause: Callable[[Path], object]
) -> None:
    with pytest.raises(builtin):
        cause(synthetic("llama-plain"))


# -- E5: handles stay in their process ---------------------------------------------------------------------------------------


def handles(model: llm.Model) -> dict[str, object]:
    return {
        "lease": model,
        "derived lease": model.with_context_pool(0),
        "stream": model.native_stateless().stream([1, 2], max_tokens=2),
        "native lease": model._native,
        "native generation": model.native_stateless().stream([1, 2], max_tokens=2)._generation,
    }


@pytest.mark.contract("E5")
@pytest.mark.parametrize("name", ["lease", "derived lease", "stream", "native lease", "native generation"])
def test_a_handle_cannot_be_pickled_copied_or_sent(model: llm.Model, name: str) -> None:
    handle = handles(model)[name]
    ways: list[Callable[[Any], object]] = [
        pickle.dumps, copy.copy, copy.deepcopy, lambda one: copy.deepcopy({"in": [one]}),
        lambda one: pickle.dumps(one, protocol=pickle.HIGHEST_PROTOCOL),
        lambda one: multiprocessing.reduction.ForkingPickler.dumps(one),
    ]  # fmt: skip
    for way in ways:
        with pytest.raises(
            TypeError, match="pickl" if name.startswith("native") else "cannot be pickled.*(load it there|send its text)"
        ):
            way(handle)


@pytest.mark.contract("E5")
def test_a_spawned_process_is_not_given_a_lease(model: llm.Model) -> None:
    with pytest.raises(TypeError, match="load it there"):
        multiprocessing.get_context("spawn").Process(target=print, args=(model,)).start()


@pytest.mark.contract("E5")
def test_results_and_figures_can_be_sent(model: llm.Model) -> None:
    response = model.generate([1, 2], max_tokens=2, logprobs=1, ignore_eos=True)
    for value in (response.timings(), response.logprobs(), model.memory_summary(), model.profile(), model.load_summary()):
        assert pickle.loads(pickle.dumps(value)) == value
        assert copy.deepcopy(value) == value
    again = pickle.loads(pickle.dumps(response))
    assert (again.text(), again.token_ids(), again.output_hash()) == (
        response.text(),
        response.token_ids(),
        response.output_hash(),
    )


@pytest.mark.contract("E5", "E1")
def test_errors_can_be_sent_and_keep_their_message() -> None:
    for one in classes().values():
        error = pickle.loads(pickle.dumps(one("what was asked")))
        assert (type(error), str(error)) == (one, "what was asked")


# -- E3: messages ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("E3")
def test_a_message_is_one_line_of_reasonable_length_whatever_was_given(synthetic: Synthetic) -> None:
    path, long = synthetic("llama"), "x\n" * 100_000
    causes: list[Callable[[], object]] = [
        lambda: llm.load(path, device=long), lambda: llm.load(path, kv_cache_type=long),
        lambda: llm.load(path, expected_sha256=long), lambda: llm.load(path, flash_attention=long), lambda: llm.load(long),
        lambda: llm.load(path, context=long),  # type: ignore[arg-type]
    ]  # fmt: skip
    for cause in causes:
        with pytest.raises(errors.AnerError) as refused:
            cause()
        assert len(str(refused.value)) < 1000
        assert "\n" not in str(refused.value)


# -- E4: silence -------------------------------------------------------------------------------------------------------------


def a_whole_life(folder: str) -> dict[str, object]:
    """Load, generate, fail in every way and close; what the engine's logger heard, and the descriptors before and after."""
    heard: list[logging.LogRecord] = []
    logger = logging.getLogger("aner.engine")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(type("Ear", (logging.Handler,), {"emit": lambda self, record: heard.append(record)})())
    before = sorted(os.listdir("/proc/self/fd"))
    path = gguf_files.llama(Path(folder) / "good.gguf", chat_template=gguf_files.CHATML)
    for bad, _ in malformed_files(Path(folder) / "bad").values():
        with contextlib.suppress(errors.ModelLoadError):
            llm.load(bad)
    lacking = Path(folder) / "lacking.gguf"
    lacking.write_bytes(path.read_bytes().replace(b"blk.1.ffn_norm.weight", b"blk.1.ffn_abcd.weight"))
    with contextlib.suppress(errors.ModelLoadError):
        llm.load(lacking)
    model = llm.load(path, context=64)
    for options in ({"temperature": -1}, {"timeout": 1e-9}, {"max_tokens": 4}, {"stop": ["a"], "logprobs": 3}):
        with contextlib.suppress(errors.AnerError):
            model.generate("Hello", **options)
    next(model.stream("x", ignore_eos=True, raw=True, min_tokens=200, max_tokens=200), None)
    during = sorted(os.listdir("/proc/self/fd"))
    dead = weakref.ref(model)
    model.close()
    del model
    return {
        "levels": sorted({record.levelname for record in heard}),
        "engine_errors": [record.getMessage() for record in heard if record.levelno >= logging.ERROR],
        "descriptors_kept": len(set(during) - set(before)),
        "descriptors_left": len(set(os.listdir("/proc/self/fd")) - set(before)),
        "dead": dead() is None,
        "handlers": [type(one).__name__ for one in logging.getLogger("aner").handlers],
    }  # fmt: skip


@pytest.mark.contract("E4")
def test_nothing_is_printed_and_the_engines_lines_reach_the_logger(tmp_path: Path) -> None:
    found = call_in_child(a_whole_life, tmp_path).checked()  # fails if anything stood on stdout or stderr
    assert {"DEBUG", "ERROR"} <= set(found["levels"])
    assert any("blk.1.ffn_norm.weight" in line for line in found["engine_errors"])
    assert (found["descriptors_kept"], found["descriptors_left"]) == (0, 0)
    assert found["dead"] is True
    assert found["handlers"] == ["NullHandler"]


@pytest.mark.contract("E4")
def test_no_source_prints_outside_the_command_line_and_the_probes_child() -> None:
    package = Path(aner.__file__).parent
    printing = set()
    for source in package.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text("utf-8"))):
            prints = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if prints or (isinstance(node, ast.Attribute) and node.attr in ("stdout", "stderr")):
                printing.add(str(source.relative_to(package)))
    assert {name for name in printing if not name.startswith(("cli/", "measure/"))} <= {"llm/_probe.py"}
