"""Session snapshots: a file with a conversation, its tokens and its KV, tied to the model, adapters and settings that made it.

Layout: a line of magic, a line of JSON (identity, history, lengths), the token ids as little-endian 32-bit integers, the KV bytes,
and the SHA-256 of everything before. The whole file is checked before any of it reaches a context. The digest finds damage, not
malice: restore only files from where you would take a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import aner_native

from aner.errors import SnapshotError

MAGIC = b"aner session snapshot 1\n"
_MAX_HEADER = 64 << 20


def identity_of(lease: aner_native.NativeLease, session: aner_native.NativeSession) -> dict[str, Any]:
    """What must be equal for KV bytes to mean the same: weights, adapters, layout, engine."""
    info, build = lease.info(), aner_native.build_info()
    return {
        "model": info["fingerprint"],
        "adapters": [[one["fingerprint"], one["scale"]] for one in lease.adapters()],
        "context": info["context"],
        "kv_cache_type": info["kv_cache_type"],
        "flash_attention": session.flash_attention(),
        "reproducible": info["reproducible"],
        "engine": f"{build['engine_version']}-{build['engine_commit']}-{build['engine_origin']}",
    }


def write(path: Path, identity: dict[str, Any], history: list[dict[str, Any]], tokens: list[int], memory: bytes) -> None:
    """Write the file whole or not at all. OSError as the system gives it."""
    header = {"identity": identity, "history": history, "tokens": len(tokens), "memory": len(memory)}
    parts = [MAGIC, json.dumps(header).encode() + b"\n", struct.pack(f"<{len(tokens)}i", *tokens), memory]
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            for part in parts:
                digest.update(part)
                file.write(part)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, path)


def read(path: Path, identity: dict[str, Any]) -> tuple[list[dict[str, Any]], list[int], bytes]:
    """History, tokens and KV bytes of a snapshot that is whole and was made by an equal session. SnapshotError otherwise."""
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        raise SnapshotError(f"{path} is not a session snapshot of this version of aner")
    body = memoryview(content)[: -hashlib.sha256().digest_size]
    if len(content) < len(MAGIC) + 32 or hashlib.sha256(body).digest() != content[-32:]:
        raise SnapshotError(f"{path} is damaged: its content does not match its digest")
    end = content.find(b"\n", len(MAGIC), len(MAGIC) + _MAX_HEADER)
    try:
        header = json.loads(content[len(MAGIC) : end])
        found, history, n_tokens, n_memory = (header[key] for key in ("identity", "history", "tokens", "memory"))
        if not (isinstance(n_tokens, int) and isinstance(n_memory, int) and n_tokens >= 0 and isinstance(history, list)):
            raise TypeError("a field of the header has the wrong type")
        start = end + 1
        if start + 4 * n_tokens + n_memory != len(body):
            raise ValueError("the lengths in the header are not those of the file")
        tokens = list(struct.unpack(f"<{n_tokens}i", body[start : start + 4 * n_tokens]))
    except (KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise SnapshotError(f"{path} is not a valid session snapshot: {error}") from None
    if not isinstance(found, dict) or found != identity:
        names = [name for name in identity if not isinstance(found, dict) or found.get(name) != identity[name]]
        raise SnapshotError(
            f"{path} was made by another session: {', '.join(names)} differ. Load the same model with the same settings and adapters"
        )
    return history, tokens, bytes(body[start + 4 * n_tokens :])
