"""Small GGUF files for the tests: a model of every architecture that aner covers, and a LoRA adapter.

The weights are random under a fixed seed, spread so that logits lie well apart; such models soon repeat themselves, which suits
tests of prompt lookup. Vocabularies: ``spm`` and ``bpe`` have a token for every byte and give back any text exactly; ``test``
hashes chunks of five bytes to tokens, for tests that need no text; ``none`` is a model without a vocabulary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

Edit = Callable[[GGUFWriter], None]
Quantization = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0"]
Vocabulary = Literal["spm", "bpe", "test", "none"]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
N_TEST_TOKENS = 320
_MERGES = ["t h", "th e", "i n", "a n", "an d", "\u0120 the"]
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6


@dataclass(frozen=True)
class Size:
    n_embd: int = 128
    n_head: int = 4
    n_kv: int = 2
    n_ff: int = 256
    n_layer: int = 2
    n_ctx: int = 4096

    @property
    def head(self) -> int:
        return self.n_embd // self.n_head


def set_value(writer: GGUFWriter, key: str, value: Any, kind: GGUFValueType | None = None) -> None:
    """Set a metadata value, in place of the one there; ``kind`` is its type (of each element, for a list)."""
    remove_value(writer, key)
    default = GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value)
    if default == GGUFValueType.ARRAY:
        writer.add_key_value(key, value, default, kind or GGUFValueType.get_type(value[0]))
    else:
        writer.add_key_value(key, value, kind or default)


def remove_value(writer: GGUFWriter, key: str) -> None:
    for shard in writer.kv_data:
        shard.pop(key, None)


def byte_letters() -> list[str]:
    """The letter that stands for each byte in a byte-level BPE vocabulary (GPT-2's rule)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


class _File:
    """One GGUF file in the making."""

    def __init__(
        self, path: Path, architecture: str, *, quantization: Quantization, seed: int, tensors_per_split: int = 0,
        hollow: bool = False,
    ) -> None:  # fmt: skip
        self.path = path
        self.hollow = hollow
        self.architecture = architecture
        self.writer = GGUFWriter(path, architecture, split_max_tensors=tensors_per_split)
        self.random = np.random.default_rng(seed)
        self.quantization = GGMLQuantizationType[quantization.upper()]

    def settings(self, **values: int | float | bool | list[int]) -> None:
        """Keys of the architecture; ``a__b`` stands for ``a.b``."""
        for key, value in values.items():
            set_value(self.writer, f"{self.architecture}.{key.replace('__', '.')}", value)

    def matrix(self, name: str, n_in: int, n_out: int, *, quantized: bool = True) -> None:
        kind = self.quantization if quantized else GGMLQuantizationType.F32
        if self.hollow:
            self._hollow(name, (n_out, n_in), kind)
            return
        values = (self.random.standard_normal((n_out, n_in)) * 0.25).astype(np.float32)
        if kind == GGMLQuantizationType.F32:
            self.writer.add_tensor(name, values)
        else:
            self.writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)

    def vector(self, name: str, n: int, value: float = 1.0) -> None:
        if self.hollow:
            self._hollow(name, (n,), GGMLQuantizationType.F32)
        else:
            self.writer.add_tensor(name, np.full(n, value, np.float32))

    def _hollow(self, name: str, shape: tuple[int, ...], kind: GGMLQuantizationType) -> None:
        stored = quants.quant_shape_to_byte_shape(shape, kind)
        self.writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), raw_dtype=kind)

    def vocabulary(self, kind: Vocabulary, chat_template: str | None) -> int:
        n_tokens = {"spm": self._spm, "bpe": self._bpe, "test": self._test, "none": self._none}[kind]()
        self.settings(vocab_size=n_tokens)
        if chat_template is not None:
            self.writer.add_chat_template(chat_template)
        return n_tokens

    def _tokens(self, model: str, tokens: Sequence[str], types: Sequence[int], *, bos: int, eos: int, add_bos: bool) -> int:
        self.writer.add_tokenizer_model(model)
        self.writer.add_token_list(list(tokens))
        self.writer.add_token_types(list(types))
        self.writer.add_bos_token_id(bos)
        self.writer.add_eos_token_id(eos)
        self.writer.add_add_bos_token(add_bos)
        return len(tokens)

    def _spm(self) -> int:
        letters = [f"<0x{byte:02X}>" for byte in range(256)]
        tokens = ["<unk>", "<s>", "</s>", *letters, "<|im_start|>", "<|im_end|>", "\u2581"]  # the last stands for a space
        types = [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * 256, _CONTROL, _CONTROL, _NORMAL]
        self.writer.add_token_scores([0.0] * len(tokens))
        self.writer.add_unk_token_id(0)
        self.writer.add_add_space_prefix(False)
        return self._tokens("llama", tokens, types, bos=1, eos=2, add_bos=True)

    def _bpe(self) -> int:
        merged = ["".join(merge.split()) for merge in _MERGES]
        tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), *merged]
        types = [*[_CONTROL] * 3, *[_NORMAL] * (len(tokens) - 3)]
        self.writer.add_tokenizer_pre("gpt-2")
        self.writer.add_token_merges(_MERGES)
        return self._tokens("gpt2", tokens, types, bos=0, eos=2, add_bos=False)

    def _test(self) -> int:
        tokens = ["<unk>", "<s>", "</s>", *(f"tok_{i}" for i in range(3, N_TEST_TOKENS))]
        types = [_UNKNOWN, _CONTROL, _CONTROL, *[_NORMAL] * (N_TEST_TOKENS - 3)]
        self.writer.add_token_scores([0.0] * N_TEST_TOKENS)
        return self._tokens("test", tokens, types, bos=1, eos=2, add_bos=False)

    def _none(self) -> int:
        self.writer.add_tokenizer_model("no_vocab")
        return N_TEST_TOKENS

    def write(self, edit: Edit | None = None) -> Path:
        if edit is not None:
            edit(self.writer)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        if self.hollow:
            self.writer.write_ti_data_to_file()
            self.writer.close()
            padded = [self.writer.ggml_pad(info.nbytes, 32) for info in self.writer.tensors[0].values()]
            os.truncate(self.path, self.writer.ggml_pad(self.path.stat().st_size, 32) + sum(padded))
            return self.path
        self.writer.write_tensors_to_file()
        self.writer.close()
        return self.path


