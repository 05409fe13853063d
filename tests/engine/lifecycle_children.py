"""What test_lifecycle.py runs in processes of its own. Imports little: these processes are started many times."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from aner import BusyError, CancelledError, ClosedError, llm

PROMPT = [1, 75, 104, 111, 111, 114]
ENDLESS: dict[str, Any] = {"max_tokens": 10**6, "ignore_eos": True}
_kept: list[Any] = []  # alive at exit


def load(path: str, context: int) -> llm.Model:
    """On one thread: quick also beside other work."""
    return llm.load(path, context=context).with_optimizer(1, 1)


def outcome_of(call: Callable[[], object]) -> str:
    try:
        return repr(call())
    except Exception as error:
        return type(error).__name__


# -- ends of a process -------------------------------------------------------------------------------------------------------


def exit_with_daemon_threads_generating(path: str) -> None:
    model = llm.load(path, context=4096)
    running = threading.Barrier(4)

    def work(lease: llm.Model) -> None:
        running.wait()
        while True:
            lease.generate([5] * 2000, **ENDLESS)

    for _ in range(3):
        threading.Thread(target=work, args=(model.native_stateless(),), daemon=True).start()
    running.wait()
    time.sleep(0.03)
    _kept.append(model)


def exit_with_a_load_in_a_thread(path: str) -> None:
    started = threading.Event()

    def work() -> None:
        while True:
            llm.load(path, progress=lambda phase, fraction: started.set())

    threading.Thread(target=work, daemon=True).start()
    started.wait()


def exit_with_everything_alive(path: str) -> None:
    model = llm.load(path, context=256)
    sibling, pooled = model.native_stateless(), model.with_context_pool(2)
    half_read = model.stream(PROMPT, **ENDLESS)
    next(half_read)
    looped = iter(sibling.stream(PROMPT, **ENDLESS))
    next(looped)
    unread = pooled.start(PROMPT, **ENDLESS)
    cycle: list[Any] = [half_read, looped, unread, model]
    cycle.append(cycle)
    _kept.extend([cycle, sibling, pooled])


def exit_by_system_exit_in_a_callback(path: str) -> None:
    model = llm.load(path, context=256)
    _kept.append(model)
    model.generate(PROMPT, on_text=lambda piece: sys.exit(0), **ENDLESS)


def exit_by_system_exit_in_a_progress_callback(path: str) -> None:
    llm.load(path, progress=lambda phase, fraction: sys.exit(0))


def exit_while_another_thread_reads_the_same_stream(path: str) -> None:
    stream = llm.load(path, context=4096).start(PROMPT, **ENDLESS)
    threading.Thread(target=stream.response, daemon=True).start()
    time.sleep(0.02)
    _kept.append(stream)


# -- interrupts --------------------------------------------------------------------------------------------------------------


def interrupted(call: Callable[[], object], seconds: float) -> str:
    """What ``call`` ends with when SIGINT comes after ``seconds``."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        call()
    except BaseException as error:
        return type(error).__name__
    finally:
        timer.join()
    return "ended by itself"


def interrupts(path: str) -> dict[str, Any]:
    model = load(path, context=16384)
    expected = model.generate(PROMPT, max_tokens=4, ignore_eos=True).token_ids()
    stream = model.start(PROMPT, max_tokens=16000, ignore_eos=True)
    calls: dict[str, Callable[[], object]] = {
        "generate": lambda: model.generate(PROMPT, **ENDLESS),
        "on_text": lambda: model.generate(PROMPT, on_text=lambda piece: None, **ENDLESS),
        "loop": lambda: "".join(model.stream(PROMPT, **ENDLESS)),
        "prefill": lambda: model.generate([5] * 16000, max_tokens=1),
        "prefill of a stream": lambda: next(model.stream([5] * 16000, max_tokens=1)),
    }
    ended = {"kept stream": interrupted(stream.response, 0.05)}
    ended["kept stream, again"] = outcome_of(stream.response)
    free = []
    for name, call in calls.items():
        ended[name] = interrupted(call, 0.05)
        free.append(outcome_of(lambda: model.generate(PROMPT, max_tokens=4, ignore_eos=True).token_ids()) == repr(expected))
    return {"ended": ended, "free": free}


