"""Continuous batching on the engine: exact answers in any mix, bounded waiting, and callers who disappear."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aner import (
    AnerError,
    BusyError,
    CancelledError,
    ConfigurationError,
    ReentrantRequestError,
    RequestTimeoutError,
    UnsupportedCombinationError,
    UnsupportedOperationError,
    llm,
)
from aner.llm import OptimizerProfile
from tests.support.byte_vocabulary import ids_of

PROMPT = [1, *ids_of("Hello")]
Synthetic = Callable[[str], Path]


@pytest.fixture(scope="module")
def exact(synthetic: Synthetic) -> Iterator[llm.Model]:
    with llm.load(synthetic("llama"), context=256, reproducible=True) as model:
        yield model


@pytest.fixture(scope="module")
def serving(exact: llm.Model) -> Iterator[llm.Model]:
    with exact.with_optimizer(2, 2, 64, 64).with_batching(4) as batching:
        yield batching


def a_request(chance: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": chance.randint(1, 40), "ignore_eos": chance.random() < 0.5}
    if chance.random() < 0.6:
        options |= {"temperature": chance.choice([0.5, 1.0, 3.0]), "seed": chance.randrange(2**63)}
        options |= chance.choice([{}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05}, {"repeat_penalty": 1.3}])
    if chance.random() < 0.2:
        options["stop"] = [chr(chance.randint(97, 122))]
    prompt = [1, *(chance.randint(5, 250) for _ in range(chance.randint(1, 150)))]
    return {"prompt": prompt, **options}


def ask(lease: llm.Model, request: dict[str, Any]) -> llm.Response:
    """The answer, however often the scheduler is busy."""
    while True:
        try:
            return lease.generate(**request)
        except BusyError:
            time.sleep(0.001)


@pytest.mark.contract("B2", "B11", "V2", "L12")
@pytest.mark.parametrize("name", ["llama", "llama-q8", "gemma3", "mamba", "lfm2"])
def test_any_mix_gives_the_tokens_of_each_request_alone(synthetic: Synthetic, name: str) -> None:
    chance = random.Random(f"mix {name}")
    with llm.load(synthetic(name), context=256, reproducible=True) as model:
        requests = [a_request(chance) for _ in range(60)]
        alone = [model.generate(**request).output_hash() for request in requests]
        for slots, batch_tokens, target in ((2, 8, 0), (4, 64, 0), (5, 256, 5)):
            threads = 2 if name == "llama" else 1
            batching = model.with_optimizer(threads, threads, batch_tokens, min(64, batch_tokens)).with_batching(
                slots, step_target_ms=target
            )
            siblings = batching.siblings(8)
            jobs = [chance.sample(range(len(requests)), 6) for _ in range(34)]
            free = list(siblings)
            lock = threading.Lock()

            def run(job: list[int], free: list[llm.Model] = free, lock: threading.Lock = lock) -> list[tuple[int, str]]:
                with lock:
                    lease = free.pop()
                try:
                    return [(i, ask(lease, requests[i]).output_hash()) for i in job]
                finally:
                    with lock:
                        free.append(lease)

            with ThreadPoolExecutor(8) as callers:
                for answers in callers.map(run, jobs):
                    assert all(found == alone[i] for i, found in answers)


@pytest.mark.contract("B2", "T1", "T2", "T7")
def test_timings_tell_the_batch_that_a_request_was_part_of(serving: llm.Model) -> None:
    streams = [lease.start(PROMPT, max_tokens=30, ignore_eos=True) for lease in serving.siblings(4)]
    timings = [stream.response().timings() for stream in streams]
    for t in timings:
        assert t["batch_max_sequences"] == 4
        assert 1 <= t["batch_peak_sequences"] <= 4
        assert t["scheduler_steps"] >= 30
        assert t["batch_decoded_tokens"] >= 30
        assert t["context_pool_reused"] == t["prefix_cache_hit"] == t["speculative_proposed_tokens"] == -1
        assert t["cached_input_tokens"] == 0
        assert 0 <= t["queue_duration"] <= t["first_token_duration"] <= t["total_duration"]
        assert t["context_clear_duration"] >= 0
    assert max(t["batch_peak_sequences"] for t in timings) > 1


@pytest.mark.contract("B1")
def test_both_forms_make_the_same_lease_and_wrong_settings_are_refused(exact: llm.Model) -> None:
    for lease in (exact.with_batching(2), llm.with_batching(exact, 2), exact.with_optimizer(1, 1, 2, 2).with_batching(2)):
        assert lease.profile().max_sequences == 2
        assert lease.profile().step_target_ms == 250
        assert lease.generate(PROMPT, max_tokens=3).token_ids() == exact.generate(PROMPT, max_tokens=3).token_ids()
    for wrong in (0, -1, 257, "2", 2.0, True, None):
        with pytest.raises(ConfigurationError, match="max_sequences"):
            exact.with_batching(wrong)  # type: ignore[arg-type]
    for target in (-1, 60_001, "5", None, float("nan"), True):
        with pytest.raises(ConfigurationError, match="step_target_ms"):
            exact.with_batching(2, step_target_ms=target)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="batch_tokens is 3 and max_sequences is 4"):
        exact.with_optimizer(1, 1, 3, 3).with_batching(4)
    for profile in (OptimizerProfile(prefix_cache_entries=1), OptimizerProfile(speculative_tokens=2)):
        with pytest.raises(UnsupportedCombinationError, match="prefix_cache_entries or speculative_tokens"):
            exact.with_optimizer(profile).with_batching(2)


@pytest.mark.contract("B10", "T5")
def test_a_batching_lease_refuses_every_builder_and_says_what_it_supports(serving: llm.Model, synthetic: Synthetic) -> None:
    for build in (
        lambda: serving.with_optimizer(), lambda: serving.with_context_pool(1), lambda: serving.with_adapter(synthetic("llama")),
        lambda: serving.with_batching(2), lambda: serving.session(),
    ):  # fmt: skip
        with pytest.raises(UnsupportedOperationError, match="batching lease"):
            build()
    supported = {name for name in llm._model.OPERATIONS if serving.supports(name)}
    assert supported == {"generate", "stream", "chat", "continuous_batching"}


@pytest.mark.contract("B9")
def test_one_lease_admits_one_caller_and_siblings_more(serving: llm.Model) -> None:
    stream = serving.start(PROMPT, max_tokens=50, ignore_eos=True)
    with pytest.raises(BusyError, match="native_stateless"):
        serving.generate(PROMPT, max_tokens=1)
    serving.native_stateless().generate(PROMPT, max_tokens=1)
    stream.cancel()
    with pytest.raises(CancelledError):
        stream.response()
    serving.generate(PROMPT, max_tokens=1)


@pytest.mark.contract("B5")
def test_all_slots_and_eight_waiters_are_accepted_and_the_next_is_refused_within_a_millisecond(exact: llm.Model) -> None:
    batching = exact.with_optimizer(1, 1).with_batching(2)
    streams = [lease.start(PROMPT, max_tokens=200, ignore_eos=True) for lease in batching.siblings(10)]
    refused = []
    for lease in batching.siblings(20):
        before = time.perf_counter()
        with pytest.raises(BusyError, match="all 2 slots are taken and 8 requests wait"):
            lease.start(PROMPT, max_tokens=2)
        refused.append(time.perf_counter() - before)
    assert sorted(refused)[len(refused) // 2] < 0.001
    expected = exact.generate(PROMPT, max_tokens=200, ignore_eos=True).output_hash()
    assert {stream.response().output_hash() for stream in streams} == {expected}


@pytest.mark.contract("B6", "O9")
def test_closing_every_lease_leaves_accepted_requests_alone(synthetic: Synthetic) -> None:
    model = llm.load(synthetic("llama"), context=256, reproducible=True)
    expected = model.generate(PROMPT, max_tokens=40, ignore_eos=True).output_hash()
    batching = model.with_batching(2)
    siblings = batching.siblings(5)
    streams = [lease.start(PROMPT, max_tokens=40, ignore_eos=True) for lease in siblings]
    for lease in (model, batching, *siblings):
        lease.close()
    assert [stream.response().output_hash() for stream in streams] == [expected] * 5


@pytest.mark.contract("B7")
def test_a_slow_reader_stops_itself_alone_and_misses_nothing(exact: llm.Model) -> None:
    with exact.with_optimizer(1, 1).with_batching(2) as batching:
        slow, quick = batching.siblings(2)
        stream = slow.start(PROMPT, max_tokens=200, ignore_eos=True)
        for _ in range(5):
            quick.generate(PROMPT, max_tokens=60, ignore_eos=True)
        assert "".join(stream) == exact.generate(PROMPT, max_tokens=200, ignore_eos=True).text()
        unread = quick.start(PROMPT, max_tokens=240, ignore_eos=True, timeout=0.2)
        time.sleep(0.4)
        with pytest.raises(RequestTimeoutError):
            unread.response()


@pytest.mark.contract("B8")
def test_a_request_from_a_callback_of_the_same_scheduler_is_refused_at_once(exact: llm.Model) -> None:
    with exact.with_batching(2) as batching:
        other = batching.native_stateless()
        seen: list[str] = []

        def callback(text: str) -> None:
            with pytest.raises(ReentrantRequestError, match="callback"):
                other.generate(PROMPT, max_tokens=1)
            seen.append(text)

        batching.generate(PROMPT, max_tokens=5, ignore_eos=True, on_text=callback)
        assert seen
        other.generate(PROMPT, max_tokens=1)
        exact.generate(PROMPT, max_tokens=3, on_text=lambda _: other.generate(PROMPT, max_tokens=1))  # another one's callback


@pytest.mark.contract("B8")
def test_waiting_for_slots_that_this_thread_holds_half_read_is_an_error_and_not_a_deadlock(exact: llm.Model) -> None:
    with exact.with_optimizer(1, 1).with_batching(2) as batching:
        first, second, third = batching.siblings(3)
        streams = [lease.start(PROMPT, max_tokens=240, ignore_eos=True) for lease in (first, second)]
        for stream in streams:
            next(stream)
        with pytest.raises(ReentrantRequestError, match="read or close one of them first"):
            third.generate(PROMPT, max_tokens=3)
        expected = exact.generate(PROMPT, max_tokens=240, ignore_eos=True).output_hash()
        assert [stream.response().output_hash() for stream in streams] == [expected, expected]
        third.generate(PROMPT, max_tokens=3)


@pytest.mark.contract("B12", "Z6")
def test_cancel_and_resubmit_five_hundred_times_leaves_every_slot_free(exact: llm.Model) -> None:
    chance = random.Random(9)
    expected = exact.generate(PROMPT, max_tokens=30, ignore_eos=True).output_hash()
    with exact.with_optimizer(1, 1).with_batching(3) as batching:
        siblings = batching.siblings(6)
        neighbour = batching.native_stateless()
        for round_number in range(84):
            steady = neighbour.start(PROMPT, max_tokens=30, ignore_eos=True)
            streams = [lease.start([1, *([9] * chance.randint(1, 200))], max_tokens=40, ignore_eos=True) for lease in siblings]
            for stream in streams:
                if round_number % 2 and stream is streams[0]:
                    next(stream)
                stream.cancel()
                with pytest.raises(CancelledError):
                    stream.response()
            assert steady.response().output_hash() == expected
        assert batching._require().load()["n_waiting"] == 0
        for lease in siblings[:3]:
            assert lease.generate(PROMPT, max_tokens=30, ignore_eos=True).output_hash() == expected


@pytest.mark.contract("B12", "E3")
def test_requests_that_fail_harm_nobody(exact: llm.Model) -> None:
    expected = exact.generate(PROMPT, max_tokens=60, ignore_eos=True).output_hash()
    with exact.with_optimizer(1, 1).with_batching(2) as batching:
        steady, failing = batching.siblings(2)
        stream = steady.start(PROMPT, max_tokens=60, ignore_eos=True)
        with pytest.raises(RequestTimeoutError):
            failing.generate(PROMPT, max_tokens=200, ignore_eos=True, timeout=1e-4)
        for wrong in ({"max_tokens": -1}, {"top_p": 3.0}, {"stop": [""]}):
            with pytest.raises(AnerError):
                failing.generate(PROMPT, **wrong)
        with pytest.raises(ValueError, match="stopped"):
            failing.generate(PROMPT, max_tokens=20, ignore_eos=True, on_text=_raise)
        assert stream.response().output_hash() == expected


def _raise(_: str) -> None:
    raise ValueError("stopped")


@pytest.mark.contract("M2")
def test_the_memory_summary_covers_the_whole_shared_context(exact: llm.Model) -> None:
    one = exact.memory_summary()
    with exact.with_batching(4) as batching:
        all_four = batching.memory_summary()
    assert (one["sequences_per_context"], all_four["sequences_per_context"]) == (1, 4)
    assert all_four["kv_bytes_per_context"] == 4 * one["kv_bytes_per_context"]
    assert all_four["output_rows_bytes_per_context"] > one["output_rows_bytes_per_context"]
    assert all_four["retained_contexts"] == 0


@pytest.mark.real_model
@pytest.mark.contract("B11", "V2")
def test_mixed_chats_on_the_real_model_are_those_of_each_alone(demo_model_path: Path) -> None:
    questions = [
        "Name a colour.",
        "Count to ten.",
        "Why is the sky blue? Explain it to a child.",
        "Say hi.",
        "List five animals.",
    ]
    with llm.load(demo_model_path, context=512, reproducible=True) as model:
        alone = [model.generate(question, max_tokens=24).output_hash() for question in questions]
        batching = model.with_batching(3)
        with ThreadPoolExecutor(len(questions)) as callers:
            answers = callers.map(
                lambda pair: pair[0].generate(pair[1], max_tokens=24).output_hash(),
                zip(batching.siblings(len(questions)), questions, strict=True),
            )
            assert list(answers) == alone


@pytest.mark.contract("B3")
def test_a_decoding_sequence_has_a_token_of_every_step_while_a_long_prompt_is_taken_in_bounded_pieces(
    synthetic: Synthetic,
) -> None:
    with llm.load(synthetic("llama"), context=2048, reproducible=True) as model:
        running, late = model.with_optimizer(1, 1, 16, 16).with_batching(2, step_target_ms=0).siblings(2)
        stream = running.start(PROMPT, max_tokens=1500, ignore_eos=True)
        next(stream)
        with ThreadPoolExecutor(1) as reader:
            rest = reader.submit(stream.response)
            timings = late.generate([1, *([9] * 149)], max_tokens=1).timings()
            assert not rest.done()
            rest.result()
    assert timings["scheduler_steps"] == 10  # 150 rows, of which a step of 16 holds 15 beside the decoding one
    assert timings["batch_decoded_tokens"] == timings["scheduler_steps"] + 1  # the other's in each of them, and its own


@pytest.mark.contract("B4")
def test_a_freed_slot_serves_late_requests_before_a_longer_one_has_finished(synthetic: Synthetic) -> None:
    with llm.load(synthetic("llama"), context=2048, reproducible=True) as model:
        expected = model.generate(PROMPT, max_tokens=4, ignore_eos=True).output_hash()
        longer, *late = model.with_optimizer(1, 1).with_batching(2).siblings(5)
        with ThreadPoolExecutor(5) as callers:
            whole = callers.submit(longer.generate, PROMPT, max_tokens=1500, ignore_eos=True)
            short = [callers.submit(lease.generate, PROMPT, max_tokens=4, ignore_eos=True) for lease in late]  # for one slot
            assert [one.result().output_hash() for one in short] == [expected] * 4
            assert not whole.done()
            assert whole.result().timings()["output_tokens"] == 1500
