"""What the requests and answers of the older and the smaller doors look like: completions, moderations, token counts.

A model for reading, and for the page at /docs, as in `request_models` and `response_models`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, StringConstraints

from transport.openai import request_models as given
from transport.openai.response_models import ChatUsage, FinishReason, ResponseModel

TEXT_CHARS_MAX: Final = 1_000_000
Model = Annotated[str, StringConstraints(min_length=1, max_length=256)]
PROMPTS_MAX: Final = 64
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenSequence = Annotated[list[TokenId], Field(min_length=1, max_length=TEXT_CHARS_MAX)]
Text = Annotated[str, StringConstraints(max_length=TEXT_CHARS_MAX)]


# -- completions ------------------------------------------------------------------------------------------------------


class CompletionRequest(given.SamplingRequest):
    model: Model
    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=PROMPTS_MAX)]
        | TokenSequence
        | Annotated[list[TokenSequence], Field(min_length=1, max_length=PROMPTS_MAX)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=1_000_000)] | None = 16
    n: Annotated[int, Field(ge=1, le=16)] | None = 1
    best_of: Annotated[int, Field(ge=1, le=16)] | None = None
    echo: bool | None = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    stream_options: given.ChatStreamOptions | None = None
    suffix: Literal[""] | None = None


class CompletionLogprobs(ResponseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(ResponseModel):
    """A text completion: the whole one, or one `data:` line of a stream, whose last line is `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: ChatUsage | None = None


# -- moderations ------------------------------------------------------------------------------------------------------


class ModerationPart(given.LenientModel):
    type: Literal["text"]
    text: Text


class ModerationRequest(given.RequestModel):
    model: Model | None = None
    input: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=32)]
        | Annotated[list[ModerationPart], Field(min_length=1, max_length=32)]
    )


class ModerationResult(ResponseModel):
    """The findings about a text. `categories` and `category_scores` have all of OpenAI's names and those of this
    server's detectors; a category that no detector looks for is always false, with score 0."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text"]]]


class Moderation(ResponseModel):
    id: str
    model: str
    results: list[ModerationResult]


# -- token counts -----------------------------------------------------------------------------------------------------


class InputTokensRequest(given.RequestModel):
    """A request of `POST /v1/responses` whose input tokens are to be counted; other fields are ignored."""

    model: Model | None = None
    input: str | Annotated[list[given.InputItem], Field(max_length=4096)] | None = None
    instructions: str | None = None
    previous_response_id: given.Key | None = None
    conversation: given.Key | given.ConversationRef | None = None
    tools: Annotated[list[given.ResponseTool], Field(max_length=128)] | None = None
    tool_choice: given.ResponseChoice | None = None
    text: given.TextConfig | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None


class InputTokens(ResponseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


class TokenizeRequest(given.RequestModel):
    """A text (`prompt`, or llama.cpp's `content`) or a conversation (`messages`) whose token ids are wanted."""

    model: Model | None = None
    prompt: Text | None = None
    content: Text | None = None
    messages: Annotated[list[given.ChatMessageParam], Field(min_length=1, max_length=4096)] | None = None
    tools: Annotated[list[given.AnyChatTool], Field(max_length=128)] | None = None
    add_generation_prompt: bool | None = True
    add_special_tokens: bool | None = None
    add_special: bool | None = None


class Tokenized(ResponseModel):
    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(given.RequestModel):
    model: Model | None = None
    tokens: Annotated[list[TokenId], Field(max_length=TEXT_CHARS_MAX)]


class Detokenized(ResponseModel):
    prompt: str


class TokenizerCard(ResponseModel):
    """A model's tokenizer, for clients that prepare prompts by themselves."""

    tokenizer_class: str
    model_max_length: int
    vocab_size: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None
