"""What a server is told of a run, and how what it says of it is read: vLLM's completions, llama-server's.

Both take the prompt as token ids and name the ids that they decoded. vLLM does so from version 0.10.2 on
(`return_token_ids`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from inference.chat_template import ChatTemplate, template_beside, template_source
from inference.http_client import SseReader
from inference.llama.completion import CompletionEvent, completion_error, read_event
from inference.llama.gguf import read_model
from inference.llama.sampling import STOP_TOKENS, completion_parameters
from inference.llama.tokenizer import LlamaTokenizer
from inference.llama.vocabulary import read_vocabulary
from inference.remote.options import RemoteOptions
from inference.remote.pool import RemotePool, RemoteServer
from inference.sampling import HONOURED, direct_parameters, output_schema, token_biases, unfit_continuation
from inference.template_tokenizer import TemplateTokenizer
from inference.vllm.model_folder import read_vllm_model
from inference.vllm.tokenizer import VllmTokenizer, read_tokenizer
from sessions.model.errors import BadInput, Internal, Overloaded, SessileError, Unavailable
from sessions.model.generation import GenerationRequest
from sessions.model.types import Json
