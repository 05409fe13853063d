"""Every way in which a request can be ended; the lease is free after each of them."""

from __future__ import annotations

import gc
import random
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aner import BusyError, CancelledError, RequestTimeoutError, llm
from tests.support.byte_vocabulary import ids_of

PROMPT = [1, *ids_of("Hello")]
ENDLESS: dict[str, Any] = {"max_tokens": 10_000, "ignore_eos": True}


def is_free(model: llm.Model) -> bool:
    """Whether the lease takes a request and answers it rightly."""
    return len(model.generate(PROMPT, max_tokens=2, ignore_eos=True).token_ids()) == 2


@pytest.fixture(scope="module")
def bytes_model(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=256) as model:
        yield model.with_optimizer(1, 1)


@pytest.fixture(scope="module")
def long_model(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    """A context whose prefill takes many steps."""
    with llm.load(synthetic("llama"), context=16384) as model:
        yield model.with_optimizer(1, 1)


@pytest.mark.contract("Z6")
def test_leaving_the_loop_cancels_the_request(bytes_model: llm.Model) -> None:
    stream = bytes_model.stream(PROMPT, **ENDLESS)
    for i, _ in enumerate(stream):
        if i == 3:
            break
    assert is_free(bytes_model)
    with pytest.raises(CancelledError):
        stream.response()
    with pytest.raises(CancelledError):
        next(stream)


@pytest.mark.contract("Z6")
def test_leaving_the_loop_by_an_exception_cancels_the_request_while_it_is_handled(bytes_model: llm.Model) -> None:
    try:
        for _ in bytes_model.stream(PROMPT, **ENDLESS):
            raise KeyError("mine")
    except KeyError:
        assert is_free(bytes_model)


@pytest.mark.contract("Z6")
def test_leaving_a_with_block_cancels_the_request(bytes_model: llm.Model) -> None:
    with bytes_model.stream(PROMPT, **ENDLESS) as stream:
        next(stream)
        with pytest.raises(BusyError):
            bytes_model.generate(PROMPT)
    assert is_free(bytes_model)


@pytest.mark.contract("Z6")
def test_cancel_before_the_first_read_leaves_nothing_to_read(bytes_model: llm.Model) -> None:
    stream = bytes_model.start(PROMPT, **ENDLESS)
    stream.cancel()
    assert is_free(bytes_model)
    for read in (stream.response, lambda: next(stream), lambda: list(stream)):
        with pytest.raises(CancelledError):
            read()


@pytest.mark.contract("Z6")
def test_cancel_and_close_after_the_end_change_nothing(bytes_model: llm.Model) -> None:
    stream = bytes_model.start(PROMPT, max_tokens=5, ignore_eos=True)
    text = "".join(stream)
    for _ in range(2):
        stream.cancel()
        stream.close()
    assert stream.response().text() == text
    assert list(stream) == []


@pytest.mark.contract("Z6")
def test_a_stream_that_is_dropped_frees_the_lease(bytes_model: llm.Model) -> None:
    stream = bytes_model.start(PROMPT, **ENDLESS)
    next(stream)
    gone = weakref.ref(stream)
    cycle: list[Any] = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()
    assert gone() is None
    assert is_free(bytes_model)


@pytest.mark.contract("Z6")
@pytest.mark.parametrize("read", [lambda s: s.response(), lambda s: "".join(s), lambda s: [next(s) for _ in range(10**6)]])
def test_cancel_from_another_thread_ends_the_wait_with_cancelled_error(
    long_model: llm.Model, read: Callable[[llm.Stream], object]
) -> None:
    stream = long_model.start(PROMPT, max_tokens=16000, ignore_eos=True)
    started = threading.Event()

    def cancel() -> None:
        started.wait()
        time.sleep(0.02)
        stream.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    next(stream)
    started.set()
    with pytest.raises(CancelledError):
        read(stream)
    thread.join()
    assert is_free(long_model)


@pytest.mark.contract("Z6")
def test_cancel_from_another_thread_ends_a_prefill_before_its_end(long_model: llm.Model) -> None:
    stream = long_model.start([5] * 16000, max_tokens=1)
    threading.Timer(0.05, stream.cancel).start()
    with pytest.raises(CancelledError):
        stream.response()
    assert is_free(long_model)


@pytest.mark.contract("Z6")
def test_cancel_from_the_callback_ends_the_request_with_cancelled_error(bytes_model: llm.Model) -> None:
    read: list[str] = []
    stream = bytes_model.start(PROMPT, **ENDLESS)

    def take(piece: str) -> None:
        read.append(piece)
        if len(read) == 3:
            stream.cancel()

    with pytest.raises(CancelledError):
        list(map(take, stream))
    assert len(read) == 3
    assert is_free(bytes_model)


@pytest.mark.contract("Z6")
@pytest.mark.parametrize("error", [ValueError("mine"), StopIteration("mine"), GeneratorExit("mine"), KeyboardInterrupt("mine")])
def test_an_exception_of_on_text_passes_on_with_its_traceback_and_frees_the_lease(
    bytes_model: llm.Model, error: BaseException
) -> None:
    def on_text(piece: str) -> None:
        raise error

    with pytest.raises(type(error), match="mine") as caught:
        bytes_model.generate(PROMPT, on_text=on_text, **ENDLESS)
    assert caught.value is error
    assert "on_text" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert is_free(bytes_model)


@pytest.mark.contract("Z6")
def test_system_exit_in_on_text_passes_on(bytes_model: llm.Model) -> None:
    with pytest.raises(SystemExit) as caught:
        bytes_model.generate(PROMPT, on_text=lambda piece: sys.exit(7), **ENDLESS)
    assert caught.value.code == 7
    assert is_free(bytes_model)


@pytest.mark.contract("Z6")
@pytest.mark.parametrize("seconds", [1e-9, 0.001, 0.05])
def test_a_timeout_ends_a_decode(long_model: llm.Model, seconds: float) -> None:
    before = time.monotonic()
    with pytest.raises(RequestTimeoutError, match="timeout") as caught:
        long_model.generate(PROMPT, max_tokens=16000, ignore_eos=True, timeout=seconds)
    assert isinstance(caught.value, TimeoutError)
    assert seconds <= time.monotonic() - before < seconds + 5
    assert is_free(long_model)


@pytest.mark.contract("Z6")
def test_a_timeout_ends_a_prefill_before_its_end(long_model: llm.Model) -> None:
    pieces: list[str] = []
    with pytest.raises(RequestTimeoutError):
        long_model.generate([5] * 16000, max_tokens=1, timeout=0.05, on_text=pieces.append)
    assert pieces == []
    assert is_free(long_model)


@pytest.mark.contract("Z6")
def test_a_timeout_counts_from_the_start_also_while_nobody_reads(bytes_model: llm.Model) -> None:
    stream = bytes_model.start(PROMPT, timeout=0.02, **ENDLESS)
    time.sleep(0.03)
    with pytest.raises(RequestTimeoutError):
        next(stream)
    with pytest.raises(RequestTimeoutError):
        stream.response()
    assert is_free(bytes_model)


@pytest.mark.contract("Z6")
def test_a_request_that_ends_within_its_timeout_is_whole(bytes_model: llm.Model) -> None:
    assert len(bytes_model.generate(PROMPT, max_tokens=5, ignore_eos=True, timeout=60).token_ids()) == 5


@pytest.mark.contract("E2", "P7", "Z6")
def test_five_hundred_cancels_in_prefill_and_decode_leave_the_lease_as_it_was(bytes_model: llm.Model) -> None:
    expected = bytes_model.generate(PROMPT, max_tokens=4, ignore_eos=True).token_ids()
    random_numbers = random.Random(3)
    for i in range(500):
        stream = bytes_model.start([5] * random_numbers.choice([1, 7, 200]), max_tokens=40, ignore_eos=True)
        for _ in range(random_numbers.choice([0, 0, 1, 3])):
            next(stream)
        stream.cancel()
        if i % 10 == 0:
            assert bytes_model.generate(PROMPT, max_tokens=4, ignore_eos=True).token_ids() == expected
    assert is_free(bytes_model)
    assert bytes_model.memory_summary()["retained_contexts"] == 1


@pytest.mark.contract("B9", "Z6")
def test_two_threads_that_read_one_stream_get_busy_errors_and_every_piece_once(long_model: llm.Model) -> None:
    options = {"max_tokens": 60, "ignore_eos": True}
    expected = list(long_model.stream(PROMPT, **options))
    stream = long_model.start(PROMPT, **options)
    read: list[tuple[int, str]] = []
    refused: list[BusyError] = []
    barrier = threading.Barrier(3)

    def reader(number: int) -> None:
        barrier.wait()
        while True:
            try:
                read.append((number, next(stream)))
            except BusyError as error:
                refused.append(error)
                time.sleep(0.0001)
            except StopIteration:
                return

    threads = [threading.Thread(target=reader, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused
    assert sorted(piece for _, piece in read) == sorted(expected)
    assert is_free(long_model)


@pytest.mark.contract("B9", "Z6")
def test_a_loop_over_a_stream_that_another_thread_reads_leaves_that_one_undisturbed(long_model: llm.Model) -> None:
    stream = long_model.start([5] * 3000, max_tokens=20, ignore_eos=True)
    answers: list[llm.Response] = []
    reader = threading.Thread(target=lambda: answers.append(stream.response()))
    reader.start()
    time.sleep(0.05)
    with pytest.raises(BusyError, match="another thread"):
        for _ in stream:
            pass
    reader.join()
    assert len(answers[0].token_ids()) == 20
    assert is_free(long_model)