def interrupts_at_any_moment(path: str) -> dict[str, Any]:
    """SIGINT at a few hundred moments of short requests; the lease must be free while each interrupt is still being handled."""
    model = load(path, context=256)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted_calls, stuck = 0, []
    for i in range(400):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0001 + i % 50 * 0.00004)
            while True:
                model.generate("Hi", max_tokens=2, ignore_eos=True)
        except KeyboardInterrupt:
            interrupted_calls += 1
            try:
                model.generate(PROMPT, max_tokens=1)
            except BusyError as error:
                stuck.append(str(error))
    return {"interrupted": interrupted_calls, "stuck": stuck}


# -- memory ------------------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ten_thousand_requests(path: str) -> list[int]:
    """Resident bytes after a warm-up of 200 requests and after each further 2,500."""
    model = load(path, context=32)
    seen = []
    for i in range(10_200):
        if i % 10 == 0:
            next(model.stream(PROMPT, max_tokens=2, ignore_eos=True))  # and drop it: its context is discarded
        elif i % 10 == 1:
            model.generate(PROMPT, max_tokens=2, temperature=1.0, logprobs=2, stop=["x", "yz"])
        else:
            model.generate("Hi", raw=True, max_tokens=1)
        if i >= 199 and (i - 199) % 2500 == 0:
            gc.collect()
            seen.append(resident_bytes())
    return seen


def fifty_cancelled_contexts(path: str) -> list[int]:
    """Resident bytes after 5 and after 55 requests whose context was discarded."""
    model = load(path, context=4096)
    seen = []
    for i in range(55):
        stream = model.start([5] * 600, **ENDLESS)
        next(stream)
        stream.cancel()
        if i in (4, 54):
            gc.collect()
            seen.append(resident_bytes())
    return seen


# -- closing -----------------------------------------------------------------------------------------------------------------


def closes_of_every_kind(path: str) -> list[str]:
    """Closes a lease at every moment of a request; says what surprised it."""
    wrong = []
    model = load(path, context=256)
    expected = model.generate(PROMPT, max_tokens=20, ignore_eos=True).text()
    expected_outcome = repr(model.generate(PROMPT, max_tokens=20, ignore_eos=True))

    lease = model.native_stateless()
    if lease.generate(PROMPT, max_tokens=20, ignore_eos=True, on_text=lambda piece: lease.close()).text() != expected:
        wrong.append("closing from the callback changed the request")
    for call in (lambda: lease.generate(PROMPT), lambda: lease.stream(PROMPT), lease.native_stateless, lease.device):
        if (said := outcome_of(call)) != ClosedError.__name__:
            wrong.append(f"a closed lease said {said}")
    lease.close()

    lease = model.native_stateless()
    stream = lease.start(PROMPT, max_tokens=20, ignore_eos=True)
    next(stream)
    lease.close()
    lease.close()
    if stream.response().text() != expected:
        wrong.append("closing in the middle of a stream changed it")

    for _ in range(20):
        lease = model.native_stateless()
        closer = threading.Thread(target=lease.close)
        closer.start()
        said = outcome_of(functools.partial(lease.generate, PROMPT, max_tokens=20, ignore_eos=True))
        if said not in (expected_outcome, ClosedError.__name__):
            wrong.append(f"closing from another thread gave {said}")
        closer.join()

    class InCycle:
        def __init__(self) -> None:
            self.lease = model.with_context_pool(1)
            self.stream = self.lease.start(PROMPT, **ENDLESS)
            self.me = self
            next(self.stream)

        def __del__(self) -> None:
            self.lease.close()
            self.stream.close()

    for _ in range(5):
        InCycle()
    gc.collect()
    source = load(path, context=256)
    derived = source.with_context_pool(1)
    stream = source.start(PROMPT, max_tokens=20, ignore_eos=True)
    source.close()
    del source
    gc.collect()
    if derived.generate(PROMPT, max_tokens=20, ignore_eos=True).text() != expected or "".join(stream) != expected:
        wrong.append("closing the source harmed a derived lease or a running request")
    with derived:
        pass
    if derived.supports("generate") or repr(derived) != "<Model closed>":
        wrong.append("a closed lease does not say so")
    try:
        stream = model.start(PROMPT, **ENDLESS)
        stream.cancel()
        model.close()
        stream.response()
    except CancelledError:
        pass
    return wrong