def _base(file: _File, size: Size, *, attention: bool = True) -> None:
    file.settings(context_length=size.n_ctx, embedding_length=size.n_embd, block_count=size.n_layer)
    file.settings(feed_forward_length=size.n_ff, attention__layer_norm_rms_epsilon=1e-5)
    if attention:
        file.settings(attention__head_count=size.n_head, attention__head_count_kv=size.n_kv)
        file.settings(attention__key_length=size.head, attention__value_length=size.head, rope__dimension_count=size.head)


def _ends(file: _File, size: Size, n_tokens: int, *, tied: bool, output_norm: str = "output_norm.weight") -> None:
    file.matrix("token_embd.weight", size.n_embd, n_tokens, quantized=False)
    file.vector(output_norm, size.n_embd)
    if not tied:
        file.matrix("output.weight", size.n_embd, n_tokens)


def transformer(
    path: Path,
    architecture: Literal["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"],
    *,
    quantization: Quantization = "f32",
    vocabulary: Vocabulary = "spm",
    chat_template: str | None = None,
    tied: bool = False,
    size: Size | None = None,
    window: int = 0,
    window_pattern: int = 2,
    tensors_per_split: int = 0,
    seed: int = 1,
    hollow: bool = False,
    edit: Edit | None = None,
) -> Path:
    """Write a model with attention in every layer. ``window``: positions of sliding-window layers (gemma2, gemma3).

    ``hollow``: the tensors are a hole in the file, so that it may be larger than any disk; it loads, as zeros.
    """
    s = size or Size()
    file = _File(path, architecture, quantization=quantization, seed=seed, tensors_per_split=tensors_per_split, hollow=hollow)
    _base(file, s)
    if window:
        file.settings(attention__sliding_window=window, attention__sliding_window_pattern=window_pattern)
    n_tokens = file.vocabulary(vocabulary, chat_template)
    _ends(file, s, n_tokens, tied=tied or architecture in ("gemma2", "gemma3"))
    for i in range(s.n_layer):
        _transformer_layer(file, f"blk.{i}.", s)
    return file.write(edit)


def _transformer_layer(file: _File, layer: str, s: Size) -> None:
    architecture = file.architecture
    n_q, n_kv = s.head * s.n_head, s.head * s.n_kv
    for norm in ("attn_norm", "ffn_norm"):
        file.vector(f"{layer}{norm}.weight", s.n_embd)
    if architecture in ("gemma2", "gemma3"):
        for norm in ("post_attention_norm", "post_ffw_norm"):
            file.vector(f"{layer}{norm}.weight", s.n_embd)
    if architecture in ("qwen3", "gemma3"):
        for norm in ("attn_q_norm", "attn_k_norm"):
            file.vector(f"{layer}{norm}.weight", s.head)
    if architecture == "phi3":
        file.matrix(f"{layer}attn_qkv.weight", s.n_embd, n_q + 2 * n_kv)
        file.matrix(f"{layer}ffn_up.weight", s.n_embd, 2 * s.n_ff)
    else:
        for name, n_out in (("attn_q", n_q), ("attn_k", n_kv), ("attn_v", n_kv)):
            file.matrix(f"{layer}{name}.weight", s.n_embd, n_out)
            if architecture == "qwen2":
                file.vector(f"{layer}{name}.bias", n_out, 0.1)
        file.matrix(f"{layer}ffn_gate.weight", s.n_embd, s.n_ff)
        file.matrix(f"{layer}ffn_up.weight", s.n_embd, s.n_ff)
    file.matrix(f"{layer}attn_output.weight", n_q, s.n_embd)
    file.matrix(f"{layer}ffn_down.weight", s.n_ff, s.n_embd)


