"""Files that must be refused with a typed error, each with a pattern that its message must match.

Most of them end an engine that is given them unchecked, in an assertion, a division by zero or an endless loop.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gguf import GGUFValueType, GGUFWriter

from .gguf_files import Edit, Size, lfm2, llama, lora, mamba, remove_value, set_value, transformer

Malformed = dict[str, tuple[Path, str]]
_NAN = float("nan")
_HUGE = (1 << 62) + 3


def malformed_files(directory: Path) -> Malformed:
    """Write every malformed file and return, by name, its path and what its error says."""
    directory.mkdir(parents=True, exist_ok=True)
    good = llama(directory / "good.gguf", vocabulary="test", size=Size(n_embd=64, n_ff=64)).read_bytes()
    files: Malformed = {}
    for name, content, reason in [*_foreign(), *_cut(good), *_patched(good)]:
        path = directory / f"{name}.gguf"
        path.write_bytes(content)
        files[name] = (path, reason)
    for name, edit, reason in [*_settings(), *_vocabularies()]:
        files[name] = (llama(directory / f"{name}.gguf", vocabulary="test", size=Size(n_embd=64, n_ff=64), edit=edit), reason)
    files |= _architectures(directory) | _special(directory) | _splits(directory)
    return files


def _foreign() -> Iterator[tuple[str, bytes, str]]:
    yield "empty", b"", "is empty"
    yield "html", b"<!DOCTYPE html><html><body>404</body></html>", "HTML"
    yield "lfs_pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4\n", "git lfs pull"
    yield "zip", b"PK\x03\x04" + bytes(100), "ZIP"
    yield "safetensors", struct.pack("<Q", 90) + b'{"__metadata__":{}}' + bytes(80), "safetensors"
    yield "text", b"hello\n", r"starts with 'hell'"
    yield "old_format", b"tjgg" + bytes(100), "before GGUF"
    yield "magic_only", b"GGUF", "the version cannot lie"
    yield "zeros", bytes(4096), "not a GGUF file"


def _cut(good: bytes) -> Iterator[tuple[str, bytes, str]]:
    header = good.index(b"blk.1.ffn_down.weight") + 40
    yield "cut_after_counts", good[:24], "metadata pairs cannot lie"
    yield "cut_in_metadata", good[:900], "cut short"
    yield "header_only", good[: header + 32], "cut short"
    yield "cut_at_10_percent", good[: len(good) // 10], "cut short"
    yield "cut_at_50_percent", good[: len(good) // 2], "cut short"
    yield "cut_at_99_percent", good[: len(good) * 99 // 100], "cut short"
    yield "last_byte_missing", good[:-1], "cut short"


def _after(good: bytes, name: str) -> int:
    return good.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)


def _patched(good: bytes) -> Iterator[tuple[str, bytes, str]]:
    def patch(at: int, new: bytes) -> bytes:
        return good[:at] + new + good[at + len(new) :]

    def u32(at: int, value: int) -> bytes:
        return patch(at, struct.pack("<I", value))

    def u64(at: int, value: int) -> bytes:
        return patch(at, struct.pack("<Q", value))

    blocks = _after(good, "llama.block_count")
    tokens = _after(good, "tokenizer.ggml.tokens")
    query = _after(good, "blk.0.attn_q.weight")  # dimensions: count, two sizes; type; offset
    yield "version_1", u32(4, 1), "version 1"
    yield "version_99", u32(4, 99), "version 99"
    yield "big_endian", patch(4, struct.pack(">I", 3)), "big-endian"
    yield "huge_tensor_count", u64(8, _HUGE), "claims .* tensors"
    yield "huge_metadata_count", u64(16, _HUGE), "claims .* metadata"
    yield "negative_metadata_count", u64(16, (1 << 64) - 1), "claims .* metadata"
    yield "more_tensors_than_bytes", u64(8, 1 << 18), "cannot lie"
    yield "one_tensor_more", u64(8, struct.unpack_from("<Q", good, 8)[0] + 1), "tensor|cut short|name"
    yield "one_pair_less", u64(16, struct.unpack_from("<Q", good, 16)[0] - 1), "tensor|cut short|name|dimension"
    yield "flipped_type", u32(blocks, 4 ^ 0x80), "unknown type 132"
    yield "flipped_length", patch(blocks - 18, bytes([good[blocks - 18] ^ 0x80])), "a key"
    yield "huge_string", u64(tokens + 16, _HUGE), "cannot lie|more than|at most|beyond"
    yield "huge_array", u64(tokens + 8, _HUGE), "cannot lie|beyond"
    yield "array_of_arrays", u32(tokens + 4, 9), "array of arrays"
    yield "unknown_array_type", u32(tokens + 4, 13), "unknown type 13"
    yield "key_with_nul", good.replace(b"llama.block_count", b"llama.block\0count"), "unprintable"
    yield "key_twice", good.replace(b"tokenizer.ggml.eos_token_id", b"tokenizer.ggml.bos_token_id"), "bos_token_id' twice"
    yield "tensor_twice", good.replace(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight"), "attn_q.weight' twice"
    yield "no_dimensions", u32(query, 0), "0 dimensions"
    yield "five_dimensions", u32(query, 5), "5 dimensions"
    yield "zero_dimension", u64(query + 4, 0), "a dimension of 0"
    yield "negative_dimension", u64(query + 4, (1 << 64) - 64), "a dimension of -64"
    yield "overflowing_dimensions", u64(query + 12, 1 << 60), "a dimension of"
    yield "huge_tensor", u64(query + 12, 1 << 40), "cut short"
    yield "unknown_tensor_type", u32(query + 20, 43), "type 43"
    yield "removed_tensor_type", u32(query + 20, 4), "type 4"
    yield "row_no_multiple_of_block", u32(query + 20, 12), "blocks of 256"
    yield "overlapping_tensors", u64(query + 24, struct.unpack_from("<Q", good, query + 24)[0] - 32), "over the one before"
    yield "gap_between_tensors", u64(query + 24, struct.unpack_from("<Q", good, query + 24)[0] + 32), "after a gap"


def _set(key: str, value: Any, kind: GGUFValueType | None = None) -> Edit:
    return lambda writer: set_value(writer, key, value, kind)


def _all(*edits: Edit) -> Edit:
    def apply(writer: GGUFWriter) -> None:
        for edit in edits:
            edit(writer)

    return apply


def _without(key: str) -> Edit:
    return lambda writer: remove_value(writer, key)


def _settings() -> Iterator[tuple[str, Edit, str]]:
    a = "llama."
    yield "no_layers", _set(f"{a}block_count", 0), r"block_count = 0 .*1\.\.512"
    yield "too_many_layers", _set(f"{a}block_count", 9999), "block_count = 9999"
    yield "layers_missing", _without(f"{a}block_count"), "block_count is missing"
    yield "layers_as_text", _set(f"{a}block_count", "2"), r"block_count = '2' \(str\)"
    yield "layers_as_i32", _set(f"{a}block_count", 2, GGUFValueType.INT32), r"block_count = 2 \(i32\)"
    yield "no_context", _set(f"{a}context_length", 0), "context_length = 0"
    yield "no_width", _set(f"{a}embedding_length", 0), "embedding_length = 0"
    yield "other_width", _set(f"{a}embedding_length", 128), "token_embd.weight' is 64 x 320"
    yield "only_extra_layers", _set(f"{a}nextn_predict_layers", 2), "nextn_predict_layers"
    yield "experts_without_use", _set(f"{a}expert_count", 2), "at least one"
    yield "more_used_than_there", _all(_set(f"{a}expert_count", 2), _set(f"{a}expert_used_count", 5)), "at most all"
    yield "used_without_experts", _set(f"{a}expert_used_count", 1), "without experts"
    yield "too_many_experts", _set(f"{a}expert_count", 1025), r"expert_count = 1025"
    groups = _all(_set(f"{a}expert_count", 4), _set(f"{a}expert_used_count", 2), _set(f"{a}expert_group_count", 3))
    yield "uneven_groups", groups, "groups must be fewer"
    yield "unknown_rope_scaling", _set(f"{a}rope.scaling.type", "bogus"), "'bogus'.*'yarn'"
    yield "rope_scaling_as_number", _set(f"{a}rope.scaling.type", 1), r"rope.scaling.type = 1 \(u32\)"
    yield "no_heads", _set(f"{a}attention.head_count", 0), "head_count = 0"
    yield "heads_as_text", _set(f"{a}attention.head_count", "x"), r"head_count = 'x' \(str\)"
    yield "heads_missing", _without(f"{a}attention.head_count"), "head_count is missing"
    yield "kv_heads_do_not_divide", _set(f"{a}attention.head_count_kv", 3), "4 heads .* and 3 KV heads"
    yield "more_kv_heads_than_heads", _set(f"{a}attention.head_count_kv", 8), "4 heads .* and 8 KV heads"
    layers = _set(f"{a}attention.head_count_kv", [2, 4], GGUFValueType.UINT32)
    yield "kv_heads_differ_by_layer", layers, "all layers must have the same"
    yield "kv_heads_of_three_layers", _set(f"{a}attention.head_count_kv", [2, 2, 2]), "array of 3 i32"
    yield "values_unlike_keys", _set(f"{a}attention.value_length", 8), "of one size"
    yield "odd_rotation", _set(f"{a}rope.dimension_count", 15), "even"
    yield "rotation_of_half", _set(f"{a}rope.dimension_count", 8), "the whole head"
    yield "window_head_size", _set(f"{a}attention.key_length_swa", 32), "_swa"
    yield "huge_head", _set(f"{a}attention.key_length", (1 << 30) + 16), "key_length = 1073741840"
    yield "no_epsilon", _set(f"{a}attention.layer_norm_rms_epsilon", 0.0), "epsilon = 0"
    yield "nan_epsilon", _set(f"{a}attention.layer_norm_rms_epsilon", _NAN), "epsilon = nan"
    yield "negative_rope_base", _set(f"{a}rope.freq_base", -1.0), "freq_base = -1"
    yield "nan_rope_factor", _set(f"{a}rope.scaling.factor", _NAN), "factor = nan"
    yield "not_causal", _set(f"{a}attention.causal", False), "looks ahead"
    yield "small_alignment", _set("general.alignment", 8), "alignment = 8"
    yield "odd_alignment", _set("general.alignment", 48), "alignment = 48"
    yield "alignment_as_text", _set("general.alignment", "32"), r"alignment = '32' \(str\)"
    yield "architecture_missing", _without("general.architecture"), "general.architecture is missing"
    yield "architecture_as_number", _set("general.architecture", 7), r"general.architecture = 7 \(u32\)"
    yield "kind_as_number", _set("general.type", 7), r"general.type = 7 \(u32\)"
    yield "importance_matrix", _set("general.type", "imatrix"), "importance matrix"


def _vocabularies() -> Iterator[tuple[str, Edit, str]]:
    t = "tokenizer.ggml."
    names = ["<unk>", "<s>", "</s>", *(f"tok_{i}" for i in range(3, 320))]
    yield "token_twice", _set(f"{t}tokens", [*names[:-1], "tok_7"]), "'tok_7' twice"
    yield "token_twice_to_nul", _set(f"{t}tokens", [*names[:-2], "a\0b", "a\0c"]), "'a' twice"
    yield "token_named_as_empty", _set(f"{t}tokens", [*names[:-2], "", "[EMPTY_318]"]), "EMPTY_318.* twice"
    yield "long_token", _set(f"{t}tokens", [*names[:-1], "x" * 5000]), "5000 bytes"
    yield "tokens_missing", _without(f"{t}tokens"), "tokens is missing"
    yield "tokens_as_numbers", _set(f"{t}tokens", list(range(320))), "array of 320 i32"
    yield "other_vocabulary_size", _set("llama.vocab_size", 999), "vocab_size = 999"
    yield "too_few_scores", _set(f"{t}scores", [0.0] * 319), "scores is an array of 319"
    yield "types_as_reals", _set(f"{t}token_type", [1.0] * 320), "token_type is an array of 320 f32"
    yield "bos_outside", _set(f"{t}bos_token_id", 320), "bos_token_id = 320"
    yield "eos_as_i32", _set(f"{t}eos_token_id", 2, GGUFValueType.INT32), r"eos_token_id = 2 \(i32\)"
    yield "add_bos_as_number", _set(f"{t}add_bos_token", 1), r"add_bos_token = 1 \(u32\)"
    yield "no_vocabulary", _set(f"{t}model", "no_vocab"), "no vocabulary"
    yield "unknown_tokenizer", _set(f"{t}model", "bogus"), "'bogus' is not a tokenizer"
    yield "tokenizer_missing", _without(f"{t}model"), "tokenizer.ggml.model is missing"
    yield "merges_missing", _set(f"{t}model", "gpt2"), "merges is missing"
    gemma4 = _all(_set(f"{t}model", "gemma4"), _set(f"{t}merges", ["t o"]))
    no_bos = _all(gemma4, _without(f"{t}bos_token_id"))
    yield "bos_added_without_bos", no_bos, "bos_token_id is missing"
    no_eos = _all(gemma4, _without(f"{t}eos_token_id"), _set(f"{t}add_eos_token", True))
    yield "eos_added_without_eos", no_eos, "eos_token_id is missing"
    bytes_of_bert = _all(_set(f"{t}model", "bert"), _set(f"{t}token_type", [6] * 320))
    yield "bytes_in_bert", bytes_of_bert, "as a byte"
    rwkv = _all(_set(f"{t}model", "rwkv"), _set(f"{t}tokens", [*names[:-1], "\\n\\n"]))
    yield "rwkv_without_single_bytes", rwkv, "no token for the byte"


def _architectures(directory: Path) -> Malformed:
    refused = {"clip": "vision projector", "bert": "encoder", "t5": "encoder-decoder", "dream": "diffusion", "eagle3": "draft"}
    files: Malformed = {}
    for name, reason in refused.items():
        path = directory / f"architecture_{name}.gguf"
        files[path.stem] = (llama(path, edit=_set("general.architecture", name)), reason)

    def add(name: str, write: Callable[..., Path], edit: Edit, reason: str) -> None:
        files[name] = (write(directory / f"{name}.gguf", edit=edit), reason)

    add("gemma3_without_window_layer", _gemma3, _set("gemma3.attention.sliding_window_pattern", 1), "other than 1")
    never = _set("gemma3.attention.sliding_window_pattern", [False, False])
    add("gemma3_with_window_nowhere", _gemma3, never, "at least one")
    add("gemma3_huge_window", _gemma3, _set("gemma3.attention.sliding_window", 1 << 31), "sliding_window = 2147483648")
    add("gemma2_without_cap", _gemma2, _set("gemma2.final_logit_softcapping", 0.0), "above 0")
    add("gemma2_without_window", _gemma2, _set("gemma2.attention.sliding_window", 0), "above 0")
    add("mamba_inner_size", mamba, _set("mamba.ssm.inner_size", 64), "twice")
    add("mamba_convolution_of_one", mamba, _set("mamba.ssm.conv_kernel", 1), "conv_kernel = 1")
    add("lfm2_convolution_of_one", lfm2, _set("lfm2.shortconv.l_cache", 1), "l_cache = 1")
    add("lfm2_without_state", lfm2, _set("lfm2.attention.head_count_kv", 2), "hybrid")
    add("adapter", lora, lambda writer: None, "adapter")
    return files


def _gemma2(path: Path, edit: Edit) -> Path:
    return transformer(path, "gemma2", window=32, edit=edit)


def _gemma3(path: Path, edit: Edit) -> Path:
    return transformer(path, "gemma3", window=32, edit=edit)


def _special(directory: Path) -> Malformed:
    os.mkfifo(directory / "pipe.gguf")
    (directory / "directory.gguf").mkdir()
    return {
        "pipe": (directory / "pipe.gguf", "is a pipe"),
        "directory": (directory / "directory.gguf", "is a directory"),
        "device": (Path("/dev/zero"), "is a device"),
    }


def _splits(directory: Path) -> Malformed:
    def split(name: str) -> list[Path]:
        llama(directory / f"{name}.gguf", tensors_per_split=8)
        return [directory / f"{name}-0000{i}-of-00003.gguf" for i in (1, 2, 3)]

    whole, gap, typed, renamed = split("split"), split("split_gap"), split("split_typed"), split("split_renamed")
    gap[1].unlink()
    content = typed[1].read_bytes()
    at = _after(content, "split.no")
    typed[1].write_bytes(content[:at] + struct.pack("<I", int(GGUFValueType.INT16)) + content[at + 4 :])
    alone = renamed[0].rename(directory / "renamed.gguf")
    return {
        "second_split": (whole[1], r"is split 2 of 3: load the first one, '.*split-00001-of-00003.gguf'"),
        "missing_split": (gap[0], r"needs '.*split_gap-00002-of-00003.gguf' .* missing"),
        "split_number_of_wrong_type": (typed[0], r"split.no = 1 \(i16\)"),
        "renamed_split": (alone, r"must end in '-00001-of-00003.gguf'"),
    }
