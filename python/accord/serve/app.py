"""The ASGI application: routes, and errors as OpenAI's error object."""

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
from accord.serve.metrics import CONTENT_TYPE_LATEST
from accord.serve.openapi import openapi
from accord.serve.ranks import State
from accord.serve.response_items import responses
from accord.serve.schemas import DetokenizeRequest, TokenizeRequest, parse
from accord.serve.service import Service
from accord.serve.streams import read_body
from accord.serve.tools import conversation_of

__all__ = ["make_app"]

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
    return JSONResponse({"object": "list", "data": [_model(request.app.state.service)]})


async def model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(request.path_params["name"])
    return JSONResponse(_model(service))


def _model(service: Service) -> dict:
    return {"id": service.options.model_name, "object": "model", "created": _BEGIN, "owned_by": "accord"}


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    service: Service = request.app.state.service
    is_ready = service.ranks.state is State.READY and not service.draining
    status = "draining" if service.draining else service.ranks.state.value
    return JSONResponse({"status": status}, 200 if is_ready else 503, None if is_ready else {"Retry-After": "1"})


async def metrics(request: Request) -> Response:
    return Response(request.app.state.service.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def tokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    body = parse(TokenizeRequest, await read_body(request))
    service.check_model(body.model)
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
    service: Service = request.app.state.service
    body = parse(DetokenizeRequest, await read_body(request))
    service.check_model(body.model)
    return JSONResponse({"prompt": service.texts.tokenizer.decode(body.tokens, skip_special_tokens=False)})


async def description(request: Request) -> Response:
    return JSONResponse(openapi(request.app.state.service.options.model_name))


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
    Route("/health", health),
    Route("/ready", ready),
    Route("/metrics", metrics),
    Route("/openapi.json", description),
)


def make_app(service: Service, keys: ApiKeys | None) -> Starlette:
    options = service.options
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
            metrics=service.metrics,
            paths=frozenset(route.path for route in _ROUTES),
        )
    )
    app = Starlette(
        routes=_ROUTES,
        middleware=middleware,
        exception_handlers={
            ApiError: _api_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            Exception: _internal_error,
        },
    )
    app.state.service = service
    return app
