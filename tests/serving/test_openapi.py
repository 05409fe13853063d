"""The OpenAPI document, and that the server keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks

from aner import api, llm
from aner.api._fields import NEUTRAL, PASSED_ON, ChatCompletionRequest, CompletionRequest
from aner.llm._options import DEFAULTS

CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
WITH_BODIES = {"POST /chat", "POST /v1/chat/completions", "POST /v1/completions", "POST /tokenize", "POST /detokenize"}
ROOT = Path(__file__).resolve().parents[2]


def test_every_field_of_every_body_is_described(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    for name in ("ChatRequest", "ChatCompletionRequest", "CompletionRequest", "SessionRequest"):
        silent = [field for field, schema in schemas[name]["properties"].items() if not schema.get("description")]
        assert silent == []
        assert schemas[name]["additionalProperties"] is False
    assert {"/chat", "/chat/sessions", "/plain", "/v1/chat/completions", "/v1/completions", "/metrics"} <= set(
        document["paths"]
    )
    assert "422" not in json.dumps(document)


def test_every_option_of_a_generation_can_be_asked_for() -> None:
    """All but the timeout, which is the server's, and those that have another name or form there."""
    assert set(DEFAULTS) - set(PASSED_ON) == {"max_tokens", "logit_bias", "logprobs", "timeout"}


@pytest.mark.contract("H7")
def test_the_compatibility_table_has_every_field() -> None:
    page = (ROOT / "docs" / "serving.md").read_text("utf-8")
    fields = set(ChatCompletionRequest.model_fields) | set(CompletionRequest.model_fields)
    section = page.split("## OpenAI compatibility", 1)[1].split("\n## ", 1)[0]
    assert [name for name in sorted(fields) if f"`{name}`" not in section] == []
    assert set(NEUTRAL) <= fields


@pytest.mark.contract("H7", "E2")
@pytest.mark.parametrize("mode", [*schemathesis.GenerationMode])
def test_generated_requests_get_answers_that_the_document_has(
    exact: llm.Model, batching: llm.Model, mode: schemathesis.GenerationMode
) -> None:
    app = (
        api.app("Test").llm(path="/chat", model=batching, alias="m").sessions("/chat", exact).bind(port=0).output_limit(4)
        .limits(timeout_ms=20_000)
    )  # fmt: skip
    seen: set[tuple[str, int]] = set()
    with app.running() as running, httpx.Client(base_url=running, timeout=30) as client:
        for found in schemathesis.openapi.from_url(f"{running}/openapi.json").get_all_operations():
            operation = found.ok()
            if mode is schemathesis.GenerationMode.NEGATIVE and operation.label not in WITH_BODIES:
                continue  # there is little in it that could be wrong

            @settings(
                max_examples=10, deadline=None, phases=[Phase.generate], database=None, derandomize=True,
                suppress_health_check=[*HealthCheck],
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def run(case: schemathesis.Case) -> None:
                answer = case.call()
                case.validate_response(answer, checks=CHECKS)
                seen.add((case.operation.label, answer.status_code))

            run()
        assert client.post("/chat", json={"prompt": "a"}).status_code == 200
    wanted = 200 if mode is schemathesis.GenerationMode.POSITIVE else 400
    assert ("POST /tokenize", wanted) in seen
    assert "POST /v1/chat/completions" in {label for label, _ in seen}
