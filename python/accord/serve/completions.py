"""POST /v1/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from accord.serve.answer import Piece, TokenLogprobs
from accord.serve.constraints import grammar_of
from accord.serve.models import model_of
from accord.serve.responses import ChoiceWriter
from accord.serve.schemas import CompletionRequest, parse
from accord.serve.service import Limits
from accord.serve.streams import read_body
from accord.serve.texts import Texts, printable

__all__ = ["completions"]

_DEFAULT_MAX_TOKENS = 16  # as in OpenAI's interface


async def completions(request: Request) -> Response:
    body = parse(CompletionRequest, await read_body(request))
    model = model_of(request, body.model)
    service = model.service
    prompts = await service.texts.tokens_of(body.prompt, "prompt")
    grammar = await grammar_of(body)
    service.note_prompt(request, body.prompt)
    max_tokens = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    limits = Limits(max_tokens, "max_tokens", body.logprobs)
    answers = service.start(body, prompts, limits, grammar, adapter=model.adapter)
    form = _CompletionForm(service.texts, body.logprobs is not None, len(answers.choices))
    return await ChoiceWriter(request, model, body, answers, form).respond(stream=bool(body.stream))


class _CompletionForm:
    id_prefix = "cmpl"
    whole_object = event_object = "text_completion"

    def __init__(self, texts: Texts, with_logprobs: bool, choices: int):
        self._texts = texts
        self._with_logprobs = with_logprobs
        self._offsets = [0] * choices  # characters of the tokens so far

    def whole(self, index: int, piece: Piece) -> dict:
        logprobs = self._logprobs(index, piece.logprobs) if self._with_logprobs else None
        return {"text": piece.text, "index": index, "logprobs": logprobs, "finish_reason": piece.finish or None}

    part = whole

    def _logprobs(self, index: int, tokens: list[TokenLogprobs]) -> dict:
        texts = [self._texts.piece(one.token) for one in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [printable(one.logprob) for one in tokens],
            "top_logprobs": [self._top(text, one) for text, one in zip(texts, tokens, strict=True)],
            "text_offset": offsets,
        }

    def _top(self, text: str, one: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, logprob in one.top:
            top.setdefault(self._texts.piece(token), printable(logprob))  # of equal texts, the most likely token
        top.setdefault(text, printable(one.logprob))
        return top
