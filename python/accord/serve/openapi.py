"""The OpenAPI description of the server, generated from the schemas of the bodies."""

from __future__ import annotations

import functools

from pydantic.json_schema import models_json_schema

import accord
from accord.serve.response_bodies import ResponsesRequest
from accord.serve.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, EmbeddingsRequest, TokenizeRequest

__all__ = ["openapi"]

_BODIES = {
    "/v1/completions": (CompletionRequest, "Continue a text", "text/event-stream"),
    "/v1/chat/completions": (ChatRequest, "Answer a conversation", "text/event-stream"),
    "/v1/embeddings": (EmbeddingsRequest, "The embeddings of texts", None),
    "/v1/responses": (ResponsesRequest, "Answer a conversation with items", "text/event-stream"),
    "/tokenize": (TokenizeRequest, "The tokens of a text or a conversation", None),
    "/detokenize": (DetokenizeRequest, "The text of tokens", None),
}
_READS = {
    "/": ("A page for chats, with a live view of the server", "text/html", ()),
    "/v1/models": ("The models that are served", "application/json", ()),
    "/health": ("Whether the server runs", "application/json", ()),
    "/ready": ("Whether the ranks of all models take requests", "application/json", ("503",)),
    "/metrics": ("Counters for Prometheus", "text/plain", ()),
}
_STATUSES = {
    "400": "The request is invalid; the error names the field",
    "401": "The API key is missing or unknown",
    "404": "There is no such model",
    "408": "The body did not arrive in time",
    "413": "The body is too large",
    "429": "Too many requests are running or waiting",
    "500": "The server has failed",
    "503": "The server is starting, or shutting down",
    "504": "The request took too long",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


@functools.cache
def openapi(model_names: tuple[str, ...]) -> dict:
    """Returns the description of a server with these models."""
    _, schemas = models_json_schema(
        [(body, "validation") for body, _, _ in _BODIES.values()], ref_template="#/components/schemas/{model}"
    )
    for schema in schemas["$defs"].values():
        if "model" in schema["properties"]:
            schema["properties"]["model"] = {"enum": model_names, "type": "string", "default": model_names[0]}
    paths: dict[str, dict] = {}
    for path, (body, summary, streamed) in _BODIES.items():
        reference = {"$ref": f"#/components/schemas/{body.__name__}"}
        operation = _operation(summary, ("application/json", streamed), _STATUSES)
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
        paths[path] = {"post": operation}
    for path, (summary, kind, statuses) in _READS.items():
        paths[path] = {"get": _operation(summary, (kind,), (*statuses, "401"))}
    return {
        "openapi": "3.1.0",
        "info": {"title": "accord serve", "version": accord.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"] | {"Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(summary: str, kinds: tuple[str | None, ...], statuses) -> dict:
    reference = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    responses: dict[str, dict] = {
        "200": {"description": summary, "content": {kind: {} for kind in kinds if kind is not None}}
    }
    for status in statuses:
        responses[status] = {"description": _STATUSES[status]} | ({} if status == "503" else {"content": reference})
    return {"summary": summary, "responses": responses}
