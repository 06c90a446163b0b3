"""POST /v1/chat/completions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from accord.serve.answer import Piece, TokenLogprobs
from accord.serve.constraints import grammar_of, schema_of
from accord.serve.errors import invalid
from accord.serve.models import model_of
from accord.serve.responses import ChoiceWriter
from accord.serve.schemas import ChatRequest, parse
from accord.serve.service import Limits
from accord.serve.streams import read_body
from accord.serve.texts import Texts, printable
from accord.serve.tool_calls import CallDelta, joined
from accord.serve.tools import conversation_of, tool_use_of

__all__ = ["chat_completions"]


async def chat_completions(request: Request) -> Response:
    body = parse(ChatRequest, await read_body(request))
    model = model_of(request, body.model)
    service = model.service
    texts = service.texts
    grammar = await grammar_of(body)
    tools = await tool_use_of(
        [tool.function for tool in body.tools or []],
        body.tool_choice,
        parallel=body.parallel_tool_calls is not False,
        texts=texts,
        answer=schema_of(body.response_format, "response_format"),
        param_of="tools.{}.function.parameters".format,
    )
    if body.structured_outputs is not None and tools is not None:
        raise invalid('structured_outputs exclude calls of tools; set tool_choice to "none"', "tool_choice")
    conversation = conversation_of(body.messages)
    text = texts.render(conversation, tools=None if tools is None else tools.definitions)
    prompt = await texts.encode(text, "messages", add_special_tokens=False)
    service.note_prompt(request, conversation)
    limits = _limits(body)
    answers = service.start(body, [prompt], limits, grammar, tools=tools, adapter=model.adapter)
    form = _ChatForm(texts, bool(body.logprobs))
    return await ChoiceWriter(request, model, body, answers, form).respond(stream=bool(body.stream))


def _limits(body: ChatRequest) -> Limits:
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs needs logprobs", "top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("max_tokens is the old name of max_completion_tokens; give one of them", "max_tokens")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    if body.max_tokens is not None:
        return Limits(body.max_tokens, "max_tokens", logprobs)
    return Limits(body.max_completion_tokens, "max_completion_tokens", logprobs)


def _call(delta: CallDelta) -> dict[str, object]:
    """Returns a call, or the part of it that its beginning does not have yet."""
    if not delta.id:
        return {"function": {"arguments": delta.arguments}}
    return {"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": delta.arguments}}


class _ChatForm:
    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(self, texts: Texts, with_logprobs: bool):
        self._texts = texts
        self._with_logprobs = with_logprobs
        self._begun: set[int] = set()  # choices whose role has been sent

    def whole(self, index: int, piece: Piece) -> dict:
        message: dict[str, object] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.calls:
            message["content"] = piece.text or None
            message["tool_calls"] = [_call(delta) for delta in joined(piece.calls)]
        return self._choice(index, piece, {"message": message})

    def part(self, index: int, piece: Piece) -> dict:
        delta: dict[str, object] = {}
        if index not in self._begun:
            self._begun.add(index)
            delta["role"] = "assistant"
        if piece.text or "role" in delta:
            delta["content"] = piece.text if piece.text or not piece.calls else None
        if piece.calls:
            delta["tool_calls"] = [{"index": one.index} | _call(one) for one in joined(piece.calls)]
        return self._choice(index, piece, {"delta": delta})

    def _choice(self, index: int, piece: Piece, content: dict) -> dict:
        logprobs = None
        if self._with_logprobs:
            logprobs = {"content": [self._logprobs(one) for one in piece.logprobs], "refusal": None}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": piece.finish or None}

    def _logprobs(self, one: TokenLogprobs) -> dict:
        top = [self._token(token, logprob) for token, logprob in one.top]
        return self._token(one.token, one.logprob) | {"top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict:
        text = self._texts.piece(token)
        part = self._texts.tokenizer.bytes_of(token)  # of a character, perhaps
        return {"token": text, "logprob": printable(logprob), "bytes": list(text.encode() if part is None else part)}
