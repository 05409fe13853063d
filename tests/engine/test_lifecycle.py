"""Closing, leaving, forking, interrupting: each in a process of its own, which must end by itself, with 0, in silence."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.engine import fork_children
from tests.engine import lifecycle_children as children
from tests.support import gguf_files
from tests.support.call_in_child import call_in_child

TINY = gguf_files.Size(n_embd=32, n_head=1, n_kv=1, n_ff=32, n_layer=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", size=TINY, chat_template=gguf_files.CHATML)


# -- exit --------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("Z1", "E2", "E4")
@pytest.mark.parametrize(
    "leave",
    [
        children.exit_with_daemon_threads_generating,
        children.exit_with_a_load_in_a_thread,
        children.exit_with_everything_alive,
    ],
)
def test_a_process_exits_in_silence_twenty_times(synthetic: Callable[[str], Path], leave: Callable[[str], None]) -> None:
    path = synthetic("llama")
    with ThreadPoolExecutor(2) as both:
        for called in both.map(lambda _: call_in_child(leave, path, timeout=30), range(20)):
            called.checked()


@pytest.mark.contract("Z1", "E2", "E4")
@pytest.mark.parametrize(
    "leave",
    [
        children.exit_by_system_exit_in_a_callback,
        children.exit_by_system_exit_in_a_progress_callback,
        children.exit_while_another_thread_reads_the_same_stream,
    ],
)
def test_a_process_leaves_a_callback_or_a_reader_behind_in_silence(
    synthetic: Callable[[str], Path], leave: Callable[[str], None]
) -> None:
    for _ in range(2):
        call_in_child(leave, synthetic("llama"), timeout=30).checked()


# -- close -------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("Z1", "O9")
def test_closing_at_any_moment_harms_no_request_that_was_accepted(synthetic: Callable[[str], Path]) -> None:
    assert call_in_child(children.closes_of_every_kind, synthetic("llama")).checked() == []


# -- fork --------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("Z3")
def test_every_method_of_an_inherited_lease_says_that_the_process_forked(synthetic: Callable[[str], Path]) -> None:
    found = call_in_child(fork_children.fork_after_a_request, synthetic("llama")).checked()
    said = dict(answer.split(": ", 1) for answer in found["answers"])
    assert said.pop("supports") == "False"
    assert len(said) > 10
    assert set(said.values()) == {"ForkedProcessError"}, said
    assert found["missing"] == []
    assert (found["status"], found["parent"]) == (0, True)
    assert found["seconds"] < 10


@pytest.mark.contract("Z3")
def test_a_stream_belongs_to_the_process_that_started_it_and_goes_on_there(synthetic: Callable[[str], Path]) -> None:
    found = call_in_child(fork_children.fork_in_the_middle_of_a_stream, synthetic("llama")).checked()
    assert found["answers"] == ["ForkedProcessError"] * 3
    assert (found["status"], found["parent"]) == (0, True)
    assert found["seconds"] < 10


@pytest.mark.contract("Z3")
def test_a_fork_while_threads_are_in_the_engine_leaves_a_child_that_works_and_exits(synthetic: Callable[[str], Path]) -> None:
    found = call_in_child(fork_children.fork_while_other_threads_are_in_the_engine, synthetic("llama")).checked()
    assert found["answers"] == ["ForkedProcessError", "ForkedProcessError", "3"]
    assert (found["status"], found["parent"]) == (0, True)
    assert found["seconds"] < 8, "the exit waited for calls that only the parent has"


@pytest.mark.contract("Z3")
@pytest.mark.parametrize(
    ("fork", "said"),
    [
        (fork_children.fork_in_a_progress_callback, "in the callback"),
        (fork_children.fork_and_return_from_a_progress_callback, "ForkedProcessError"),
    ],
)
def test_a_fork_during_a_load_leaves_a_child_that_exits(
    tmp_path: Path, fork: Callable[[str], dict[str, Any]], said: str
) -> None:
    size = gguf_files.Size(n_embd=1024, n_head=8, n_kv=8, n_ff=4096, n_layer=2)  # its digest takes longer than one look
    path = gguf_files.llama(tmp_path / "large.gguf", size=size)
    found = call_in_child(fork, path, timeout=60).checked()
    assert (found["answers"], found["status"], found["parent"]) == ([said], 0, True)


@pytest.mark.contract("Z3")
def test_processes_of_the_fork_method_load_models_of_their_own(synthetic: Callable[[str], Path]) -> None:
    found = call_in_child(fork_children.multiprocessing_fork, synthetic("llama")).checked()
    assert (found["same"], found["parent"], found["codes"]) == (True, True, [0, 0])
    assert found["answers"] == ["ForkedProcessError"] * 2


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("Z4")
def test_ctrl_c_ends_every_kind_of_request_and_frees_the_lease(synthetic: Callable[[str], Path]) -> None:
    found = call_in_child(children.interrupts, synthetic("llama")).checked()
    assert found["ended"].pop("kept stream, again") == "CancelledError"
    assert set(found["ended"].values()) == {"KeyboardInterrupt"}, found["ended"]
    assert len(found["ended"]) == 6
    assert found["free"] == [True] * 5


@pytest.mark.contract("Z4")
def test_ctrl_c_at_any_moment_leaves_the_lease_free_at_once(tiny: Path) -> None:
    found = call_in_child(children.interrupts_at_any_moment, tiny).checked()
    assert found["interrupted"] == 400
    assert found["stuck"] == []


# -- memory ------------------------------------------------------------------------------------------------------------------


def bound(resident: int) -> int:
    return max(resident // 50, 8 << 20)


@pytest.mark.contract("Z2")
def test_ten_thousand_requests_take_no_memory(tiny: Path) -> None:
    seen = call_in_child(children.ten_thousand_requests, tiny).checked()
    assert len(seen) == 5
    assert max(seen) - seen[0] <= bound(seen[0]), seen


@pytest.mark.contract("Z2", "P7")
def test_discarded_contexts_give_their_memory_back(synthetic: Callable[[str], Path]) -> None:
    first, last = call_in_child(children.fifty_cancelled_contexts, synthetic("llama")).checked()
    assert last - first <= bound(first)
