"""asyncio: many requests on one event loop, no thread for each, cancelled with their tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aner import BusyError, CancelledError, InvalidRequestError, llm
from tests.support.byte_vocabulary import ids_of

PROMPT = [1, *ids_of("Hello")]


@pytest.fixture(scope="module")
def exact(synthetic: Callable[[str], Path]) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=256, reproducible=True) as model:
        yield model.with_optimizer(1, 1)


@pytest.mark.contract("B2", "B9")
def test_forty_requests_on_one_event_loop_share_the_scheduler_without_a_thread_for_each(exact: llm.Model) -> None:
    expected = exact.generate(PROMPT, max_tokens=20, ignore_eos=True).output_hash()
    batching = exact.with_batching(4)
    threads: list[int] = []

    async def one(lease: llm.Model) -> str:
        for _ in range(4):
            response = await lease.agenerate(PROMPT, max_tokens=20, ignore_eos=True)
            threads.append(threading.active_count())
        return response.output_hash()

    async def main() -> list[str]:
        return await asyncio.gather(*(one(lease) for lease in batching.siblings(10)))

    before = threading.active_count()
    assert asyncio.run(main()) == [expected] * 10
    workers = 8  # the default executor tokenizes; it has no thread for a request that runs
    assert max(threads) <= before + workers


@pytest.mark.contract("Z5", "Z6")
@pytest.mark.parametrize("batched", [False, True])
def test_pieces_are_the_text_and_come_while_the_loop_does_other_things(exact: llm.Model, batched: bool) -> None:
    expected = exact.generate(PROMPT, max_tokens=60, ignore_eos=True)
    lease = exact.with_batching(2) if batched else exact
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        stream = lease.astream(PROMPT, max_tokens=60, ignore_eos=True)
        pieces = [piece async for piece in stream]
        response = await stream.response()
        ticking.cancel()
        assert "".join(pieces) == response.text() == expected.text()
        assert all(pieces)

    asyncio.run(main())
    assert ticks > 10


@pytest.mark.contract("Z6", "B12")
@pytest.mark.parametrize("batched", [False, True])
def test_cancelling_the_task_or_leaving_the_loop_cancels_the_request(exact: llm.Model, batched: bool) -> None:
    lease = exact.with_batching(1) if batched else exact

    async def main() -> None:
        for _ in range(10):
            task = asyncio.create_task(lease.agenerate(PROMPT, max_tokens=240, ignore_eos=True))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            stream = await eventually(lambda: lease.astream(PROMPT, max_tokens=240, ignore_eos=True))
            async with stream:
                async for _piece in stream:
                    break
            with pytest.raises(CancelledError):
                await stream.response()
        response = await (await eventually(lambda: lease.astream(PROMPT, max_tokens=4, ignore_eos=True))).response()
        assert response.token_ids() == exact.native_stateless().generate(PROMPT, max_tokens=4, ignore_eos=True).token_ids()

    asyncio.run(main())


async def eventually(start: Callable[[], llm.AsyncStream]) -> llm.AsyncStream:
    """A started request; the one before it may need a step to be gone."""
    while True:
        stream = start()
        try:
            await stream._started()
            return stream
        except BusyError:
            await asyncio.sleep(0.001)


@pytest.mark.contract("E3")
def test_errors_of_a_request_are_raised_where_it_is_awaited(exact: llm.Model) -> None:
    async def main() -> None:
        with pytest.raises(InvalidRequestError, match="top_p"):
            await exact.agenerate(PROMPT, top_p=5.0)
        with pytest.raises(InvalidRequestError, match="top_p"):
            async for _ in exact.astream(PROMPT, top_p=5.0):
                pass

    asyncio.run(main())


@pytest.mark.contract("Z1")
def test_event_loops_that_come_and_go_leave_no_request_behind(exact: llm.Model) -> None:
    batching = exact.with_batching(2)
    for _ in range(20):
        assert asyncio.run(batching.agenerate(PROMPT, max_tokens=5, ignore_eos=True)).timings()["output_tokens"] == 5
    assert batching._require().load()["n_running"] == 0
