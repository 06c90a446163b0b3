"""The ASGI application of a server's models: routes, and errors as OpenAI's error object."""

from __future__ import annotations

import time
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from accord.serve.chat import chat_completions
from accord.serve.completions import completions
from accord.serve.embeddings import embeddings
from accord.serve.errors import ApiError, error_object, invalid
from accord.serve.gate import ApiKeys, Gate
from accord.serve.metrics import CONTENT_TYPE_LATEST, Metrics
from accord.serve.models import Model, Models, model_of
from accord.serve.node import Node
from accord.serve.openapi import openapi
from accord.serve.options import ServeOptions
from accord.serve.response_items import responses
from accord.serve.schemas import DetokenizeRequest, TokenizeRequest, parse
from accord.serve.streams import read_body
from accord.serve.tools import conversation_of

__all__ = ["PATHS", "make_app"]

_BEGIN = int(time.time())
# The page has its script and style inside, and calls only this server.
_PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


async def page(request: Request) -> Response:
    text = files("accord.serve").joinpath("page.html").read_text(encoding="utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": _PAGE_POLICY, "X-Content-Type-Options": "nosniff"})


async def models(request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_entry(model) for model in request.app.state.models]})


async def model(request: Request) -> Response:
    return JSONResponse(_entry(request.app.state.models.find(request.path_params["name"])))


def _entry(model: Model) -> dict:
    capability = "embedding" if model.service.is_encoder else "completion"
    head = {"id": model.name, "object": "model", "created": _BEGIN, "owned_by": "accord"}
    # These are not in OpenAI's interface. llama.cpp and Ollama have the first, vLLM has the second.
    parent = {} if model.adapter is None else {"parent": model.service.options.name}
    return head | {"capabilities": [capability]} | parent


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    states = request.app.state.models.states()
    status = next((state for state in states.values() if state != "ready"), "ready")
    content = {"status": status, "models": states}
    return JSONResponse(content, 200) if status == "ready" else JSONResponse(content, 503, {"Retry-After": "1"})


async def metrics(request: Request) -> Response:
    return Response(request.app.state.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def tokenize(request: Request) -> Response:
    body = parse(TokenizeRequest, await read_body(request))
    service = model_of(request, body.model).service
    if (body.prompt is None) == (body.messages is None):
        raise invalid("give either a prompt or messages", "prompt")
    if body.messages is not None:
        text = service.texts.render(
            conversation_of(body.messages), add_generation_prompt=body.add_generation_prompt is not False
        )
        tokens = await service.texts.encode(text, "messages", add_special_tokens=bool(body.add_special_tokens))
    else:
        tokens = await service.texts.encode(
            body.prompt or "", "prompt", add_special_tokens=body.add_special_tokens is not False
        )
    facts = service.ranks.facts
    return JSONResponse(
        {"tokens": tokens, "count": len(tokens), "max_model_len": None if facts is None else facts.max_context}
    )


async def detokenize(request: Request) -> Response:
    body = parse(DetokenizeRequest, await read_body(request))
    service = model_of(request, body.model).service
    return JSONResponse({"prompt": service.texts.tokenizer.decode(body.tokens, skip_special_tokens=False)})


async def description(request: Request) -> Response:
    return JSONResponse(openapi(tuple(model.name for model in request.app.state.models)))


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(error_object(error.status_code, message), error.status_code, error.headers)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _internal_error(request: Request, error: Exception) -> Response:
    return JSONResponse(error_object(500, "the server has failed; its log has the reason"), 500)


_ROUTES = (
    Route("/", page),
    Route("/v1/models", models),
    Route("/v1/models/{name:path}", model),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/embeddings", embeddings, methods=["POST"]),
    Route("/v1/responses", responses, methods=["POST"]),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
    Route("/openapi.json", description),
)
_NODE_ROUTES = (Route("/health", health), Route("/ready", ready), Route("/metrics", metrics))
PATHS = frozenset(route.path for route in _ROUTES + _NODE_ROUTES)


def make_app(options: ServeOptions, models: Models | Node, keys: ApiKeys | None, metrics: Metrics) -> Starlette:
    routes = _NODE_ROUTES if isinstance(models, Node) else _ROUTES + _NODE_ROUTES
    middleware = []
    if options.cors_origins:
        middleware.append(
            Middleware(CORSMiddleware, allow_origins=options.cors_origins, allow_methods=["*"], allow_headers=["*"])
        )
    middleware.append(
        Middleware(
            Gate,
            keys=keys,
            max_body_bytes=options.max_body_bytes,
            metrics=metrics,
            paths=frozenset(route.path for route in routes),
        )
    )
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            Exception: _internal_error,
        },
    )
    app.state.models = models
    app.state.metrics = metrics
    return app
