"""The bodies of requests, which pydantic validates. Unknown fields are errors, and so are those of OpenAI's interface
that the server does not support, unless their values ask for nothing.
"""

from __future__ import annotations

import collections
import difflib
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from accord.serve.errors import ApiError, invalid

__all__ = [
    "Body",
    "ChatRequest",
    "ChosenFunction",
    "ChosenTool",
    "CompletionRequest",
    "Count",
    "DetokenizeRequest",
    "EmbeddingsRequest",
    "FunctionCall",
    "FunctionDefinition",
    "FunctionName",
    "Message",
    "ResponseFormat",
    "SamplingRequest",
    "SchemaFormat",
    "StructuredOutputs",
    "TextPart",
    "TokenizeRequest",
    "ToolCall",
    "parse",
]

_MAX_CHOICES = 128
_MAX_STOPS = 16
_MAX_TOOLS = 128
_MAX_TEXTS = 2048  # as in OpenAI's interface

Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
SomeText = Annotated[str, Field(min_length=1)]


class Body(BaseModel):
    """A body, or an object in one. Null stands for an absent field."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    # Fields of OpenAI's interface that are not supported, with the values that are accepted because they ask for
    # nothing.
    unsupported: ClassVar[dict[str, tuple]] = {}

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        names = {field.alias or name for name, field in cls.model_fields.items()}
        for name in given.keys() - names:
            if name not in cls.unsupported:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f'; did you mean "{near[0]}"?' if near else ""
                raise PydanticCustomError("unknown_parameter", "unknown field{hint}", {"field": name, "hint": hint})
            if given[name] is not None and given[name] not in cls.unsupported[name]:
                raise PydanticCustomError("unsupported_parameter", "this field is not supported", {"field": name})
        return {name: value for name, value in given.items() if name in names}


class StreamOptions(Body):
    unsupported: ClassVar[dict[str, tuple]] = {"include_obfuscation": (False,)}

    include_usage: bool | None = None


class SchemaFormat(Body):
    """The schema of `response_format`. Answers always conform to it, also without `strict`."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class StructuredOutputs(Body):
    """A restriction of answers, as vLLM's users write it: one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None


class SamplingRequest(Body):
    """Fields that completions and chats have in common."""

    model: str | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Field(ge=1, le=_MAX_CHOICES)] | None = None
    response_format: ResponseFormat | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: SomeText | Annotated[list[SomeText], Field(max_length=_MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    user: str | None = None

    def biases(self) -> dict[int, float]:
        """Returns logit_bias by token."""
        found: dict[int, float] = {}
        for key, bias in (self.logit_bias or {}).items():
            if not key.isascii() or not key.isdigit() or int(key) >= 1 << 31:
                raise invalid(f'"{key}" is not the number of a token', f"logit_bias.{key}")
            found[int(key)] = bias
        return found

    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])


class CompletionRequest(SamplingRequest):
    unsupported: ClassVar[dict[str, tuple]] = {"best_of": (1,), "echo": (False,), "suffix": ("",)}

    prompt: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=_MAX_CHOICES)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[Annotated[list[Token], Field(min_length=1)]], Field(min_length=1, max_length=_MAX_CHOICES)]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class EmbeddingsRequest(Body):
    model: str | None = None
    input: (
        SomeText
        | Annotated[list[SomeText], Field(min_length=1, max_length=_MAX_TEXTS)]
        | Annotated[list[Token], Field(min_length=1)]
        | Annotated[list[Annotated[list[Token], Field(min_length=1)]], Field(min_length=1, max_length=_MAX_TEXTS)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: str | None = None


class TextPart(Body):
    unsupported: ClassVar[dict[str, tuple]] = dict.fromkeys(("file", "image_url", "input_audio", "refusal"), ())

    type: Literal["text"]
    text: str


class FunctionDefinition(Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    unsupported: ClassVar[dict[str, tuple]] = {"custom": ()}

    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(Body):
    name: str


class ChosenTool(Body):
    type: Literal["function"]
    function: ChosenFunction


class FunctionCall(Body):
    name: FunctionName
    arguments: str


class ToolCall(Body):
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(Body):
    unsupported: ClassVar[dict[str, tuple]] = {
        "annotations": ([],),
        "audio": (),
        "function_call": (),
        "name": (),
        "refusal": (),
    }

    role: Literal["assistant", "developer", "system", "tool", "user"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None  # of an assistant
    tool_call_id: str | None = None  # of a tool's result

    @model_validator(mode="after")
    def _check_role(self) -> Message:
        for name, role in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
            if getattr(self, name) is not None and self.role != role:
                raise PydanticCustomError(
                    "unsupported_parameter",
                    "only messages of the role {role} have this field",
                    {"field": name, "role": role},
                )
        missing = "content" if self.content is None and not self.tool_calls else None
        if self.role == "tool" and self.tool_call_id is None:
            missing = "tool_call_id"
        if missing is not None:
            raise PydanticCustomError("missing_required_parameter", "field required", {"field": missing})
        return self

    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ChatRequest(SamplingRequest):
    unsupported: ClassVar[dict[str, tuple]] = {
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "metadata": ({},),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_key": (),
        "prompt_cache_retention": (),
        "reasoning_effort": (),
        "safety_identifier": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: Annotated[list[Tool], Field(max_length=_MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_completion_tokens: Count | None = None


class TokenizeRequest(Body):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(Body):
    model: str | None = None
    tokens: list[Token]


Parsed = TypeVar("Parsed", bound=Body)


def parse(kind: type[Parsed], text: bytes) -> Parsed:
    """Reads a body. The error of an invalid one names the field."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise _error_of(error.errors(include_url=False, include_input=False)) from None


def _error_of(errors: list[ErrorDetails]) -> ApiError:
    """Returns the error of the first invalid field. Each form that the field may have gives errors of its own; those of
    the form that fits best are deepest, and fewest."""
    errors = [error for error in errors if error["loc"][:1] == errors[0]["loc"][:1]]
    forms = collections.Counter(error["loc"][:2] for error in errors)
    error = max(errors, key=lambda one: (len(one["loc"]), -forms[one["loc"][:2]]))
    kind = error["type"]
    if kind == "json_invalid":
        return invalid(f"the body is not valid JSON: {error['ctx']['error']}", code="invalid_json")
    path = list(error["loc"])
    if kind.endswith("_parameter"):
        path.append(error["ctx"]["field"])
    param = _param(path)
    alike = [one["msg"] for one in errors if _param(one["loc"]) == _param(error["loc"])]
    message = "; or ".join(dict.fromkeys(text[:1].lower() + text[1:] for text in alike))
    code = {"missing": "missing_required_parameter"}.get(kind, kind if kind.endswith("_parameter") else "invalid_value")
    return invalid(f"{param}: {message}" if param else message, param or None, code)


def _param(path: Sequence[int | str]) -> str:
    """Returns "messages.0.content" for a path in which pydantic also names the form of a field ("list[TextPart]")."""
    forms = ("list[", "dict[", "literal[", "constrained", "tagged-union", "function-")
    return ".".join(
        str(step) for step in path if isinstance(step, int) or not (step == "str" or step.startswith(forms))
    )
