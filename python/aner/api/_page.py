"""The page at ``/``: one static file, which may run its own scripts and reach this server, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi.responses import Response


def page(file: Path) -> Callable[[], Awaitable[Response]]:
    """The endpoint that gives it."""
    content = file.read_bytes()
    scripts = re.findall(rb"<script[^>]*>(.*?)</script>", content, re.DOTALL)
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in scripts) or "'none'"
    headers = {
        # A model's text that were taken for markup could neither run nor load anything.
        "content-security-policy": (
            f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }

    async def serve_page() -> Response:
        return Response(content, media_type="text/html; charset=utf-8", headers=headers)

    return serve_page
