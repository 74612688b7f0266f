"""Questions about texts: `/v1/moderations`, `/v1/responses/input_tokens`, `/tokenize` and its like. They write nothing.

Moderations are what the tenant's policy for messages finds, by our own detectors. OpenAI's categories are all named;
those that nothing here looks for are never found. A policy that judges nothing is an error: silence is not harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from sessions.model import commands as cm
from sessions.model.errors import BadInput, NotFound
from sessions.model.generation import TokenizerInfo
from sessions.model.inspection import (
    AboutTokenizer,
    DecodedTexts,
    JudgedTexts,
    Judgement,
    Judgements,
    PromptMessage,
    PromptTokens,
    TextTokens,
    TokenIds,
    TokenTexts,
)
from sessions.model.types import ItemId, Principal, SessionId, SessionKey
from sessions.turn.images import prompt_text
from transport.history_index import Unit
from transport.http.json_response import JsonResponse
from transport.http_api.context import gateway_of, principal_of
from transport.http_api.routes.responses import answer_to
from transport.http_api.strict_json import StrictRoute
from transport.model_catalog import card
from transport.openai.completion_models import (
    Detokenized,
    DetokenizeRequest,
    InputTokens,
    InputTokensRequest,
    Moderation,
    ModerationRequest,
    Tokenized,
    TokenizerCard,
    TokenizeRequest,
)
from transport.openai.conversations import branch_items
from transport.openai.item_references import as_input
from transport.openai.parse_request import chat_history, chat_tools, input_units, response_tools
from transport.openai.request_models import ConversationRef, InputItem
from transport.openai.response_models import answers
from transport.openai.unknown_parameters import leave_out

OPENAI_CATEGORIES: Final = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
LIKE_OPENAI: Final = {"toxicity": "harassment"}  # our detectors that find what a category of OpenAI's names

routes = APIRouter(tags=["texts"], route_class=StrictRoute)


@routes.post("/v1/moderations", response_model=None, responses=answers(Moderation))
async def moderate(request: Request, body: ModerationRequest) -> Response:
    """Judges texts by the filters for messages, with this server's own detectors."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    given = [body.input] if isinstance(body.input, str) else body.input
    texts = tuple(each if isinstance(each, str) else each.text for each in given)
    leave_out(request, [] if body.model is None else ["model"])
    model = card(gateway.models, None)
    judgements = await gateway.inspect(principal, model.id, JudgedTexts(texts))
    assert isinstance(judgements, Judgements)
    results = [_result(each) for each in judgements.texts]
    name = ", ".join(judgements.detectors) or body.model or "sessile"
    return JsonResponse({"id": f"modr_{gateway.new_id()}", "model": name, "results": results})


def _result(judged: Judgement) -> dict[str, Any]:
    scores = dict.fromkeys(OPENAI_CATEGORIES, 0.0)
    for category, score in judged.scores.items():
        for name in dict.fromkeys((category, LIKE_OPENAI.get(category, category))):
            scores[name] = max(score, scores.get(name, 0.0))
    categories = {*judged.scores, *(LIKE_OPENAI.get(category, "") for category in judged.scores)}
    return {
        "flagged": bool(judged.scores),
        "categories": {name: name in categories for name in scores},
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] for name in scores},
    }


