"""Writes docs/openai.md: every parameter of OpenAI's doors, and what happens to it.

python deploy/openai_page.py

The properties are those of the OpenAPI document that the server serves; what happens to each is said here, beside the
test that shows it. Parameters whose effect a test can see in one answer have a `sample`, and one test sends them all
(tests/integration/openai/test_parameter_table.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script its own folder alone is there

from fastapi import FastAPI

from sessions.model.types import Json
from transport.http_api.routes import chat, conversations, files, models, responses, texts
from transport.http_api.routes import embeddings as embedding_routes
from transport.http_api.routes import vector_stores as vector_store_routes

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "openai.md"
ROUTERS: Final = (
    *(each.routes for each in (chat, responses, conversations, texts, models, files)),
    *(each.routes for each in (embedding_routes, vector_store_routes)),
)
PREFIXES: Final = (
    *("/v1/chat", "/v1/completions", "/v1/responses", "/v1/conversations", "/v1/embeddings", "/v1/moderations"),
    *("/v1/models", "/v1/files", "/v1/vector_stores"),
)
NONE: Final = "nothing to send"
Effect = Literal["honoured", "refused", "warned", "needs nothing"]


class Row(NamedTuple):
    """The fate of one parameter. `sample`: a value that shows it; `named`: how the error or the Warning names it;
    `beside`: what else the request then needs."""

    effect: Effect
    about: str
    test: str = "test_parameter_table.py::test_one_answer_shows_what_happens"
    sample: Any = NONE
    named: str = ""
    beside: dict[str, Json] = {}  # noqa: RUF012 - never changed


def honoured(about: str, test: str) -> Row:
    return Row("honoured", about, test)


def engine(about: str, sample: Any, **beside: Json) -> Row:
    test = "test_parameter_table.py::test_what_is_drawn_otherwise_reaches_the_engine"
    return Row("honoured", about, test, sample, beside=beside)


def refused(about: str, sample: Any, named: str = "", **beside: Json) -> Row:
    return Row("refused", about, sample=sample, named=named, beside=beside)


def warned(about: str, sample: Any, named: str = "", **beside: Json) -> Row:
    return Row("warned", about, sample=sample, named=named, beside=beside)


def needless(about: str, sample: Any, **beside: Json) -> Row:
    return Row("needs nothing", about, sample=sample, beside=beside)


CHAT: Final = "test_chat.py::"
SDKS: Final = "test_sdks.py::"
TOOLS: Final = "test_chat.py::"
RESPONSES: Final = "responses/test_responses.py::"
COMPLETIONS: Final = "test_chat.py::"
WINDOW: Final = "test_context_window.py::"
MCP: Final = "responses/test_mcp_tools.py::"
MCP_READ: Final = "tests/unit/transport/openai/test_requests.py::test_which_tools_and_who_is_asked"
STORES: Final = "test_vector_stores.py::"
FILES: Final = "tests/integration/transport/test_files.py::"
IMAGES: Final = "tests/integration/transport/test_files.py::"
FORMS: Final = "tests/unit/transport/http_api/test_routes.py::"
PARSED: Final = "tests/unit/transport/openai/test_parse_request.py::"
WEATHER: Final[dict[str, Json]] = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
NOT_HERE: Final = "unsupported"

SAMPLING: Final[dict[str, Row]] = {
    "temperature": engine("0 to 2", 0.5),
    "top_p": engine("0 takes the most likely token", 0.5),
    "top_k": engine("llama.cpp's and vLLM's; -1: all", 5),
    "min_p": engine("llama.cpp's and vLLM's; refused by name where the engine has none", 0.1),
    "frequency_penalty": engine("", 0.5),
    "presence_penalty": engine("", 0.5),
    "repeat_penalty": engine("llama.cpp's name", 1.1),
    "repetition_penalty": engine("vLLM's name of `repeat_penalty`", 1.1),
    "ignore_eos": engine("the answer goes on to its limit", True),
    "min_tokens": engine("the answer may not end before", 5),
    "stop_token_ids": engine("", [7]),
    "seed": engine("-1: drawn anew", 42),
    "top_logprobs": engine("up to 20; in chat with `logprobs`", 3, logprobs=True),
    "parallel_tool_calls": engine("false: one call an answer", False),
    "stop": honoured("up to 16 texts", CHAT + "test_limits_and_stops_end_an_answer_as_they_should"),
    "stream": honoured("server-sent events", SDKS + "test_a_stream_says_what_the_whole_answer_says"),
    "metadata": honoured(
        "stands in the session's log; Responses show it",
        "test_parameter_table.py::test_metadata_stands_in_the_log",
    ),
    "user": honoured(
        "users of one key share no session and no KV",
        "test_sessions.py::test_interleaved_turns_of_two_users_stay_apart",
    ),
    "safety_identifier": honoured(
        "as `user`, where that is not there", "test_parameter_table.py::test_a_safety_identifier_is_a_user"
    ),
    "prompt_cache_key": needless("the history finds its session and KV", "a"),
    "prompt_cache_retention": needless("KV stays as long as there is room", "24h"),
    "prompt_cache_options": needless("likewise", {"a": 1}),
    "service_tier": warned("answers name the tier `default`", "priority"),
    "client_metadata": needless("a client's own note; Codex sends it", {"a": "b"}),
}

ROWS: Final[dict[str, dict[str, Row]]] = {
    "ChatRequest": {
        **SAMPLING,
        "model": honoured("a model of /v1/models", CHAT + "test_bad_input_is_told_as_openai_does"),
        "messages": honoured("", SDKS + "test_a_history_that_is_resent_is_reused"),
        "tools": honoured(
            "unknown kinds are named in a `Warning`", TOOLS + "test_a_call_and_its_output_stay_in_one_session"
        ),
        "tool_choice": honoured("", TOOLS + "test_a_call_that_must_be_made"),
        "response_format": honoured("held to by a grammar", TOOLS + "test_structured_output_reaches_the_engine"),
        "max_tokens": engine("a bound; nothing is reserved", 5),
        "max_completion_tokens": engine("the same", 5),
        "n": honoured("up to 16", CHAT + "test_several_choices_share_their_question"),
        "logit_bias": engine("by token id", {"7": 1.0}),
        "logprobs": engine("", True),
        "stream_options": honoured("", SDKS + "test_a_stream_says_what_the_whole_answer_says"),
        "modalities": needless("text alone; others are refused", ["text"]),
        "reasoning_effort": warned("`none` switches thoughts off; gpt-oss knows `low`, `medium`, `high`", "high"),
        "chat_template_kwargs": honoured(
            "`enable_thinking`", "test_thoughts.py::test_what_a_request_sets_of_thoughts_is_done_or_named"
        ),
        "thinking_token_budget": honoured("", "test_thoughts.py::test_a_thought_is_closed_where_its_budget_is_spent"),
        "verbosity": warned(NOT_HERE, "low"),
        "store": warned("chats are kept for 24 h and listed nowhere", True),
        "continue_final_message": honoured(
            "vLLM's", CHAT + "test_an_answer_goes_on_with_the_words_of_the_last_message"
        ),
        "add_generation_prompt": honoured("with it", CHAT + "test_what_cannot_be_gone_on_with_is_refused"),
        "truncation": honoured(
            "`auto`: the oldest turns may be left out",
            WINDOW + "test_where_truncation_is_requested_the_answer_says_what_is_left_out",
        ),
        "audio": refused(NOT_HERE, {"voice": "alloy", "format": "wav"}),
        "function_call": refused("the old name of `tool_choice`", "auto"),
        "functions": refused("the old name of `tools`", [WEATHER]),
        "moderation": refused("a tenant's policy says it", {"model": "x"}),
        "prediction": refused(NOT_HERE, {"type": "content", "content": "x"}),
        "web_search_options": refused(NOT_HERE, {}),
    },
    "CompletionRequest": {
        **SAMPLING,
        "top_logprobs": refused("`logprobs` is the number", 3),
        "parallel_tool_calls": warned("there are no calls", False),
        "stop": engine("up to 16 texts", ["x"]),
        "model": honoured("", COMPLETIONS + "test_what_is_not_served_is_refused"),
        "prompt": honoured("texts or token ids", COMPLETIONS + "test_token_ids_are_the_prompt_as_they_are"),
        "max_tokens": honoured("0 scores the prompt", COMPLETIONS + "test_no_token_is_wanted_and_none_is_written"),
        "n": honoured("", COMPLETIONS + "test_several_prompts_and_choices_have_their_places"),
        "best_of": refused("other than `n`", 3),
        "echo": honoured("", COMPLETIONS + "test_a_stream_says_what_the_whole_says"),
        "logprobs": honoured("a number", "test_logprobs.py::test_completions_have_them_with_their_places"),
        "logit_bias": engine("by token id", {"7": 1.0}),
        "stream_options": honoured("", "test_parameters.py::test_each_chunk_has_the_usage_so_far"),
        "suffix": refused(NOT_HERE, "x"),
    },
    "ResponsesRequest": {
        **SAMPLING,
        "top_logprobs": warned("counts with `include: [message.output_text.logprobs]`", 3),
        "stop": engine("not OpenAI's here; up to 16 texts", ["x"]),
        "model": honoured("", RESPONSES + "test_bad_input"),
        "input": honoured("", SDKS + "test_a_response_is_kept_streamed_and_erased"),
        "instructions": honoured(
            "", RESPONSES + "test_a_response_of_a_conversation_shows_the_instructions_and_tools_in_force"
        ),
        "previous_response_id": honoured("", SDKS + "test_a_response_is_kept_streamed_and_erased"),
        "conversation": honoured("", SDKS + "test_a_conversation"),
        "background": honoured("", SDKS + "test_a_background_response_is_resumed_and_cancelled"),
        "store": honoured("", RESPONSES + "test_what_is_not_stored_is_not_shown_again"),
        "tools": honoured(
            "unknown kinds are named in a `Warning`",
            TOOLS + "test_an_agents_functions_work_beside_tools_that_nobody_here_carries_out",
        ),
        "tool_choice": honoured("", TOOLS + "test_a_call_that_must_be_made"),
        "text": honoured("`format`", "test_thoughts.py::test_a_call_comes_in_the_place_of_an_answer_in_a_format"),
        "max_output_tokens": engine("a bound; nothing is reserved", 5),
        "include": warned(
            "`message.output_text.logprobs` is honoured; outputs of code and searches are always there; others not",
            ["reasoning.encrypted_content"],
            "include (reasoning.encrypted_content)",
        ),
        "stream_options": warned("see below", {"include_obfuscation": True}, "stream_options.include_obfuscation"),
        "truncation": honoured("", WINDOW + "test_where_truncation_is_requested_the_answer_says_what_is_left_out"),
        "context_management": honoured(
            "", "responses/test_responses.py::test_context_management_has_its_conversation_compacted"
        ),
        "reasoning": warned(
            "`effort: none` switches thoughts off, gpt-oss has degrees; `summary`, other efforts and fields are named",
            {"summary": "auto"},
            "reasoning.summary",
        ),
        "max_tool_calls": honoured(
            "of calls that the server carries out; further ones are answered with an error, and not made",
            "test_server_tools.py::test_no_more_calls_are_made_than_a_request_allows",
        ),
        "access_programs": refused(NOT_HERE, []),
        "image": refused(NOT_HERE, {}),
        "moderation": refused("a tenant's policy says it", {"model": "x"}),
        "prompt": refused(NOT_HERE, {"id": "pmpt_1"}),
    },
    "InputTokensRequest": {
        "model": honoured("", "test_sessions.py::test_input_tokens_are_those_of_the_response"),
        "input": honoured("", "test_sessions.py::test_input_tokens_are_those_of_the_response"),
        "instructions": honoured("", "test_sessions.py::test_input_tokens_are_those_of_the_response"),
        "previous_response_id": honoured("", "test_sessions.py::test_input_tokens_are_those_of_the_response"),
        "conversation": honoured("", "test_sessions.py::test_input_tokens_are_those_of_the_response"),
        "tools": honoured("", "test_sessions.py::test_input_tokens_are_those_of_the_response"),
        "tool_choice": needless("changes no token of a prompt", "auto"),
        "text": warned("what a format costs is not counted", {"format": {"type": "text"}}),
        "parallel_tool_calls": needless("changes no token of a prompt", False),
        "reasoning": warned("what thoughts cost is not counted", {"effort": "none"}),
        "truncation": needless("what is counted is the whole prompt", "auto"),
        "personality": refused(NOT_HERE, "friendly"),
    },
    "CompactRequest": {
        "model": honoured("", "responses/test_responses.py::test_a_history_is_compacted_where_it_lies"),
        "input": honoured("", "responses/test_responses.py::test_a_history_is_compacted_where_it_lies"),
        "instructions": honoured(
            "part of the history; behind a `previous_response_id` named in a `Warning`",
            "responses/test_responses.py::test_a_history_is_compacted_where_it_lies",
        ),
        "previous_response_id": honoured(
            "", "responses/test_responses.py::test_a_conversation_is_compacted_and_goes_on_behind_the_item"
        ),
        "prompt_cache_key": needless("the history finds its session and KV", "a"),
        "prompt_cache_retention": needless("KV stays as long as there is room", "24h"),
        "service_tier": warned("there is one tier", "flex"),
        "client_metadata": needless("a client's own note", {"a": "b"}),
        "image": refused(NOT_HERE, {}),
        "prompt_cache_options": refused("", {"a": 1}),
    },
    "SteerRequest": {
        "input": honoured("", "responses/test_responses_socket.py::test_http_steers_what_any_door_began"),
    },
    "ConversationCreate": {
        "items": honoured("", SDKS + "test_a_conversation"),
        "metadata": honoured("", SDKS + "test_a_conversation"),
    },
    "ConversationUpdate": {"metadata": honoured("", SDKS + "test_a_conversation")},
    "ItemsCreate": {
        "items": honoured("", "test_parameter_table.py::test_items_are_laid_below_a_conversation"),
    },
    "EmbeddingsRequest": {
        "model": honoured("", "test_embeddings.py::test_wrong_requests_are_refused"),
        "input": honoured("texts or token ids", "test_embeddings.py::test_token_ids_are_taken_and_judged"),
        "encoding_format": honoured("", "test_embeddings.py::test_openais_client_gets_vectors_in_both_encodings"),
        "dimensions": honoured("", "test_embeddings.py::test_wrong_requests_are_refused"),
        "user": warned("vectors are the same for everybody", "somebody"),
    },
    "ModerationRequest": {
        "model": warned("the detectors are the policy's, which `model` of the answer names", "omni-moderation-latest"),
        "input": honoured("texts", "test_sessions.py::test_moderations_are_what_the_policy_finds"),
    },
    "NewVectorStore": {
        "name": honoured("", STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store"),
        "metadata": honoured("", STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store"),
        "embedding_model": honoured("not OpenAI's", STORES + "test_what_is_wrong_is_said"),
        "chunking_strategy": honoured("of `file_ids`", STORES + "test_uploaded_files_are_put_into_stores_by_their_ids"),
        "description": refused(NOT_HERE, "x"),
        "expires_after": refused(NOT_HERE, {"anchor": "last_active_at", "days": 1}),
        "file_ids": honoured("up to 500", STORES + "test_uploaded_files_are_put_into_stores_by_their_ids"),
    },
    "VectorStoreChange": {
        "name": honoured("", STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store"),
        "metadata": honoured("", STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store"),
        "expires_after": refused(NOT_HERE, {"anchor": "last_active_at", "days": 1}),
    },
    "StoreSearch": {
        name: honoured("", STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store")
        for name in ("query", "filters", "max_num_results", "ranking_options")
    }
    | {"rewrite_query": refused("false alone: a query is asked as it is", True)},
    "NewStoreFile": {
        "text": honoured(
            "not OpenAI's: in the place of `file_id`", STORES + "test_a_passages_place_is_where_it_stands"
        ),
        "filename": honoured("not OpenAI's", STORES + "test_a_passages_place_is_where_it_stands"),
        "attributes": honoured("", STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store"),
        "chunking_strategy": honoured("", STORES + "test_a_passages_place_is_where_it_stands"),
        "file_id": honoured("", STORES + "test_uploaded_files_are_put_into_stores_by_their_ids"),
    },
    "StoreFileChange": {
        "attributes": honoured("", STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store"),
    },
    "NewFileBatch": {
        "files": honoured("up to 500, each with its own attributes", STORES + "test_a_batch_of_documents"),
        "attributes": honoured("of `file_ids`", STORES + "test_uploaded_files_are_put_into_stores_by_their_ids"),
        "chunking_strategy": honoured("of `file_ids`", STORES + "test_uploaded_files_are_put_into_stores_by_their_ids"),
        "file_ids": honoured("up to 500", STORES + "test_uploaded_files_are_put_into_stores_by_their_ids"),
    },
    "POST /v1/files": {
        "file": honoured("", FILES + "test_a_file_is_stored_listed_read_and_deleted"),
        "purpose": honoured("", FILES + "test_a_file_is_stored_listed_read_and_deleted"),
        "expires_after[anchor]": honoured("", FORMS + "test_what_a_form_says"),
        "expires_after[seconds]": honoured("", FORMS + "test_what_a_form_says"),
    },
}
"""The fates of the properties of each request, by the name of its schema."""

_PARTS: Final = (
    "tests/unit/transport/openai/test_requests.py::test_parts_that_are_nothing_but_text_are_read_as_their_text"
)
_FOREIGN: Final = TOOLS + "test_an_agents_functions_work_beside_tools_that_nobody_here_carries_out"
_CALLS: Final = TOOLS + "test_a_call_and_its_output_stay_in_one_session"
_FILES: Final = FILES + "test_a_file_in_a_response_is_read_by_the_model_and_judged_before"
_ITEMS: Final = PARSED + "test_the_input_of_a_response_lays_calls_below_their_answer"
_SEARCHED: Final = "test_openais_file_search_searches_the_named_stores_and_its_item_has_what_was_found"
_CHUNKS: Final = STORES + "test_a_passages_place_is_where_it_stands"
_TOOLS_FILE: Final = "test_parameter_table.py::test_what_the_tools_file_says_is_named"
_INSIDE: Final = "test_parameter_table.py::test_what_is_inside_is_named"
_FUNCTION: Final[dict[str, Row]] = {
    "name": honoured("", _CALLS),
    "description": honoured("shown to the model", _CALLS),
    "parameters": honoured("shown to the model", _CALLS),
    "strict": honoured(
        "the arguments fit `parameters`",
        TOOLS + "test_a_strict_function_gets_arguments_that_fit_though_the_model_chose_freely",
    ),
    "server": honoured(
        "one of the server's own, which says the rest",
        "test_server_tools.py::test_a_call_its_output_and_the_words_behind_it_are_one_answer",
    ),
}
_STREAM_OPTIONS: Final[dict[str, Row]] = {
    "include_usage": honoured("Responses always end with it", SDKS + "test_a_stream_says_what_the_whole_answer_says"),
    "include_obfuscation": Row("warned", "nothing is padded here", _INSIDE),
}
_SCHEMA: Final[dict[str, Row]] = {
    "type": honoured("", TOOLS + "test_structured_output_reaches_the_engine"),
    "name": honoured("", PARSED + "test_a_response_format_needs_a_name_and_a_schema"),
    "description": Row("warned", "the model is not told of a format", _INSIDE),
    "schema": honoured("", TOOLS + "test_structured_output_reaches_the_engine"),
    "strict": needless("a grammar always holds", True),
}
INSIDE: Final[dict[str, dict[str, Row]]] = {
    "ChatMessageParam": {
        "role": honoured("", CHAT + "test_bad_input_is_told_as_openai_does"),
        "content": honoured("text, parts, files, images", _PARTS),
        "name": Row("warned", "no template is told of it; of a `tool` message it needs nothing", _INSIDE),
        "refusal": honoured("the answer that it was", PARSED + "test_a_refusal_in_a_history_is_the_answer_that_it_was"),
        "tool_calls": honoured("", _CALLS),
        "tool_call_id": honoured("", _CALLS),
        "prefix": honoured("DeepSeek's", CHAT + "test_an_answer_goes_on_with_the_words_of_the_last_message"),
    },
    "ContentPart": {
        "type": honoured("text, refusals, files, images; thoughts are left out, others refused", _PARTS),
        "text": honoured("", _PARTS),
        "refusal": honoured("", PARSED + "test_a_refusal_in_a_history_is_the_answer_that_it_was"),
        "file_id": honoured("", _FILES),
        "filename": honoured("", FILES + "test_bytes_in_the_message_itself"),
        "file_data": honoured("", FILES + "test_bytes_in_the_message_itself"),
        "file": honoured("", FILES + "test_chat_completions_find_a_history_with_files_again"),
        "image_url": honoured(
            "models that see", IMAGES + "test_an_answer_depends_on_the_image_and_models_say_that_they_see"
        ),
        "detail": honoured("`low`: 512 pixels at most", IMAGES + "test_low_detail_makes_an_image_small"),
    },
    "ImageUrl": {
        "url": honoured(
            "`data:`; `https:` by `--image-hosts`",
            IMAGES + "test_an_answer_depends_on_the_image_and_models_say_that_they_see",
        ),
        "detail": honoured("`low`: 512 pixels at most", IMAGES + "test_low_detail_makes_an_image_small"),
    },
    "FilePart": {
        "file_id": honoured("", FILES + "test_chat_completions_find_a_history_with_files_again"),
        "filename": honoured("", FILES + "test_bytes_in_the_message_itself"),
        "file_data": honoured("", FILES + "test_bytes_in_the_message_itself"),
    },
    "ChatCall": dict.fromkeys(("id", "type", "function"), honoured("", _CALLS)),
    "ChatCallFunction": dict.fromkeys(("name", "arguments"), honoured("", _CALLS)),
    "ChatTool": dict.fromkeys(("type", "function"), honoured("", _CALLS)),
    "ChatFunction": _FUNCTION,
    "FunctionTool": {
        **_FUNCTION,
        "type": honoured("", RESPONSES + "test_a_call_that_is_named_takes_its_output"),
        "container": honoured("`auto`", "test_code_tools.py::test_code_runs_and_its_item_has_what_came_of_it"),
    },
    "CodeContainer": {
        "type": honoured("", "test_code_tools.py::test_code_runs_and_its_item_has_what_came_of_it"),
        "file_ids": honoured(
            "up to 50", "test_code_files.py::test_files_of_the_container_and_of_messages_are_in_the_folder"
        ),
        "memory_limit": Row("warned", "the tools file says it", _TOOLS_FILE),
    },
    "McpToolParam": {
        "type": honoured("", MCP + "test_the_mcp_tool_type_lists_calls_and_shows_as_openai_does"),
        "server_label": honoured("", MCP + "test_the_mcp_tool_type_lists_calls_and_shows_as_openai_does"),
        "server_description": Row("warned", "the server says it", _TOOLS_FILE),
        **dict.fromkeys(
            ("server_url", "connector_id", "authorization", "headers"),
            Row("refused", "the tools file says it", MCP + "test_what_no_client_may_name_is_refused"),
        ),
        "allowed_tools": honoured("", MCP + "test_the_mcp_tool_type_lists_calls_and_shows_as_openai_does"),
        "require_approval": honoured("", MCP + "test_an_approval_is_asked_for_and_answered_as_openai_has_it"),
    },
    "FileSearchTool": {
        "type": honoured("", STORES + _SEARCHED),
        "vector_store_ids": honoured("", STORES + _SEARCHED),
        "max_num_results": honoured("", STORES + _SEARCHED),
        "filters": honoured("", STORES + _SEARCHED),
        "ranking_options": honoured("`score_threshold`", STORES + _SEARCHED),
    },
    "SearchRankingOptions": {
        "ranker": honoured("`auto`", STORES + _SEARCHED),
        "score_threshold": honoured("", STORES + _SEARCHED),
    },
    "McpToolFilter": {
        "tool_names": honoured("", MCP + "test_the_mcp_tool_type_lists_calls_and_shows_as_openai_does"),
        "read_only": honoured("in `allowed_tools`; refused in `require_approval`", MCP_READ),
    },
    "McpApprovalFilter": dict.fromkeys(
        ("always", "never"), honoured("", MCP + "test_an_approval_is_asked_for_and_answered_as_openai_has_it")
    ),
    "OtherTool": {"type": Row("warned", NOT_HERE, _FOREIGN)},
    "ChatToolChoice": dict.fromkeys(("type", "function"), honoured("", TOOLS + "test_a_call_that_must_be_made")),
    "FunctionChoice": dict.fromkeys(("type", "name"), honoured("", TOOLS + "test_a_call_that_must_be_made")),
    "NamedFunction": {"name": honoured("", TOOLS + "test_a_call_that_must_be_made")},
    "OtherChoice": {"type": Row("refused", NOT_HERE, _FOREIGN)},
    "ResponseFormat": dict.fromkeys(
        ("type", "json_schema"), honoured("", TOOLS + "test_structured_output_reaches_the_engine")
    ),
    "JsonSchema": {name: row for name, row in _SCHEMA.items() if name != "type"},
    "TextConfig": {
        "format": honoured("", "test_thoughts.py::test_a_call_comes_in_the_place_of_an_answer_in_a_format"),
        "verbosity": Row("warned", NOT_HERE, _INSIDE),
    },
    "TextFormat": _SCHEMA,
    "StreamOptions": _STREAM_OPTIONS,
    "ChatStreamOptions": {
        **_STREAM_OPTIONS,
        "continuous_usage_stats": honoured("vLLM's", "test_parameters.py::test_each_chunk_has_the_usage_so_far"),
    },
    "TemplateVariables": dict.fromkeys(
        ("enable_thinking", "thinking"),
        honoured("", "test_thoughts.py::test_what_a_request_sets_of_thoughts_is_done_or_named"),
    ),
    "ModerationPart": dict.fromkeys(
        ("type", "text"), honoured("", "test_sessions.py::test_moderations_are_what_the_policy_finds")
    ),
    "InputItem": {
        "type": honoured("unknown kinds are named in a `Warning`", _ITEMS),
        "id": honoured(
            "of an `item_reference`; other items get ids of this log",
            "responses/test_responses.py::test_a_history_that_names_its_answers_goes_on_where_they_are",
        ),
        **dict.fromkeys(("role", "content", "call_id", "name", "arguments", "output"), honoured("", _ITEMS)),
        "encrypted_content": honoured(
            "of a compaction; of reasoning it is left out",
            "responses/test_responses.py::test_a_conversation_is_compacted_and_goes_on_behind_the_item",
        ),
        **dict.fromkeys(
            ("code", "outputs"),
            honoured("", "test_code_tools.py::test_code_runs_and_its_item_has_what_came_of_it"),
        ),
        **dict.fromkeys(("queries", "results", "skipped", "reasons"), honoured("", STORES + _SEARCHED)),
        **dict.fromkeys(
            ("approval_request_id", "approve"),
            honoured("", MCP + "test_an_approval_is_asked_for_and_answered_as_openai_has_it"),
        ),
    },
    "CodeOutput": dict.fromkeys(
        ("type", "logs"), honoured("", "test_code_tools.py::test_code_runs_and_its_item_has_what_came_of_it")
    ),
    "ConversationRef": {"id": honoured("", SDKS + "test_a_conversation")},
    "ContextManagement": dict.fromkeys(
        ("type", "compact_threshold"),
        honoured("", "responses/test_responses.py::test_context_management_has_its_conversation_compacted"),
    ),
    "SteerMessage": dict.fromkeys(
        ("type", "role", "content"),
        honoured("", "responses/test_responses_socket.py::test_http_steers_what_any_door_began"),
    ),
    "RankingOptions": {
        "ranker": honoured("", _CHUNKS),
        "score_threshold": honoured("", "test_parameter_table.py::test_a_score_that_is_too_low_finds_nothing"),
    },
    "AutoChunking": {"type": honoured("", _CHUNKS)},
    "StaticChunking": dict.fromkeys(("type", "static"), honoured("", _CHUNKS)),
    "StaticChunks": dict.fromkeys(("max_chunk_size_tokens", "chunk_overlap_tokens"), honoured("", _CHUNKS)),
}
"""The fates of the properties of the objects in requests."""

_ITEM_LISTS: Final = "test_logprobs.py::test_items_of_a_conversation_have_them_on_request"
_OTHERS: Final = "all but log probabilities"
_STORE_LISTS: Final = STORES + "test_openais_client_makes_fills_searches_and_deletes_a_store"
_FILE_LISTS: Final = STORES + "test_pages_go_on_behind_their_last_row_in_either_order"
QUERY: Final[dict[str, dict[str, Row]]] = {
    "/v1/responses/{response_id}": {
        "stream": honoured("", SDKS + "test_a_background_response_is_resumed_and_cancelled"),
        "starting_after": honoured("", SDKS + "test_a_background_response_is_resumed_and_cancelled"),
        **dict.fromkeys(
            ("include", "include[]"),
            warned(_OTHERS, "web_search_call.results", "include (web_search_call.results)"),
        ),
        "include_obfuscation": warned("nothing is padded here", "true"),
    },
    "/v1/responses/{response_id}/input_items": {
        **dict.fromkeys(("limit", "order", "after"), honoured("", SDKS + "test_a_conversation")),
        **dict.fromkeys(("include", "include[]"), warned(_OTHERS, "x", "include (x)")),
    },
    "/v1/conversations/{conversation}/items": {
        **dict.fromkeys(("limit", "order", "after"), honoured("", SDKS + "test_a_conversation")),
        **dict.fromkeys(("include", "include[]"), Row("warned", _OTHERS, _ITEM_LISTS)),
    },
    "/v1/conversations/{conversation}/items/{item_id}": dict.fromkeys(
        ("include", "include[]"), Row("warned", _OTHERS, _ITEM_LISTS)
    ),
    "/v1/files": dict.fromkeys(("purpose", "limit", "order", "after"), honoured("", FILES + "test_lists_are_paged")),
    "/v1/vector_stores": {
        **dict.fromkeys(("limit", "order", "after"), honoured("", _STORE_LISTS)),
        "before": warned(NOT_HERE, "x"),
    },
    **{
        path: {
            **dict.fromkeys(("limit", "order", "after", "filter"), honoured("", _FILE_LISTS)),
            "before": Row("warned", NOT_HERE, _FILE_LISTS),
        }
        for path in (
            "/v1/vector_stores/{store_id}/files",
            "/v1/vector_stores/{store_id}/file_batches/{batch_id}/files",
        )
    },
}
"""The fates of the parameters of queries, by path."""


def document() -> dict[str, Any]:
    """Returns the part of the server's OpenAPI document that has OpenAI's doors."""
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router)
    made = app.openapi()
    paths = {path: operations for path, operations in made["paths"].items() if path.startswith(PREFIXES)}
    return {**made, "paths": paths}


def requests(given: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yields of each request its door, the name of its schema and its properties."""
    for path, operations in given["paths"].items():
        for method, operation in operations.items():
            door = f"{method.upper()} {path}"
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schema = content["schema"]
                name = _name(schema.get("anyOf", [schema])[0]) or door
                yield door, name, given["components"]["schemas"].get(name, schema)["properties"]


