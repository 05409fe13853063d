"""The llama architecture in a few lines of numpy, from the published equations: an oracle apart from the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ReferenceLlama:
    """A float32 llama GGUF, evaluated in double precision, all positions at once, with no cache."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._weights = {t.name: np.asarray(t.data, np.float64) for t in reader.tensors}
        self._n_layer = self._number(reader, "block_count")
        self._n_head = self._number(reader, "attention.head_count")
        self._n_kv = self._number(reader, "attention.head_count_kv")
        self._epsilon = self._number(reader, "attention.layer_norm_rms_epsilon")

    @staticmethod
    def _number(reader: GGUFReader, key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    def logits(self, tokens: list[int]) -> Floats:
        """Logits after the last of ``tokens``."""
        w = self._weights
        x = w["token_embd.weight"][tokens]
        for i in range(self._n_layer):
            x = x + self._attention(self._norm(x, w[f"blk.{i}.attn_norm.weight"]), f"blk.{i}.")
            h = self._norm(x, w[f"blk.{i}.ffn_norm.weight"])
            gate = h @ w[f"blk.{i}.ffn_gate.weight"].T
            up = h @ w[f"blk.{i}.ffn_up.weight"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"blk.{i}.ffn_down.weight"].T
        last = self._norm(x[-1:], w["output_norm.weight"])
        return np.asarray((last @ w["output.weight"].T)[0])

    def logprobs(self, tokens: list[int]) -> Floats:
        logits = self.logits(tokens)
        shifted = logits - logits.max()
        return np.asarray(shifted - np.log(np.exp(shifted).sum()))

    def greedy(self, tokens: list[int], n: int) -> list[int]:
        """The ``n`` most likely next tokens, one after the other."""
        history = list(tokens)
        for _ in range(n):
            history.append(int(self.logits(history).argmax()))
        return history[len(tokens) :]

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._epsilon) * weight

    def _attention(self, h: Floats, layer: str) -> Floats:
        n = len(h)
        q = self._rotated((h @ self._weights[f"{layer}attn_q.weight"].T).reshape(n, self._n_head, -1))
        k = self._rotated((h @ self._weights[f"{layer}attn_k.weight"].T).reshape(n, self._n_kv, -1))
        v = (h @ self._weights[f"{layer}attn_v.weight"].T).reshape(n, self._n_kv, -1)
        shared = self._n_head // self._n_kv  # query heads for each key head
        k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        scores = np.where(np.tril(np.ones((n, n), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)
        return np.asarray(out @ self._weights[f"{layer}attn_output.weight"].T)

    @staticmethod
    def _rotated(x: Floats) -> Floats:
        """Rotary embedding, neighbouring pairs (Su et al. 2021), base 10,000."""
        n, _, d = x.shape
        angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
        return out