@routes.post("/v1/responses/input_tokens", response_model=None, responses=answers(InputTokens))
async def input_tokens(request: Request, body: InputTokensRequest) -> Response:
    """Counts the tokens of a response's whole prompt, before anything is left out to fit the context. Earlier answers
    are counted by their text; in the tokens that the model wrote they may be a few more."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    model = card(gateway.models, body.model)
    leave_out(request, [name for name in ("reasoning", "text") if getattr(body, name)])
    instructions, tools = body.instructions, response_tools(body.tools)
    items, state = await _before(request, principal, body)
    if state is not None and body.previous_response_id is None:  # a conversation has its own
        instructions = instructions if instructions is not None else state["instructions"]
        tools = tools if body.tools is not None else tuple(state["tools"])
    given = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input or []
    units = await gateway.files.attachments.units(principal, input_units([*items, *given]))
    if not units and not instructions:
        raise BadInput("missing_required_parameter", "Missing required parameter: 'input'.", param="input")
    question = PromptTokens(
        instructions=instructions, tools=tools, messages=prompt_messages(units, images=model.images)
    )
    prompt = await gateway.inspect(principal, model.id, question)
    assert isinstance(prompt, TokenIds)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})


async def _before(
    request: Request, principal: Principal, body: InputTokensRequest
) -> tuple[list[InputItem], dict[str, Any] | None]:
    """Returns the items that a request continues from, and the state of their session; ([], None) for none."""
    conversation = body.conversation.id if isinstance(body.conversation, ConversationRef) else body.conversation
    if body.previous_response_id is not None and conversation is not None:
        message = "Only one of 'previous_response_id' and 'conversation' may be given."
        raise BadInput("invalid_request", message, param="conversation")
    leaf: ItemId | None = None
    if body.previous_response_id is not None:
        answer = await answer_to(request, principal, body.previous_response_id, param="previous_response_id")
        with answer.cursor:
            output, key = (await answer.body()).output, answer.cursor.key
        if not output:
            raise NotFound("item_not_found", "This response has no output to go on from.", param="previous_response_id")
        leaf = output[-1].id
    elif conversation is not None:
        key = SessionKey(principal.tenant, SessionId(conversation))
    else:
        return [], None
    _, state = await gateway_of(request).logs.state(principal, key)
    return [as_input(item) for item in branch_items(state["items"], leaf or state["head"])], state


@routes.post("/tokenize", response_model=None, responses=answers(Tokenized))
async def tokenize(request: Request, body: TokenizeRequest) -> Response:
    """Returns the token ids of a text, or of a conversation as the model reads it."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    model = card(gateway.models, body.model)
    text = body.prompt if body.prompt is not None else body.content
    if (text is None) == (body.messages is None):
        raise BadInput("invalid_request", "Give one of 'prompt' ('content') and 'messages'.", param="prompt")
    if text is not None:
        starts = body.add_special_tokens if body.add_special_tokens is not None else body.add_special
        ids = await gateway.inspect(principal, model.id, TextTokens(text, starts=bool(starts)))
    else:
        instructions, units = chat_history(body.messages or (), open_ended=True)
        units = await gateway.files.attachments.units(principal, units)
        question = PromptTokens(
            instructions=instructions,
            tools=chat_tools(body.tools),
            messages=prompt_messages(units, images=model.images),
            answer=body.add_generation_prompt is not False,
        )
        ids = await gateway.inspect(principal, model.id, question)
    assert isinstance(ids, TokenIds)
    shown = {"count": len(ids.tokens), "max_model_len": ids.context_window, "tokens": list(ids.tokens)}
    return JsonResponse(shown)


@routes.post("/detokenize", response_model=None, responses=answers(Detokenized))
async def detokenize(request: Request, body: DetokenizeRequest) -> Response:
    """Returns the text of token ids."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    question = TokenTexts((tuple(body.tokens),))
    try:
        decoded = await gateway.inspect(principal, card(gateway.models, body.model).id, question)
    except BadInput as error:
        if error.param == "prompt":  # its name at the other endpoints
            error.param = "tokens"
        raise
    assert isinstance(decoded, DecodedTexts)
    return JsonResponse({"prompt": decoded.texts[0]})


@routes.get("/tokenizer_info", response_model=None, responses=answers(TokenizerCard))
async def tokenizer_info(request: Request, model: str | None = None) -> Response:
    """Describes a model's tokenizer and chat template. `model` is a name; without it, the default model is meant."""
    gateway, principal = gateway_of(request), principal_of(request, "chat")
    shown = card(gateway.models, model)
    tokenizer = await gateway.inspect(principal, shown.id, AboutTokenizer())
    assert isinstance(tokenizer, TokenizerInfo)
    return JsonResponse(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shown.context_window,
            "vocab_size": tokenizer.vocabulary_size,
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "pad_token": None,
            "chat_template": tokenizer.chat_template,
        }
    )


def prompt_messages(units: Sequence[Unit], *, images: bool) -> tuple[PromptMessage, ...]:
    """Returns messages as chat templates read them: an assistant's text and its tool calls are one message. `images`:
    whether the model sees them."""
    messages = []
    names: dict[str, str] = {}
    for unit in units:
        calls = tuple((each.call_id, each.name, each.arguments) for each in unit.items if isinstance(each, cm.NewCall))
        names |= {call_id: name for call_id, name, _ in calls}
        for item in unit.items:
            match item:
                case cm.NewOutput():
                    name = names.get(item.call_id)
                    messages.append(PromptMessage(role="tool", text=item.output, call_id=item.call_id, name=name))
                case cm.NewMessage():
                    text = prompt_text(cm.content_parts(item.content), sees=images)
                    message = PromptMessage(role=item.role, text=text, calls=calls, names_images=images)
                    messages.append(message)
        if calls and not any(isinstance(item, cm.NewMessage) for item in unit.items):
            messages.append(PromptMessage(role="assistant", text="", calls=calls))
    return tuple(messages)
