"""The body of /v1/responses, and its parts as those of a chat."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from accord.serve.errors import invalid
from accord.serve.schemas import (
    Body,
    ChosenFunction,
    ChosenTool,
    Count,
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    Message,
    ResponseFormat,
    SamplingRequest,
    SchemaFormat,
    TextPart,
    ToolCall,
)

__all__ = ["ResponsesRequest"]


class ContentPart(Body):
    unsupported: ClassVar[dict[str, tuple]] = {
        **dict.fromkeys(("file_data", "file_id", "file_url", "filename", "image_url", "detail", "refusal"), ()),
        "annotations": ([],),
        "logprobs": ([],),
    }

    type: Literal["input_text", "output_text"]
    text: str


class InputItem(Body):
    """A message, a call of a tool by the model, or a call's result."""

    unsupported: ClassVar[dict[str, tuple]] = {
        "async": (False,), "caller": (), "namespace": (), "phase": (), "recipient": (),
    }  # fmt: skip

    type: Literal["message", "function_call", "function_call_output"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["assistant", "developer", "system", "user"] | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: FunctionName | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None

    def needed(self, index: int, *names: str) -> list[Any]:
        """Returns the values of fields that this type of item needs."""
        values = [getattr(self, name) for name in names]
        for name, value in zip(names, values, strict=True):
            if value is None:
                raise invalid(
                    f"an item of the type {self.type} needs it", f"input.{index}.{name}", "missing_required_parameter"
                )
        return values


class TextFormat(SchemaFormat):
    type: Literal["text", "json_object", "json_schema"]
    name: str = ""


class TextOptions(Body):
    unsupported: ClassVar[dict[str, tuple]] = {"verbosity": ("medium",)}

    format: TextFormat | None = None


class ResponseTool(Body):
    unsupported: ClassVar[dict[str, tuple]] = {"async": (False,), "defer_loading": (False,)}

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenResponseTool(ChosenFunction):
    type: Literal["function"]


class ResponsesRequest(Body):
    unsupported: ClassVar[dict[str, tuple]] = {
        "background": (False,),
        "context_management": (),
        "conversation": (),
        "include": ([],),
        "max_tool_calls": (),
        "moderation": (),
        "prompt": (),
        "prompt_cache_key": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "reasoning": ({},),
        "safety_identifier": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "stream_options": ({}, {"include_obfuscation": False}),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
    }

    model: str | None = None
    input: str | Annotated[list[InputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    metadata: dict[str, str] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    text: TextOptions | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenResponseTool | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=128)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    user: str | None = None

    def sampling(self) -> SamplingRequest:
        names = ("min_p", "repetition_penalty", "seed", "stream", "temperature", "top_k", "top_p")
        return SamplingRequest(**{name: getattr(self, name) for name in names})

    def format(self) -> ResponseFormat | None:
        """Returns the format of the text, as a chat has it."""
        given = None if self.text is None else self.text.format
        if given is None:
            return None
        if given.type == "json_schema" and (given.schema_ is None or not given.name):
            field = "name" if given.schema_ is not None else "schema"
            raise invalid("the type json_schema needs it", f"text.format.{field}", "missing_required_parameter")
        schema = SchemaFormat(name=given.name, schema=given.schema_) if given.type == "json_schema" else None
        return ResponseFormat(type=given.type, json_schema=schema)

    def functions(self) -> list[FunctionDefinition]:
        names = ("name", "description", "parameters", "strict")
        return [FunctionDefinition(**{name: getattr(tool, name) for name in names}) for tool in self.tools or []]

    def choice(self) -> str | ChosenTool | None:
        """Returns tool_choice, as a chat has it."""
        if isinstance(self.tool_choice, ChosenResponseTool):
            return ChosenTool(type="function", function=ChosenFunction(name=self.tool_choice.name))
        return self.tool_choice

    def messages(self) -> list[Message]:
        """Returns the conversation, as a chat has it."""
        made = [] if self.instructions is None else [Message(role="system", content=self.instructions)]
        if isinstance(self.input, str):
            return [*made, Message(role="user", content=self.input)]
        for index, item in enumerate(self.input):
            if item.type == "message":
                role, content = item.needed(index, "role", "content")
                made.append(Message(role=role, content=_text(content)))
            elif item.type == "function_call_output":
                call_id, output = item.needed(index, "call_id", "output")
                made.append(Message(role="tool", content=_text(output), tool_call_id=call_id))
            else:
                call_id, name, arguments = item.needed(index, "call_id", "name", "arguments")
                call = ToolCall(id=call_id, type="function", function=FunctionCall(name=name, arguments=arguments))
                if made and made[-1].role == "assistant":  # several calls of an answer, or calls after its text
                    made[-1].tool_calls = [*(made[-1].tool_calls or []), call]
                else:
                    made.append(Message(role="assistant", tool_calls=[call]))
        return made


def _text(content: str | list[ContentPart]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=part.text) for part in content]
