"""The benchmark harness: the order of its blocks, its control, its exclusions, its records."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aner import measure
from aner.measure import CpuTimes, Harness, Sample, Side

# The harness


class Machine:
    """A probe for the harness: idle, except in the windows whose numbers are given."""

    def __init__(self, disturbed: Collection[int] = (), stolen: Collection[int] = ()) -> None:
        self._disturbed, self._stolen = disturbed, stolen
        self._calls = 0
        self._busy = self._theft = 0.0

    def __call__(self) -> CpuTimes:
        window, is_end = divmod(self._calls, 2)
        self._calls += 1
        if is_end and window in self._disturbed:
            self._busy += 1.0
        if is_end and window in self._stolen:
            self._theft += 1.0
        return CpuTimes(clock=float(self._calls), busy=self._busy, stolen=self._theft, own=0.0, cpus=2)


def harness(path: Path, probe: Callable[[], CpuTimes] | None = None, **options: Any) -> Harness:
    return Harness("TEST", path, settle_s=0, probe=probe or Machine(), **options)


def side(name: str, log: list[tuple[str, int]], values: Iterator[float]) -> Side:
    def run(seed: int) -> Sample:
        log.append((name, seed))
        return Sample({"speed": next(values)}, {"seed_seen": seed})

    return Side(name, run)


def blocks_of(path: Path) -> list[dict[str, Any]]:
    return [line for line in measure.read_records(path) if line["kind"] == "block"]


def test_pairs_are_interleaved_a_b_b_a_after_the_warm_up_and_each_pair_has_one_seed(tmp_path: Path) -> None:
    log: list[tuple[str, int]] = []
    with harness(tmp_path / "r.jsonl", seed=7) as run:
        run.compare("c", side("A", log, itertools.repeat(1.0)), side("B", log, itertools.repeat(1.0)), pairs=4, warm_ups=2)
    names = "".join(name for name, _ in log)
    assert names == "AABB" + ("ABBA" + "AAAA") * 2  # the control follows every block
    assert [seed for _, seed in log[4:12]] == [7, 7, 8, 8] * 2
    assert [seed for _, seed in log[12:]] == [9, 9, 10, 10] * 2


def test_a_linear_drift_of_the_machine_cancels_in_the_ratio(tmp_path: Path) -> None:
    drift = (math.exp(0.01 * i) for i in itertools.count())  # each run 1 % faster than the one before, whatever it is
    log: list[tuple[str, int]] = []
    with harness(tmp_path / "r.jsonl") as run:
        (result,) = run.compare("c", side("A", log, drift), side("B", log, drift), pairs=10)
    assert result.ratio == pytest.approx(1.0, abs=1e-9)
    assert result.verdict == "unresolved"


def test_ratio_control_and_raw_pairs_equal_what_the_sides_gave(tmp_path: Path) -> None:
    a = [3.0, 2.9, 3.1, 3.0, 2.8, 3.2, 3.05, 2.95, 3.0, 3.0]
    b = [2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.0, 2.0, 2.1, 1.9]
    draw = random.Random(1)
    control = [[3.0 * math.exp(draw.gauss(0, 0.01)) for _ in range(4)] for _ in range(5)]
    a_values = [9.9]  # the warm-up, dropped
    for block in range(5):
        a_values += [*a[2 * block : 2 * block + 2], *control[block]]
    log: list[tuple[str, int]] = []
    with harness(tmp_path / "r.jsonl") as run:
        (result,) = run.compare("c", side("A", log, iter(a_values)), side("B", log, iter([9.9, *b])), pairs=10)
    assert result.pairs == result.control_pairs == 10
    assert result.ratio == pytest.approx(statistics.geometric_mean(x / y for x, y in zip(a, b, strict=True)))
    assert result.control_ratio == pytest.approx(
        statistics.geometric_mean(ratio for x in control for ratio in (x[0] / x[1], x[3] / x[2]))
    )
    assert result.median_a == pytest.approx(statistics.median(a))
    assert result.verdict == "above"
    kept = [line for line in blocks_of(tmp_path / "r.jsonl") if line["role"] == "compare"]
    raw = [[sample["values"]["speed"] for sample in line["samples"]] for line in kept]
    assert [value for x in raw for value in (x[0], x[3])] == a
    assert [value for x in raw for value in (x[1], x[2])] == b
    assert all(line["order"] == ["A", "B", "B", "A"] for line in kept)


def test_a_difference_within_the_spread_of_the_control_is_not_claimed(tmp_path: Path) -> None:
    draw = random.Random(2)
    noisy = (math.exp(draw.gauss(0, 0.2)) for _ in itertools.count())
    slightly_faster = (1.02 * value for value in noisy)
    log: list[tuple[str, int]] = []
    with harness(tmp_path / "r.jsonl") as run:
        (result,) = run.compare("c", side("A", log, slightly_faster), side("B", log, noisy), pairs=10)
    assert result.control_spread > 1.02
    assert result.verdict == "unresolved"


def test_fewer_than_six_pairs_give_no_verdict_however_large_the_difference(tmp_path: Path) -> None:
    log: list[tuple[str, int]] = []
    with harness(tmp_path / "r.jsonl") as run:
        sides = (side("A", log, itertools.repeat(3.0)), side("B", log, itertools.repeat(1.0)))
        (few,) = run.compare("few", *sides, pairs=4)
        (enough,) = run.compare("enough", *sides, pairs=6)
    assert few.ratio == pytest.approx(3.0)
    assert few.verdict == "unresolved"
    assert enough.verdict == "above"


def test_a_second_comparison_can_take_the_control_of_its_first_side_from_the_same_run(tmp_path: Path) -> None:
    log: list[tuple[str, int]] = []
    with harness(tmp_path / "r.jsonl") as run:
        a, b, c = (side(name, log, itertools.repeat(1.0)) for name in "ABC")
        with pytest.raises(ValueError, match="no control of 'A'"):
            run.compare("early", a, b, reuse_control=True)
        (first,) = run.compare("first", a, b, pairs=6)
        log.clear()
        (second,) = run.compare("second", a, c, pairs=2, warm_ups=0, reuse_control=True)
    assert [name for name, _ in log] == ["A", "C", "C", "A"]
    assert first.control_pairs == second.control_pairs == 6


@pytest.mark.parametrize("kind", ["disturbed", "stolen"])
def test_a_disturbed_block_is_dropped_with_its_reason_and_repeated(tmp_path: Path, kind: str) -> None:
    log: list[tuple[str, int]] = []
    machine = Machine(**{kind: {2}})  # windows: block 0, its control, block 1
    a = itertools.chain([0.0], [2.0] * 6, [200.0, 200.0], itertools.repeat(2.0))
    with harness(tmp_path / "r.jsonl", machine) as run:
        (result,) = run.compare("c", side("A", log, a), side("B", log, itertools.repeat(1.0)), pairs=4)
    assert result.ratio == pytest.approx(2.0)  # the 200 stand in the record and not in the ratio
    assert result.pairs == 4
    dropped = [line for line in blocks_of(tmp_path / "r.jsonl") if not line["kept"]]
    assert [(line["role"], line["block"], line["attempt"]) for line in dropped] == [("compare", 1, 1)]
    assert ("stolen" if kind == "stolen" else "other processes") in dropped[0]["excluded_because"]
    assert dropped[0]["samples"][0]["values"] == {"speed": 200.0}
    assert measure.read_records(tmp_path / "r.jsonl")[-1]["excluded_blocks"] == 1


def test_a_machine_that_is_never_idle_gives_missing_figures_after_a_bounded_number_of_attempts(tmp_path: Path) -> None:
    log: list[tuple[str, int]] = []
    machine = Machine(disturbed=set(range(1000)))
    with harness(tmp_path / "r.jsonl", machine, max_attempts=2) as run:
        a, b = side("A", log, itertools.repeat(1.0)), side("B", log, itertools.repeat(1.0))
        assert run.compare("c", a, b, pairs=2, warm_ups=0) == []
    assert len(log) == 2 * 4 + 2 * 4  # block and control, two attempts each
    assert measure.read_records(tmp_path / "r.jsonl")[-1]["excluded_blocks"] == 4


def test_a_figure_that_one_side_did_not_measure_is_missing_and_not_zero(tmp_path: Path) -> None:
    a = Side("A", lambda seed: Sample({"speed": 2.0, "extra": 5.0}))
    b = Side("B", lambda seed: Sample({"speed": 1.0}))
    with harness(tmp_path / "r.jsonl") as run:
        speed, extra = run.compare("c", a, b, pairs=2)
        assert "-1" in run.table()
    assert speed.ratio == pytest.approx(2.0)
    assert (extra.figure, extra.pairs, extra.ratio, extra.low, extra.high, extra.median_b) == ("extra", 0, -1, -1, -1, -1)
    assert extra.verdict == "unresolved"


def test_a_budget_ends_the_comparison_with_the_pairs_made_so_far_and_says_so(tmp_path: Path) -> None:
    log: list[tuple[str, int]] = []
    with harness(tmp_path / "r.jsonl") as run:
        sides = (side("A", log, itertools.repeat(1.0)), side("B", log, itertools.repeat(1.0)))
        assert run.compare("c", *sides, pairs=10, budget_s=-1.0) == []
    notes = [line["note"] for line in measure.read_records(tmp_path / "r.jsonl") if line["kind"] == "note"]
    assert any("stopped after 0 blocks" in note for note in notes)


# Records


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(json_values, max_size=5))
def test_records_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, values: list[Any]) -> None:
    path = tmp_path_factory.mktemp("records") / "deep" / "r.jsonl"
    writer = measure.RecordWriter(path)
    writer.write("run", name="x")
    for value in values:
        writer.write("note", value=value)
    writer.write("summary")
    writer.complete()
    lines = measure.read_records(path)
    assert [line["value"] for line in lines[1:-1]] == values
    assert all(line["schema"] == measure.SCHEMA_VERSION for line in lines)


def test_a_record_without_its_schema_its_summary_or_a_known_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    line = {"schema": measure.SCHEMA_VERSION, "kind": "run"}
    for text, complaint in (
        (json.dumps(line), "does not begin"),
        (json.dumps({**line, "schema": measure.SCHEMA_VERSION + 1}), "r.jsonl:1 is not a record"),
        (json.dumps({**line, "kind": "other"}), "is not a record"),
        ("[]", "is not a record"),
        ("", "does not begin"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=complaint):
            measure.read_records(path)
    writer = measure.RecordWriter(tmp_path / "w.jsonl")
    with pytest.raises(ValueError, match="not a kind of record"):
        writer.write("other")
    writer.abandon()


def test_an_interrupted_run_leaves_the_previous_record_and_its_own_lines_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with harness(path):
        pass
    complete = path.read_text()

    def interrupted() -> None:
        with harness(path) as run:
            run.record("note", note="before the end")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == complete
    assert "before the end" in (tmp_path / "r.jsonl.partial").read_text()


def test_a_number_that_is_not_finite_is_an_error_instead_of_invalid_json(tmp_path: Path) -> None:
    writer = measure.RecordWriter(tmp_path / "r.jsonl")
    with pytest.raises(ValueError, match="JSON compliant"):
        writer.write("note", value=math.nan)
    writer.abandon()


def test_the_first_line_says_what_the_numbers_depend_on(tmp_path: Path) -> None:
    with harness(tmp_path / "r.jsonl", checkout=tmp_path, workload="512 in") as run:
        run.record("note", note="x")
    first = measure.read_records(tmp_path / "r.jsonl")[0]
    assert first["workload"] == "512 in"
    assert (first["name"], first["seed"], first["order"]) == ("TEST", 0, "ABBA")
    facts = first["provenance"]
    assert facts["git"] == {"commit": "unknown", "changed": "unknown"}  # tmp_path is no repository
    assert facts["machine"]["cpus_usable"] == len(measure.usable_cpus()) >= 1
    assert {"cpu", "caches", "cpu_quota", "memory_bytes", "kernel"} <= set(facts["machine"])
    assert {"version", "build", "engine_system_info"} == set(facts["aner"])
    state = measure.machine_state()
    assert len(state["load_average"]) == 3
    assert {"stolen_seconds", "memory_available_bytes", "rss_bytes", "peak_rss_bytes", "threads"} <= set(state)


def test_provenance_names_the_commit_and_whether_the_checkout_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "one")
    assert measure.provenance(tmp_path)["git"] == {"commit": git("rev-parse", "HEAD"), "changed": False}
    (tmp_path / "a").write_text("2")
    assert measure.provenance(tmp_path)["git"]["changed"] is True


def test_a_models_description_keeps_its_tensor_types_and_cuts_long_texts(tmp_path: Path) -> None:
    class Model:
        def fingerprint(self) -> str:
            return "f" * 64

        def device(self) -> str:
            return "CPU"

        def metadata(self) -> dict[str, Any]:
            return {
                "path": "/home/a/m.gguf",
                "tensor_types": {"Q4_1": 200, "F32": 61},
                "chat_template": "x" * 5000,
                "tokens": list(range(1000)),
            }

        def memory_summary(self) -> dict[str, Any]:
            return {"kv_bytes": 1}

        def load_summary(self) -> dict[str, Any]:
            return {"duration": 2}

    path = tmp_path / "m.gguf"
    path.write_bytes(b"abc")
    described = measure.describe_model(Model(), path)
    assert (described["file"], described["bytes"], described["sha256"]) == ("m.gguf", 3, "f" * 64)
    assert described["metadata"]["tensor_types"] == {"Q4_1": 200, "F32": 61}
    assert described["metadata"]["chat_template"].startswith("5000 characters")
    assert described["metadata"]["tokens"] == "1000 items"
    assert "/home" not in json.dumps(described)
    assert measure.sha256_of(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_names_offered_are_the_names_that_exist() -> None:
    assert sorted(measure.__all__) == list(dict.fromkeys(sorted(measure.__all__)))
    public = {name for name in vars(measure) if not name.startswith("_")}
    assert set(measure.__all__) == public
