"""Many threads: one caller for each lease, busy errors for the others, siblings side by side, nothing mixed up."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aner import BusyError, CancelledError, llm
from tests.support.byte_vocabulary import ids_of

PROMPT = [1, *ids_of("Hello")]
OPTIONS: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def shared(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=256, reproducible=True) as model:
        yield model.with_optimizer(1, 1)


def run_threads(n: int, work: Callable[[int], None]) -> None:
    """Start ``n`` threads at the same moment and wait for all; the first exception of one is raised here."""
    barrier = threading.Barrier(n)
    failures: list[BaseException] = []

    def body(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if failures:
        raise failures[0]


@pytest.mark.contract("B9", "E2")
@pytest.mark.parametrize("n_threads", [2, 8, 32])
@pytest.mark.parametrize("streaming", [False, True])
def test_threads_on_one_lease_get_an_answer_or_a_busy_error(shared: llm.Model, n_threads: int, streaming: bool) -> None:
    expected = shared.generate(PROMPT, **OPTIONS).text()
    outcomes: Counter[str] = Counter()

    def work(number: int) -> None:
        for _ in range(5):
            try:
                text = "".join(shared.stream(PROMPT, **OPTIONS)) if streaming else shared.generate(PROMPT, **OPTIONS).text()
            except BusyError:
                outcomes["busy"] += 1
            else:
                outcomes[text] += 1

    run_threads(n_threads, work)
    assert outcomes.total() == 5 * n_threads
    assert outcomes[expected] >= 1
    assert set(outcomes) <= {"busy", expected}
    assert shared.generate(PROMPT, **OPTIONS).text() == expected


@pytest.mark.contract("B9")
def test_a_second_call_is_busy_at_once_and_starts_nothing(shared: llm.Model) -> None:
    with shared.start(PROMPT, **OPTIONS) as stream:
        retained = shared.memory_summary()["retained_contexts"]
        for call in (shared.generate, shared.stream, shared.start):
            before = time.monotonic()
            with pytest.raises(BusyError, match="another request") as caught:
                call(PROMPT, **OPTIONS)  # type: ignore[operator]
            assert time.monotonic() - before < 1
            assert isinstance(caught.value, RuntimeError)
        assert shared.memory_summary()["retained_contexts"] == retained
        assert len(stream.response().token_ids()) == 12
    assert len(shared.generate(PROMPT, **OPTIONS).token_ids()) == 12


@pytest.mark.contract("B9", "Z1")
def test_a_call_from_the_callback_of_the_same_lease_is_busy_and_from_a_siblings_is_served(shared: llm.Model) -> None:
    sibling = shared.native_stateless()
    seen: list[str] = []

    def on_text(piece: str) -> None:
        if not seen:  # with its last piece a request is over
            with pytest.raises(BusyError):
                shared.generate(PROMPT, **OPTIONS)
        seen.append(sibling.generate(PROMPT, **OPTIONS).text())

    response = shared.generate(PROMPT, on_text=on_text, **OPTIONS)
    assert set(seen) == {response.text()}


@pytest.mark.contract("B9", "V1")
@pytest.mark.parametrize("n_threads", [2, 32])
@pytest.mark.parametrize("streaming", [False, True])
def test_siblings_run_side_by_side_and_each_gets_its_own_answer(shared: llm.Model, n_threads: int, streaming: bool) -> None:
    """Each thread has a prompt and a seed of its own; what it gets alone is what it gets among the others."""

    def request(model: llm.Model, number: int) -> str:
        options = {**OPTIONS, "temperature": 2.0, "seed": number}
        prompt = [1, *ids_of(f"marker {number}")]
        return "".join(model.stream(prompt, **options)) if streaming else model.generate(prompt, **options).text()

    alone = [request(shared, number) for number in range(n_threads)]
    assert len(set(alone)) == n_threads
    siblings = [shared.native_stateless() for _ in range(n_threads)]

    def work(number: int) -> None:
        assert request(siblings[number], number) == alone[number]

    run_threads(n_threads, work)
    assert shared.memory_summary()["retained_contexts"] <= 1


@pytest.mark.contract("B9")
def test_siblings_share_the_pool_and_have_a_caller_each(shared: llm.Model) -> None:
    lease = shared.with_context_pool(2)
    sibling = lease.native_stateless()
    with lease.start(PROMPT, **OPTIONS), pytest.raises(BusyError):
        lease.generate(PROMPT)
    assert lease.generate(PROMPT, **OPTIONS).timings()["context_pool_reused"] in (0, 1)
    assert sibling.generate(PROMPT, **OPTIONS).timings()["context_pool_reused"] == 1
    assert lease.memory_summary()["retained_contexts"] == sibling.memory_summary()["retained_contexts"]
    assert (sibling.fingerprint(), sibling.profile()) == (lease.fingerprint(), lease.profile())


@pytest.mark.contract("B9", "E2", "Z6")
def test_readers_cancellers_and_closers_at_once_end_in_typed_outcomes(synthetic: Callable[[str], Path]) -> None:
    with llm.load(synthetic("llama"), context=256) as model:
        outcomes: Counter[str] = Counter()

        def work(number: int) -> None:
            lease = model.native_stateless()
            for i in range(12):
                stream = lease.start(PROMPT, max_tokens=40, ignore_eos=True)
                canceller = threading.Thread(target=(stream.cancel, stream.close, lease.close)[(number + i) % 3])
                canceller.start()
                try:
                    outcomes[str(len(stream.response().token_ids()))] += 1
                except CancelledError:
                    outcomes["cancelled"] += 1
                canceller.join()
                if not lease.supports("generate"):
                    lease = model.native_stateless()

        run_threads(8, work)
        assert set(outcomes) <= {"40", "cancelled"}
        assert outcomes.total() == 8 * 12
        assert len(model.generate(PROMPT, **OPTIONS).token_ids()) == 12


@pytest.mark.contract("E2")
def test_threads_with_small_stacks_tokenize_and_generate(tmp_path: Path) -> None:
    from tests.support import gguf_files

    def pre_tokenizer(writer: Any) -> None:
        gguf_files.set_value(writer, "tokenizer.ggml.pre", "deepseek-v3")  # regular expressions, which recurse

    path = gguf_files.llama(tmp_path / "m.gguf", vocabulary="bpe", edit=pre_tokenizer)
    old = threading.stack_size(256 << 10)
    try:
        with llm.load(path, context=4096) as model:
            counts: list[int] = []
            run_threads(2, lambda number: counts.append(len(model.tokenize("x" * 3000))))
            assert counts == [3000, 3000]
            siblings = [model.native_stateless() for _ in range(2)]
            run_threads(2, lambda number: counts.append(len(siblings[number].generate("x" * 3000, **OPTIONS).token_ids())))
            assert counts[2:] == [12, 12]
    finally:
        threading.stack_size(old)


@pytest.mark.contract("E2")
def test_the_interpreter_runs_while_a_request_computes(shared: llm.Model) -> None:
    """The GIL is free during engine calls: another Python thread makes progress during a long prefill."""
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.0005)

    old = sys.getswitchinterval()
    sys.setswitchinterval(10.0)  # a thread that held the GIL would not be asked to give it up
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks
        for _ in range(5):
            shared.generate([5] * 255, max_tokens=1)
        assert ticks - before >= 3
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(old)
