"""POST /v1/responses: an answer as a list of items, which are messages and calls of tools."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterator

from starlette.requests import Request
from starlette.responses import Response

from accord.serve.answer import Piece
from accord.serve.constraints import format_grammar, schema_of
from accord.serve.errors import ApiError, invalid
from accord.serve.models import Model, model_of
from accord.serve.response_bodies import ResponsesRequest
from accord.serve.responses import Writer
from accord.serve.schemas import parse
from accord.serve.service import Answers, Limits
from accord.serve.streams import event, read_body
from accord.serve.tool_calls import CallDelta, joined
from accord.serve.tools import conversation_of, tool_use_of

__all__ = ["responses"]


async def responses(request: Request) -> Response:
    body = parse(ResponsesRequest, await read_body(request))
    model = model_of(request, body.model)
    service = model.service
    if body.previous_response_id is not None:
        message = "this server keeps no responses: send the whole conversation as input"
        raise invalid(message, "previous_response_id", "unsupported_parameter")
    texts = service.texts
    grammar = await format_grammar(body.format(), "text.format", "text.format.schema")
    tools = await tool_use_of(
        body.functions(),
        body.choice(),
        parallel=body.parallel_tool_calls is not False,
        texts=texts,
        answer=schema_of(body.format(), "text.format"),
        param_of="tools.{}.parameters".format,
    )
    conversation = conversation_of(body.messages(), "input")
    text = texts.render(conversation, tools=None if tools is None else tools.definitions)
    prompt = await texts.encode(text, "input", add_special_tokens=False)
    service.note_prompt(request, conversation)
    limits = Limits(body.max_output_tokens, "max_output_tokens", None)
    answers = service.start(body.sampling(), [prompt], limits, grammar, tools=tools, adapter=model.adapter)
    return await _ItemWriter(request, model, body, answers).respond(stream=bool(body.stream))


class _ItemWriter(Writer):
    done = b""

    def __init__(self, request: Request, model: Model, body: ResponsesRequest, answers: Answers):
        super().__init__(request, model, answers)
        self._sequence = 0  # number of the next event
        self._items: list[dict] = []
        self._open = False  # whether the last item continues
        self._response = {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": model.name,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": _given(body, "text") or {"format": {"type": "text"}},
            "tool_choice": _given(body, "tool_choice") or "auto",
            "tools": _given(body, "tools") or [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }

    async def events(self) -> AsyncIterator[bytes]:
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)
        async for pieces in self._pieces():
            for made in self._add(pieces[0]):
                yield made

    async def whole(self) -> dict:
        async for pieces in self._pieces():
            for _ in self._add(pieces[0]):
                pass
        return self._response

    def error(self, error: ApiError) -> bytes:
        content = error.body["error"]
        assert isinstance(content, dict)
        return self._event("error", code=content["code"], message=content["message"], param=content["param"])

    def _event(self, kind: str, **content: object) -> bytes:
        number = self._sequence
        self._sequence += 1
        return f"event: {kind}\n".encode() + event({"type": kind, "sequence_number": number, **content})

    def _add(self, piece: Piece) -> Iterator[bytes]:
        """Adds a piece of the answer to the items, and yields the events of that."""
        if piece.text or (piece.finish and not self._items and not piece.calls):
            if not self._open or self._items[-1]["type"] != "message":
                yield from self._begin_message()
            self._items[-1]["content"][0]["text"] += piece.text
            if piece.text:
                yield self._of_part("response.output_text.delta", delta=piece.text, logprobs=[])
        for delta in joined(piece.calls):
            if delta.id:
                yield from self._begin_call(delta)
            self._items[-1]["arguments"] += delta.arguments
            if delta.arguments:
                yield self._of_item("response.function_call_arguments.delta", delta=delta.arguments)
        if piece.finish:
            is_complete = piece.finish != "length"
            yield from self._close("completed" if is_complete else "incomplete")
            yield self._finish(is_complete)

    def _begin_message(self) -> Iterator[bytes]:
        yield from self._close("completed")
        item = {"id": f"msg_{secrets.token_hex(24)}", "type": "message", "role": "assistant"}
        yield from self._begin(item | {"status": "in_progress", "content": []})
        part = {"type": "output_text", "text": "", "annotations": []}
        self._items[-1]["content"].append(part)
        yield self._of_part("response.content_part.added", part=part)

    def _begin_call(self, delta: CallDelta) -> Iterator[bytes]:
        yield from self._close("completed")
        item = {"id": f"fc_{secrets.token_hex(24)}", "type": "function_call", "call_id": delta.id, "name": delta.name}
        yield from self._begin(item | {"status": "in_progress", "arguments": ""})

    def _begin(self, item: dict) -> Iterator[bytes]:
        self._items.append(item)
        self._open = True
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)

    def _close(self, status: str) -> Iterator[bytes]:
        if not self._open:
            return
        self._open = False
        item = self._items[-1]
        item["status"] = status
        if item["type"] == "message":
            (part,) = item["content"]
            yield self._of_part("response.output_text.done", text=part["text"], logprobs=[])
            yield self._of_part("response.content_part.done", part=part)
        else:
            yield self._of_item("response.function_call_arguments.done", name=item["name"], arguments=item["arguments"])
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _of_item(self, kind: str, **content: object) -> bytes:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **content)

    def _of_part(self, kind: str, **content: object) -> bytes:
        return self._of_item(kind, content_index=0, **content)

    def _finish(self, is_complete: bool) -> bytes:
        usage = self._answers.usage()
        self._response |= {
            "status": "completed" if is_complete else "incomplete",
            "incomplete_details": None if is_complete else {"reason": "max_output_tokens"},
            "output": self._items,
            "usage": {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            },
        }
        return self._event(f"response.{self._response['status']}", response=self._response)


def _given(body: ResponsesRequest, name: str) -> object:
    """Returns a field as the client wrote it, None if it did not."""
    return body.model_dump(include={name}, by_alias=True, exclude_unset=True).get(name)