def inner(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the properties of the objects in requests, by the names of their schemas."""
    schemas = given["components"]["schemas"]
    top = [name for _, name, _ in requests(given)]
    found: dict[str, dict[str, Any]] = {}
    bodies = [given["paths"][door.split()[1]][door.split()[0].lower()]["requestBody"] for door, _, _ in requests(given)]
    pending: list[Any] = bodies
    while pending:
        at = pending.pop(0)
        if isinstance(at, list):
            pending += at
        elif isinstance(at, dict):
            name = _name(at)
            if not name:
                pending += at.values()
            elif name not in found:
                found[name] = schemas[name].get("properties", {})
                pending.append(schemas[name])
    return {name: properties for name, properties in found.items() if name not in top}


def queries(given: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the parameters of queries, by path."""
    found: dict[str, list[str]] = {}
    for path, operations in given["paths"].items():
        for operation in operations.values():
            names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            if names:
                known = found.setdefault(path, [])
                known += [name for name in names if name not in known]
    return found


def _name(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


OPENING: Final = """\
# OpenAI's API, parameter by parameter

Made by `python deploy/openai_page.py`, which names a test for each row.

| word | means |
|---|---|
| honoured, or none of these words | it does what its name says |
| refused | a 400 that names it |
| warned | the answer comes without it; the header `Warning` names it: `299 - "Parameters were ignored: store"` |
| needs nothing | it happens anyway, or is a client's own note (as is each `x_...`) |

`As above`: as in the first section that has it. `null` is as if absent. Others, in queries too, are refused
(`unknown_parameter`); with `--unknown-parameters ignore` they are warned, as are those that an engine lacks.
"""


COMMON: Final = "Common parameters"
"""The heading of the parameters of chat completions, completions and responses."""

LISTED_MAX: Final = 4
"""The number of parameters of a section up to which they are a list; more are a table."""


def page_text() -> str:
    """Returns the whole page."""
    given, shown, above = document(), set[str](), dict(SAMPLING)
    parts = [OPENING, f"\n## {COMMON}\n\n", _section(SAMPLING, {})]
    for door, name, _ in requests(given):
        parts.append(f"\n## `{door}`\n\n")
        if name in shown:
            parts.append(f"As `{name}` above.\n")
            continue
        shown.add(name)
        own = ROWS[name]
        if SAMPLING.keys() <= own.keys():
            parts.append("[Common parameters](#common-parameters), and:\n\n")
            own = {field: row for field, row in own.items() if _shown(row) != _shown(SAMPLING.get(field))}
        parts.append(_section(own, above))
        above = ROWS[name] | above
    parts.append(_chapter("Objects inside", {name: INSIDE[name] for name in inner(given)}))
    parts.append(_chapter("Queries", {f"`{path}`": QUERY[path] for path in queries(given)}))
    return "".join(parts)


def _chapter(title: str, tables: dict[str, dict[str, Row]]) -> str:
    """Returns a section for each table, and a list of those whose rows are all plainly honoured."""
    plain = [name for name, rows in tables.items() if all(_shown(row) == ("honoured", "") for row in rows.values())]
    lists = [f"* {name}: {', '.join(f'`{field}`' for field in tables[name])}\n" for name in plain]
    sections, above = list[str](), dict[str, Row]()
    for name, rows in tables.items():
        if name not in plain:
            sections.append(f"\n### {name}\n\n{_section(rows, above)}")
            above = rows | above
    return "".join([f"\n## {title}\n\nHonoured as a whole:\n\n", *lists, *sections])


def _section(rows: dict[str, Row], above: dict[str, Row]) -> str:
    """Returns two lists of names, of plainly honoured ones and of those as `above`, and a table of the others."""
    plain = [name for name, row in rows.items() if row.effect == "honoured" and not row.about]
    same = [name for name, row in rows.items() if name not in plain and _shown(row) == _shown(above.get(name))]
    alike: dict[tuple[str, str], list[str]] = {}
    for name, row in rows.items():
        if name not in {*plain, *same}:
            alike.setdefault((row.effect, row.about), []).append(f"`{name}`")
    fates = [(", ".join(names), effect, about) for (effect, about), names in alike.items()]
    parts = [
        f"{label}: {', '.join(f'`{name}`' for name in names)}.\n"
        for label, names in (("Honoured", plain), ("As above", same))
        if names
    ]
    if len(fates) > LISTED_MAX:
        lines = [f"| {names} | {_fate(effect, about)} |\n" for names, effect, about in fates]
        parts.append("".join(["| parameter | what happens |\n|---|---|\n", *lines]))
    elif fates:
        signs = {"honoured": ":"}
        parts.append("".join(f"* {each[0]}{signs.get(each[1], '')} {_fate(*each[1:])}\n" for each in fates))
    return "\n".join(parts)


def _fate(effect: str, about: str) -> str:
    """Returns what happens to a parameter, as the page says it."""
    return about if effect == "honoured" else f"{effect}: {about}" if about else effect


def _shown(row: Row | None) -> tuple[str, str] | None:
    return (row.effect, row.about) if row else None


if __name__ == "__main__":
    PAGE.write_text(page_text())
