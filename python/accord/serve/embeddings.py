"""POST /v1/embeddings."""

from __future__ import annotations

import array
import asyncio
import base64
import math

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from accord.serve.errors import too_late
from accord.serve.models import model_of
from accord.serve.schemas import EmbeddingsRequest, parse
from accord.serve.streams import read_body, unless_disconnected

__all__ = ["embeddings"]

_LENGTH_TOLERANCE = 1e-3  # of embeddings that count as scaled to length 1


async def embeddings(request: Request) -> Response:
    body = parse(EmbeddingsRequest, await read_body(request))
    model = model_of(request, body.model)
    service = model.service
    texts = await service.texts.tokens_of(body.input, "input")
    service.note_prompt(request, body.input)
    try:
        async with asyncio.timeout(service.options.request_seconds):
            vectors = await unless_disconnected(request, service.embed(texts, body.dimensions))
    except TimeoutError:
        raise too_late(service.options.request_seconds) from None
    as_text = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if as_text else vector.tolist()}
        for index, vector in enumerate(_shortened(vector, body.dimensions) for vector in vectors)
    ]
    count = sum(map(len, texts))
    usage = {"prompt_tokens": count, "total_tokens": count}
    request.scope["facts"].update(usage)
    return JSONResponse({"object": "list", "data": data, "model": model.name, "usage": usage})


def _shortened(vector: array.array, dimensions: int | None) -> array.array:
    """Returns the first elements. A vector of length 1 keeps that length, as in OpenAI's interface."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    kept = vector[:dimensions]
    length = math.hypot(*kept)
    if length > 0 and abs(math.hypot(*vector) - 1) < _LENGTH_TOLERANCE:
        kept = array.array("f", (value / length for value in kept))
    return kept


def _base64(vector: array.array) -> str:
    return base64.b64encode(vector.tobytes()).decode()
