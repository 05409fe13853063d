"""Admission to one model, and the generations that were admitted.

Purpose    As many requests as the model can run or queue are let in; the next is refused at once, before any work.
Design     A lane has ``n_slots`` places that run and MAX_WAITING that wait. A batching lease has a sibling for every place, and its
           scheduler does the waiting; any other has one for every slot, handed on in the order of asking. A turn holds a place
           from admission until the engine has let go of its last generation, however that ended.
Threads    Everything here belongs to the event loop; the engine's calls run elsewhere (``AsyncStream``).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from aner.api._settings import MAX_WAITING
from aner.errors import AnerError, BusyError, ClosedError, RequestTimeoutError
from aner.llm import AsyncStream, Model, Response, Stream

#: Starts a generation on a lease, with this many seconds to live; called in a thread.
Begin = Callable[[Any, float], Stream]


class Lane:
    """The places of one model."""

    def __init__(self, leases: Iterable[Any], n_slots: int, batched: bool) -> None:
        self._leases = deque(leases)
        self._queue: deque[asyncio.Future[Any]] = deque()
        self._settling: set[asyncio.Task[None]] = set()
        self.batched = batched
        self.n_slots = n_slots
        self.n_places = n_slots + MAX_WAITING
        self.turns: set[Turn] = set()
        self.token_seconds = 0.0  # of the last answers, smoothed; 0: not measured yet
        self.first_token_seconds = 0.0
        self.on_cancelled: Callable[[float], object] = lambda seconds: None
        self.on_response: Callable[[Response, float], object] = lambda response, waited: None
        self.closed = False

    @classmethod
    def of(cls, model: Model, workers: int) -> Lane:
        if model.supports("continuous_batching"):
            n_slots = model.profile().max_sequences
            return cls(model.siblings(n_slots + MAX_WAITING), n_slots, True)
        return cls(model.siblings(workers), workers, False)

    @property
    def n_waiting(self) -> int:
        return max(0, len(self.turns) - self.n_slots)

    def reserve(self, n: int, deadline: float) -> list[Turn]:
        """``n`` places, or BusyError at once."""
        if self.closed:
            raise ClosedError("the server is shutting down")
        if len(self.turns) + n > self.n_places:
            raise BusyError(f"{len(self.turns)} requests run or wait here, of at most {self.n_places}: try again in a moment")
        turns = [Turn(self, deadline) for _ in range(n)]
        self.turns.update(turns)
        return turns

    def retry_after(self) -> float:
        """Seconds until a place is likely to be free, from the measured time of a token."""
        left = [turn.seconds_left() for turn in self.turns]
        return min(60.0, max(1.0, min(left, default=1.0)))

    def observe(self, response: Response) -> None:
        rate, timings = response.tokens_per_second(), response.timings()
        if rate:
            self.token_seconds = 1 / rate if not self.token_seconds else 0.8 * self.token_seconds + 0.2 / rate
        if timings["first_token_duration"] > 0:
            seconds = timings["first_token_duration"] / 1e9
            self.first_token_seconds = 0.8 * self.first_token_seconds + 0.2 * seconds if self.first_token_seconds else seconds

    def close(self) -> None:
        """Refuse what comes, cancel what is there."""
        self.closed = True
        for turn in [*self.turns]:
            turn.cancel(ClosedError("the server is shutting down"))

    def release(self) -> None:
        """Give up the leases; of a running turn, when it ends."""
        for lease in self._leases:
            if isinstance(lease, Model):
                lease.close()
        self._leases.clear()

    # -- for turns -----------------------------------------------------------------------------------------------------------

    async def lease(self, turn: Turn) -> Any:
        if self._leases:
            return self._leases.popleft()
        future = turn.waiting = asyncio.get_running_loop().create_future()
        self._queue.append(future)
        try:
            await asyncio.wait({future}, timeout=max(0.0, turn.deadline - time.monotonic()))
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(future.result())
            raise
        finally:
            turn.waiting = None
            if not future.done():
                future.cancel()
        if future.cancelled():
            raise RequestTimeoutError("the request waited for its turn until its time ran out")
        return future.result()

    def give_back(self, lease: Any) -> None:
        while self._queue:
            future = self._queue.popleft()
            if not future.done():
                future.set_result(lease)
                return
        if self.closed and isinstance(lease, Model):
            lease.close()
        else:
            self._leases.append(lease)

    def settle(self, work: Any) -> None:
        """Let a turn end in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)