def llama(path: Path, **options: Any) -> Path:
    return transformer(path, "llama", **options)


def gemma3(path: Path, *, window: int = 32, **options: Any) -> Path:
    """Write a model with four layers, of which the first and the third see ``window`` positions."""
    return transformer(path, "gemma3", window=window, **{"size": Size(n_layer=4), **options})


def mamba(
    path: Path, *, vocabulary: Vocabulary = "spm", chat_template: str | None = None, seed: int = 3, edit: Edit | None = None
) -> Path:
    """Write a recurrent model: no layer attends."""
    s = Size(n_embd=64)
    n_inner, n_state, n_conv, n_rank = 2 * s.n_embd, 16, 4, 4
    file = _File(path, "mamba", quantization="f32", seed=seed)
    _base(file, s, attention=False)
    file.settings(attention__head_count=0, feed_forward_length=0)
    file.settings(ssm__conv_kernel=n_conv, ssm__inner_size=n_inner, ssm__state_size=n_state, ssm__time_step_rank=n_rank)
    _ends(file, s, file.vocabulary(vocabulary, chat_template), tied=False)
    for layer in (f"blk.{i}." for i in range(s.n_layer)):
        file.vector(f"{layer}attn_norm.weight", s.n_embd)
        file.matrix(f"{layer}ssm_in.weight", s.n_embd, 2 * n_inner)
        file.matrix(f"{layer}ssm_conv1d.weight", n_conv, n_inner)
        file.vector(f"{layer}ssm_conv1d.bias", n_inner, 0.0)
        file.matrix(f"{layer}ssm_x.weight", n_inner, n_rank + 2 * n_state)
        file.matrix(f"{layer}ssm_dt.weight", n_rank, n_inner)
        file.vector(f"{layer}ssm_dt.bias", n_inner, 0.1)
        decay = -np.abs(file.random.standard_normal((n_inner, n_state))).astype(np.float32)
        file.writer.add_tensor(f"{layer}ssm_a", decay)
        file.vector(f"{layer}ssm_d", n_inner)
        file.matrix(f"{layer}ssm_out.weight", n_inner, s.n_embd)
    return file.write(edit)


def lfm2(
    path: Path, *, vocabulary: Vocabulary = "spm", chat_template: str | None = None, seed: int = 4, edit: Edit | None = None
) -> Path:
    """Write a hybrid model: short convolutions with a state in the even layers, attention in the odd ones."""
    s, n_conv = Size(n_layer=4), 3
    file = _File(path, "lfm2", quantization="f32", seed=seed)
    _base(file, s)
    set_value(file.writer, "lfm2.attention.head_count_kv", [0, s.n_kv] * (s.n_layer // 2), GGUFValueType.INT32)
    file.settings(shortconv__l_cache=n_conv)
    _ends(file, s, file.vocabulary(vocabulary, chat_template), tied=False, output_norm="token_embd_norm.weight")
    for i in range(s.n_layer):
        layer = f"blk.{i}."
        for norm in ("attn_norm", "ffn_norm"):
            file.vector(f"{layer}{norm}.weight", s.n_embd)
        if i % 2 == 0:
            file.matrix(f"{layer}shortconv.conv.weight", n_conv, s.n_embd)
            file.matrix(f"{layer}shortconv.in_proj.weight", s.n_embd, 3 * s.n_embd)
            file.matrix(f"{layer}shortconv.out_proj.weight", s.n_embd, s.n_embd)
        else:
            for norm in ("attn_q_norm", "attn_k_norm"):
                file.vector(f"{layer}{norm}.weight", s.head)
            for name, n_out in (("q", s.n_embd), ("k", s.head * s.n_kv), ("v", s.head * s.n_kv), ("output", s.n_embd)):
                file.matrix(f"{layer}attn_{name}.weight", s.n_embd, n_out)
        for name, n_in, n_out in (("gate", s.n_embd, s.n_ff), ("up", s.n_embd, s.n_ff), ("down", s.n_ff, s.n_embd)):
            file.matrix(f"{layer}ffn_{name}.weight", n_in, n_out)
    return file.write(edit)


def lora(
    path: Path,
    *,
    architecture: str = "llama",
    size: Size | None = None,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 5,
    edit: Edit | None = None,
) -> Path:
    """Write a LoRA adapter for the queries and the down projections of a ``transformer`` of that size."""
    s = size or Size()
    file = _File(path, architecture, quantization="f32", seed=seed)
    file.writer.add_string("general.type", "adapter")
    file.writer.add_string("adapter.type", "lora")
    file.writer.add_float32("adapter.lora.alpha", alpha)
    for i in range(s.n_layer):
        for name, n_in, n_out in (("attn_q", s.n_embd, s.head * s.n_head), ("ffn_down", s.n_ff, s.n_embd)):
            file.matrix(f"blk.{i}.{name}.weight.lora_a", n_in, rank)
            file.matrix(f"blk.{i}.{name}.weight.lora_b", rank, n_out)
    return file.write(edit)
