"""Damaged, foreign and hostile files: a typed error that names the problem, and a process that lives on in silence."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from aner import AnerError, InvalidOutputError, InvalidRequestError, ModelLoadError, llm
from tests.support import gguf_files
from tests.support.call_in_child import call_in_child
from tests.support.malformed_gguf import Malformed, malformed_files

Synthetic = Callable[[str], Path]
SMALL = gguf_files.Size(n_embd=64, n_head=2, n_kv=1, n_ff=64)
N_DAMAGED = 120

#: The models whose damaged copies are tried: at least one of each kind of memory, graph and tokenizer that loads unprobed.
DAMAGED: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: gguf_files.llama(path, size=SMALL, chat_template=gguf_files.CHATML),
    "llama-bpe-q8": lambda path: gguf_files.llama(path, size=SMALL, vocabulary="bpe", quantization="q8_0"),
    "gemma3": lambda path: gguf_files.gemma3(path, size=SMALL),
    "mamba": gguf_files.mamba,
    "lfm2": gguf_files.lfm2,
}


@pytest.fixture(scope="module")
def malformed(tmp_path_factory: pytest.TempPathFactory) -> Malformed:
    return malformed_files(tmp_path_factory.mktemp("malformed") / "files")


def refusal_of(path: Path) -> tuple[str, str]:
    try:
        llm.load(path, context=64).close()
    except Exception as error:
        return type(error).__name__, str(error)
    return "loaded", ""


@pytest.mark.contract("L9", "E3")
def test_every_malformed_file_is_a_model_load_error_that_names_the_file_and_the_problem_each_time(
    malformed: Malformed, synthetic: Synthetic
) -> None:
    wrong = {}
    for name, (path, reason) in malformed.items():
        first, second = refusal_of(path), refusal_of(path)
        kind, message = first
        if kind != "ModelLoadError" or second != first or not re.search(reason, message) or str(path.parent) not in message:
            wrong[name] = (first, second, reason)
    assert wrong == {}
    assert len(malformed) > 100
    with llm.load(synthetic("llama"), context=64) as model:  # this process is as good as before
        assert len(model.generate("Hello", max_tokens=2, ignore_eos=True).token_ids()) == 2


@pytest.mark.contract("L9", "E2", "E4")
def test_a_process_that_tries_every_malformed_file_ends_by_itself_and_prints_nothing(malformed: Malformed) -> None:
    paths = sorted(str(path) for path, _ in malformed.values())
    kinds = call_in_child(refusals_of, paths).checked()
    assert kinds == ["ModelLoadError"] * len(paths)


def refusals_of(paths: list[str]) -> list[str]:
    return [refusal_of(Path(path))[0] for path in paths]


# -- random damage -----------------------------------------------------------------------------------------------------------


def damaged(content: bytes, n_header: int, choice: random.Random) -> bytes:
    """A copy cut short, with a piece missing, or with one to eight bytes changed, most of them in the header."""
    kind = choice.random()
    if kind < 0.1:
        return content[: choice.randrange(n_header if choice.random() < 0.7 else len(content))]
    data = bytearray(content)
    if kind < 0.15:
        at = choice.randrange(n_header)
        del data[at : at + choice.randrange(1, 64)]
        return bytes(data)
    for _ in range(choice.choice([1, 1, 1, 2, 3, 8])):
        at = choice.randrange(n_header if choice.random() < 0.95 else len(data))
        data[at] = choice.choice([0, 1, 255, choice.randrange(256), data[at] ^ (1 << choice.randrange(8))])
    return bytes(data)


def try_damaged(name: str, folder: str, n: int) -> dict[str, object]:
    """Load ``n`` damaged copies of a model and generate with each that loads; which copy is tried stands in ``folder``."""
    good = DAMAGED[name](Path(folder) / "good.gguf")
    content, n_header = good.read_bytes(), int(GGUFReader(good).data_offset)
    path, tried = Path(folder) / "damaged.gguf", Path(folder) / "tried"
    outcomes = {"loaded": 0, "refused": 0, "not numbers": 0, "not spelled": 0}
    unexpected = []
    for i in range(n):
        tried.write_text(str(i))
        path.write_bytes(damaged(content, n_header, random.Random(f"{name} {i}")))
        try:
            with llm.load(path, context=64) as model:
                for prompt in ([1, 5, 6, 7], "a b"):
                    assert len(model.generate(prompt, raw=True, max_tokens=2, ignore_eos=True).token_ids()) == 2
            outcomes["loaded"] += 1
        except ModelLoadError as error:
            outcomes["refused"] += 1
            if len(str(error)) < len(str(path)) + 20 or str(path) not in str(error):
                unexpected.append(f"{i}: {error}")
        except InvalidOutputError:
            outcomes["not numbers"] += 1
        except InvalidRequestError as error:
            outcomes["not spelled"] += 1
            if "cannot spell" not in str(error):
                unexpected.append(f"{i}: {error}")
        except AnerError as error:
            unexpected.append(f"{i}: {type(error).__name__}: {error}")
    return {**outcomes, "unexpected": unexpected}


@pytest.mark.contract("L9", "E2", "E4")
@pytest.mark.parametrize("name", DAMAGED)
def test_random_damage_never_ends_or_hangs_a_process_and_every_refusal_says_why(name: str, tmp_path: Path) -> None:
    child = call_in_child(try_damaged, name, tmp_path, N_DAMAGED, environment={"XDG_CACHE_HOME": str(tmp_path)})
    assert child.exit_code == 0, f"damaged copy {(tmp_path / 'tried').read_text()}: {child.stderr}"
    outcomes = child.checked()
    assert outcomes["unexpected"] == []
    assert outcomes["refused"] >= N_DAMAGED // 3
    assert outcomes["loaded"] >= N_DAMAGED // 20  # the damage reaches past the first checks


# -- well-formed, yet of no use ----------------------------------------------------------------------------------------------


@pytest.mark.contract("L9", "E2")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_numbers_are_invalid_output_at_the_request_and_the_handle_lives(
    tmp_path: Path, value: float
) -> None:
    path = gguf_files.llama(tmp_path / "m.gguf", size=SMALL)
    reader = GGUFReader(path, "r+")
    [norm] = [tensor for tensor in reader.tensors if tensor.name == "output_norm.weight"]
    norm.data[:] = np.float32(value)
    reader.data.flush()
    with llm.load(path, context=64) as model:
        for _ in range(2):
            with pytest.raises(InvalidOutputError, match=r"not .*number|NaN|finite"):
                model.generate([1, 2, 3], max_tokens=4)
        assert model.generate([1, 2, 3], max_tokens=0).token_ids() == []


@pytest.mark.contract("L9", "E3")
def test_a_vocabulary_that_cannot_spell_a_byte_refuses_the_texts_that_need_it_and_no_others(tmp_path: Path) -> None:
    def unspell_z(writer: GGUFWriter) -> None:
        tokens, types = (list(writer.kv_data[0][f"tokenizer.ggml.{key}"].value) for key in ("tokens", "token_type"))
        at = tokens.index(f"<0x{ord('z'):02X}>")
        tokens[at], types[at] = "unspelled", 1
        gguf_files.set_value(writer, "tokenizer.ggml.tokens", tokens)
        gguf_files.set_value(writer, "tokenizer.ggml.token_type", types)

    with llm.load(gguf_files.llama(tmp_path / "m.gguf", edit=unspell_z), context=64) as model:
        assert len(model.generate("abc", max_tokens=1, ignore_eos=True).token_ids()) == 1
        with pytest.raises(InvalidRequestError, match="no token for one of the bytes"):
            model.generate("abz", max_tokens=1)


@pytest.mark.contract("L9")
def test_a_token_marked_as_a_byte_must_say_which(tmp_path: Path) -> None:
    def misname(writer: GGUFWriter) -> None:
        tokens = writer.kv_data[0]["tokenizer.ggml.tokens"].value
        gguf_files.set_value(writer, "tokenizer.ggml.tokens", [*tokens[:40], "<0", *tokens[41:]])

    with pytest.raises(ModelLoadError, match="marks token 40 as a byte, and its text is '<0': it must be <0xNN>"):
        llm.load(gguf_files.llama(tmp_path / "m.gguf", edit=misname))