class Turn:
    """One place of a lane, and the generations that run on it, one after the other."""

    def __init__(self, lane: Lane, deadline: float) -> None:
        self._lane = lane
        self._lease: Any = None
        self._stream: AsyncStream | None = None
        self._running: Stream | None = None
        self._error: AnerError | None = None
        self._cancelled_at = 0.0
        self._n_pieces = 0
        self._observed = False
        self._ended = False
        self.deadline = deadline  # of time.monotonic()
        self.waiting: asyncio.Future[Any] | None = None
        self.max_tokens = 0
        self.reserved_at = time.monotonic()
        self.wait_seconds = 0.0  # for the lease

    def seconds_left(self) -> float:
        lane = self._lane
        first = 0.0 if self._n_pieces else lane.first_token_seconds
        return first + max(0, self.max_tokens - self._n_pieces) * lane.token_seconds

    async def start(self, begin: Begin) -> None:
        """Begin a generation; raises what the engine refuses it with."""
        self._check()
        if self._lease is None:
            self._lease = await self._lane.lease(self)
            self.wait_seconds = time.monotonic() - self.reserved_at
            self._check()
        lease, deadline = self._lease, self.deadline
        self._running, self._n_pieces, self._observed = None, 0, False
        self._stream = AsyncStream(lambda: begin(lease, max(0.001, deadline - time.monotonic())), self._lane.batched)
        self._running = await self._stream._started()
        if self._error is not None:
            self._stream.cancel()

    async def piece(self) -> str:
        """The next piece of text; empty at the end."""
        assert self._stream is not None
        assert self._running is not None
        try:
            text = await self._stream._advance(self._running)
        except AnerError as error:
            raise self._error or error from None
        self._n_pieces += 1
        return text

    async def response(self) -> Response:
        """The result, when all pieces were taken or none is wanted."""
        assert self._stream is not None
        try:
            response = await self._stream.response()
        except AnerError as error:
            raise self._error or error from None
        if not self._observed:
            self._observed = True
            self._lane.observe(response)
            self._lane.on_response(response, self.wait_seconds)
        return response

    def cancel(self, error: AnerError) -> None:
        """End it within a step; whoever waits for it gets ``error``."""
        if self._error is not None or self._ended:
            return
        self._error = error
        self._cancelled_at = time.monotonic()
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(error)
        if self._stream is not None:
            self._stream.cancel()

    def end(self) -> None:
        """Give the place back as soon as the engine is done with it. Idempotent; always called."""
        if self._ended:
            return
        self._ended = True
        running = self._running
        if running is not None and running._generation is not None:
            self._cancelled_at = self._cancelled_at or time.monotonic()
            running.cancel()
            self._lane.settle(self._settle(running))
        else:
            self._free()

    async def _settle(self, running: Stream) -> None:
        assert self._stream is not None
        try:
            while running._generation is not None:
                try:
                    await self._stream._advance(running)
                except BusyError:
                    await asyncio.sleep(0.002)  # an abandoned read of it ends its step in a thread
        except AnerError:
            pass
        finally:
            self._free()

    def _free(self) -> None:
        self._lane.turns.discard(self)
        if self._cancelled_at:
            self._lane.on_cancelled(time.monotonic() - self._cancelled_at)
        if self._lease is not None:
            self._lane.give_back(self._lease)
            self._lease = None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
