"""Chat templates of model families, written for these tests after the families' rules: none is copied.

Each keeps what makes its family's prompts hard: what it refuses, what it rewrites, where it puts tools.
"""

from __future__ import annotations

from typing import Final

from tests.support.engines.later_templates import LATER_FAMILIES

_ASKED: Final = "{%- if add_generation_prompt -%}"


def _tagged(before: str, after: str, asked: str, *, head: str = "", role: str = "message.role") -> str:
    """A family that writes every message between two tags."""
    return (
        f"{head}{{%- for message in messages -%}}{{{{- '{before}'.replace('ROLE', {role}) + message.content"
        f" + '{after}' -}}}}{{%- endfor -%}}{_ASKED}{{{{- '{asked}' -}}}}{{%- endif -%}}"
    )


_ALTERNATES: Final = """\
{%- if messages[0].role == 'system' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('user and assistant must take turns') }}
{%- endif -%}
{%- endfor -%}
"""
_NO_SYSTEM: Final = (
    "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system messages here') }}{%- endif -%}"
)
_HERMES_TOOLS: Final = """\
{%- macro signatures() -%}
{{- 'Tools:\\n<tools>' -}}{%- for tool in tools -%}{{- '\\n' + tool | tojson -}}{%- endfor -%}{{- '\\n</tools>' -}}
{%- endmacro -%}
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if system or tools -%}
{{- '<|im_start|>system\\n' + system -}}
{%- if tools -%}{{- '\\n\\n' + signatures() -}}{%- endif -%}{{- '<|im_end|>\\n' -}}
{%- endif -%}
"""
_HERMES_CALLS: Final = """\
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{- '\\n' -}}{%- endif -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
"""
_OUTPUT: Final = """\
{%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\\n' -}}{%- endif -%}
"""
_CHATML_ASKED: Final = _ASKED + "{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"

_QWEN25: Final = f"""\
{_HERMES_TOOLS}
{{%- for message in messages -%}}
{{%- if message.role == 'tool' -%}}{_OUTPUT}
{{%- elif not (loop.first and message.role == 'system') -%}}
{{{{- '<|im_start|>' + message.role + '\\n' + message.content -}}}}{_HERMES_CALLS}{{{{- '<|im_end|>\\n' -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{_CHATML_ASKED}"""

_QWEN3: Final = f"""\
{_HERMES_TOOLS}
{{%- set ns = namespace(last=messages | length - 1, seeking=true) -%}}
{{%- for message in messages[::-1] -%}}
{{%- if ns.seeking and message.role == 'user' and not message.content.startswith('<tool_response>') -%}}
{{%- set ns.seeking = false -%}}{{%- set ns.last = messages | length - 1 - loop.index0 -%}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'assistant' -%}}
{{%- set content = message.content -%}}{{%- set thought = '' -%}}
{{%- if '</think>' in content -%}}
{{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}}
{{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}}
{{%- endif -%}}
{{{{- '<|im_start|>assistant\\n' -}}}}
{{%- if loop.index0 > ns.last and (loop.last or thought) -%}}
{{{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' -}}}}
{{%- endif -%}}
{{{{- content -}}}}{_HERMES_CALLS}{{{{- '<|im_end|>\\n' -}}}}
{{%- elif message.role == 'tool' -%}}{_OUTPUT}
{{%- elif not (loop.first and message.role == 'system') -%}}
{{{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{_CHATML_ASKED}"""

_LLAMA31: Final = """\
{{- bos_token -}}
{%- if not date_string is defined -%}
{%- if strftime_now is defined -%}{%- set date_string = strftime_now('%d %b %Y') -%}
{%- else -%}{%- set date_string = '26 Jul 2024' -%}{%- endif -%}
{%- endif -%}
{%- if messages[0].role == 'system' -%}
{%- set system = messages[0].content | trim -%}{%- set messages = messages[1:] -%}
{%- else -%}{%- set system = '' -%}{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: ' + date_string + '\\n\\n' + system + '<|eot_id|>' -}}
{%- if tools -%}
{%- if messages | length == 0 -%}{{- raise_exception('no first user message to put tools in') -}}{%- endif -%}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\nFunctions, as JSON:\\n\\n' -}}
{%- for tool in tools -%}{{- tool | tojson(indent=4) + '\\n\\n' -}}{%- endfor -%}
{{- messages[0].content | trim + '<|eot_id|>' -}}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
{%- if 'tool_calls' in message -%}
{%- if message.tool_calls | length != 1 -%}{{- raise_exception('one call at once') -}}{%- endif -%}
{%- set call = message.tool_calls[0].function -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' -}}
{{- call.arguments | tojson + '}<|eot_id|>' -}}
{%- elif message.role == 'tool' -%}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' -}}
{%- else -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""

_MISTRAL: Final = """\
{%- if messages[0].role == 'system' -%}{%- set system = messages[0].content -%}{%- set talk = messages[1:] -%}
{%- else -%}{%- set talk = messages -%}{%- endif -%}
{%- set asked = talk | selectattr('role', 'equalto', 'user') | list -%}
{%- set ns = namespace(index=0) -%}
{%- for message in talk -%}
{%- if message.role in ('user', 'assistant') and not message.tool_calls -%}
{%- if (message.role == 'user') != (ns.index % 2 == 0) -%}{{- raise_exception('roles must alternate') -}}{%- endif -%}
{%- set ns.index = ns.index + 1 -%}
{%- endif -%}
{%- endfor -%}
{{- bos_token -}}
{%- for message in talk -%}
{%- if message.role == 'user' -%}
{%- if tools and message == asked[-1] -%}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{{- '[INST]' + (system + '\\n\\n' if loop.last and system is defined else '') + message.content + '[/INST]' -}}
{%- elif message.tool_calls -%}
{{- '[TOOL_CALLS][' -}}
{%- for call in message.tool_calls -%}
{%- if call.id | length != 9 -%}{{- raise_exception('ids of calls have nine characters') -}}{%- endif -%}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson -}}
{{- ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') -}}
{%- endfor -%}{{- ']' + eos_token -}}
{%- elif message.role == 'assistant' -%}{{- message.content | trim + eos_token -}}
{%- elif message.role == 'tool' -%}
{{- '[TOOL_RESULTS]{"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id + '"}' -}}
{{- '[/TOOL_RESULTS]' -}}
{%- else -%}{{- raise_exception('unknown role') -}}{%- endif -%}
{%- endfor -%}
"""

_GEMMA: Final = """\
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}
{{- message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""
_GEMMA3: Final = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}
{%- set prefix = messages[0].content + '\\n\\n' -%}{%- set talk = messages[1:] -%}
{%- else -%}{%- set prefix = '' -%}{%- set talk = messages -%}{%- endif -%}
{%- for message in talk -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}
{{- (prefix if loop.first else '') + message.content | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""
_R1: Final = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '<|User|>' + message.content -}}
{%- elif message.role == 'assistant' -%}
{%- set content = message.content -%}
{%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
{{- '<|Assistant|>' + content + eos_token -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|><think>\\n' -}}{%- endif -%}
"""
_SMOLLM3: Final = """\
{%- if messages[0].role == 'system' -%}
{%- set own = messages[0].content -%}{%- set talk = messages[1:] -%}
{%- else -%}{%- set own = '' -%}{%- set talk = messages -%}{%- endif -%}
{%- set mode = '/no_think' if '/no_think' in own else '/think' -%}
{{- '<|im_start|>system\\nToday Date: ' + strftime_now('%d %B %Y') + '\\nReasoning Mode: ' + mode + '\\n\\n' -}}
{{- own.replace('/no_think', '').replace('/think', '').rstrip() + '<|im_end|>\\n' -}}
{%- for message in talk -%}
{%- if message.role == 'assistant' -%}
{%- generation -%}
{{- '<|im_start|>assistant\\n' + message.content.lstrip('\\n') + '<|im_end|>\\n' -}}
{%- endgeneration -%}
{%- else -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' + ('' if mode == '/think' else '<think>\\n\\n</think>\\n') -}}
{%- endif -%}
"""
_GRANITE: Final = """\
{%- if messages[0].role == 'system' -%}{%- set system = messages[0].content -%}{%- set talk = messages[1:] -%}
{%- else -%}{%- set system = 'Knowledge Cutoff Date: April 2024.\\nToday is ' + strftime_now('%B %d, %Y') + '.' -%}
{%- set talk = messages -%}{%- endif -%}
{{- '<|start_of_role|>system<|end_of_role|>' + system + '<|end_of_text|>\\n' -}}
{%- if tools -%}
{{- '<|start_of_role|>available_tools<|end_of_role|>' + tools | tojson(indent=4) + '<|end_of_text|>\\n' -}}
{%- endif -%}
{%- for message in talk -%}
{{- '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content -}}
{%- if message.tool_calls -%}{{- '<|tool_call|>' + message.tool_calls | map(attribute='function') | list | tojson -}}
{%- endif -%}{{- '<|end_of_text|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}
"""
_LLAMA2: Final = (
    _ALTERNATES
    + """\
{%- set system = '<<SYS>>\\n' + messages[0].content + '\\n<</SYS>>\\n\\n' if messages[0].role == 'system' else '' -%}
{%- for message in rest -%}
{%- if message.role == 'user' -%}
{{- bos_token + '[INST] ' + (system if loop.first else '') + message.content.strip() + ' [/INST]' -}}
{%- else -%}{{- ' ' + message.content.strip() + ' ' + eos_token -}}{%- endif -%}
{%- endfor -%}
"""
)
_GPT_OSS: Final = """\
{%- set own = messages[0].content if messages[0].role in ('system', 'developer') else '' -%}
{{- '<|start|>system<|message|>Current date: ' + strftime_now('%Y-%m-%d') -}}
{{- '\\n\\nReasoning: ' + (reasoning_effort if reasoning_effort is defined else 'medium') + '<|end|>' -}}
{%- if own or tools -%}
{{- '<|start|>developer<|message|>' + ('# Instructions\\n\\n' + own + '\\n\\n' if own else '') -}}
{%- if tools -%}{{- '# Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n' -}}
{%- for tool in tools -%}{{- 'type ' + tool.function.name + ' = ' + tool.function.parameters | tojson + ';\\n\\n' -}}
{%- endfor -%}{{- '}' -}}{%- endif -%}{{- '<|end|>' -}}
{%- endif -%}
{%- set ns = namespace(called=none) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '<|start|>user<|message|>' + message.content + '<|end|>' -}}
{%- elif message.role == 'assistant' and message.tool_calls -%}
{%- set ns.called = message.tool_calls[0].function -%}
{%- if message.content and message.thinking -%}
{{- raise_exception('one of content and thinking') -}}{%- endif -%}
{%- set rest = messages[loop.index:] | selectattr('role', 'equalto', 'assistant') -%}
{%- set final = rest | selectattr('tool_calls', 'undefined') | list -%}
{%- if (message.content or message.thinking) and not final -%}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + (message.content or message.thinking) + '<|end|>' -}}
{%- endif -%}
{{- '<|start|>assistant to=functions.' + ns.called.name + '<|channel|>commentary json<|message|>' -}}
{{- ns.called.arguments | tojson + '<|call|>' -}}
{%- elif message.role == 'assistant' -%}
{%- if '<|channel|>' in message.content -%}
{{- raise_exception('channels belong into fields of their own') -}}{%- endif -%}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content + '<|end|>' -}}
{%- elif message.role == 'tool' -%}
{%- if ns.called is none -%}{{- raise_exception('an output without a call') -}}{%- endif -%}
{{- '<|start|>functions.' + ns.called.name + ' to=assistant<|channel|>commentary<|message|>' -}}
{{- message.content | tojson + '<|end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
_GEMMA4: Final = """\
{%- macro value(given) -%}
{%- if given is string -%}{{- '<|"|>' + given + '<|"|>' -}}
{%- elif given is mapping -%}{{- '{' -}}
{%- for key, inner in given | dictsort -%}{{- key + ':' + value(inner) + ('' if loop.last else ',') -}}{%- endfor -%}
{{- '}' -}}
{%- else -%}{{- given | tojson -}}{%- endif -%}
{%- endmacro -%}
{%- macro plain(text) -%}
{%- for part in text.split('<channel|>') -%}{{- part.split('<|channel>')[0] -}}{%- endfor -%}
{%- endmacro -%}
{%- set thinks = enable_thinking is defined and enable_thinking -%}
{{- bos_token -}}
{%- if messages[0].role in ('system', 'developer') -%}
{%- set own = messages[0].content | trim -%}{%- set talk = messages[1:] -%}
{%- else -%}{%- set own = '' -%}{%- set talk = messages -%}{%- endif -%}
{%- if thinks or tools or own -%}
{{- '<|turn>system\\n' + ('<|think|>\\n' if thinks else '') + own -}}
{%- for tool in tools or [] -%}{{- '<|tool>declaration:' + value(tool.function) + '<tool|>' -}}{%- endfor -%}
{{- '<turn|>\\n' -}}
{%- endif -%}
{%- set ns = namespace(asked=-1, open=false) -%}
{%- for message in talk if message.role == 'user' -%}{%- set ns.asked = talk.index(message) -%}{%- endfor -%}
{%- for message in talk -%}
{%- if message.role == 'tool' -%}
{{- '<|tool_response>response:' + message.name + '{value:' + value(message.content) + '}<tool_response|>' -}}
{%- else -%}
{%- if not ns.open -%}
{{- '<|turn>' + ('model' if message.role == 'assistant' else message.role) + '\\n' -}}{%- endif -%}
{%- set ns.open = false -%}
{%- if message.tool_calls -%}
{%- if message.reasoning_content and loop.index0 > ns.asked -%}
{{- '<|channel>thought\\n' + message.reasoning_content + '\\n<channel|>' -}}{%- endif -%}
{%- for call in message.tool_calls -%}
{{- '<|tool_call>call:' + call.function.name + value(call.function.arguments) + '<tool_call|>' -}}
{%- endfor -%}
{%- set ns.open = true -%}
{%- endif -%}
{{- plain(message.content) | trim if message.role == 'assistant' else message.content | trim -}}
{%- if not ns.open -%}{{- '<turn|>\\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.open -%}
{{- '<|turn>model\\n' + ('' if thinks else '<|channel>thought\\n<channel|>') -}}{%- endif -%}
"""
_COMMAND_R: Final = """\
{{- bos_token -}}
{%- if messages[0].role == 'system' -%}{%- set talk = messages[1:] -%}{%- set own = messages[0].content -%}
{%- else -%}{%- set talk = messages -%}{%- set own = false -%}{%- endif -%}
{%- if own != false -%}{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + own + '<|END_OF_TURN_TOKEN|>' -}}{%- endif -%}
{%- for message in talk -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{{- '<|START_OF_TURN_TOKEN|>' + ('<|USER_TOKEN|>' if message.role == 'user' else '<|CHATBOT_TOKEN|>') -}}
{{- message.content.strip() + '<|END_OF_TURN_TOKEN|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}{%- endif -%}
"""
_DEEPSEEK: Final = """\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages if message.role == 'system' -%}
{%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + message.content -%}
{%- endfor -%}
{{- ns.system -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '<|User|>' + message.content -}}
{%- elif message.role == 'assistant' -%}
{{- '<|Assistant|>' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '<|tool_call_begin|>' + call.function.name + '<|tool_sep|>' + call.function.arguments + '<|tool_call_end|>' -}}
{%- endfor -%}{{- eos_token -}}
{%- elif message.role == 'tool' -%}{{- '<|tool_output_begin|>' + message.content + '<|tool_output_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|Assistant|>' -}}{%- endif -%}
"""
_SEED: Final = """\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<seed:bos>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' and '</seed:think>' in message.content and not loop.last -%}
{{- message.content.split('</seed:think>')[-1].lstrip('\\n') -}}
{%- else -%}{{- message.content -}}{%- endif -%}{{- '<seed:eos>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<seed:bos>assistant\\n' -}}{%- endif -%}
"""
_CHATML: Final = _tagged("<|im_start|>ROLE\\n", "<|im_end|>\\n", "<|im_start|>assistant\\n")

FAMILIES: Final[dict[str, str]] = {
    "chatml": _CHATML,
    "qwen2.5": _QWEN25,
    "qwen3": _QWEN3,
    "qwq": _QWEN3.replace(_CHATML_ASKED, _CHATML_ASKED.replace("assistant\\n", "assistant\\n<think>\\n")),
    "llama2": _LLAMA2,
    "llama3": _tagged(
        "<|start_header_id|>ROLE<|end_header_id|>\\n\\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\\n\\n",
        head="{{- bos_token -}}",
    ),
    "llama3.1": _LLAMA31,
    "mistral": _MISTRAL,
    "mixtral": _ALTERNATES.replace("messages[0].role == 'system'", "false") + _LLAMA2.removeprefix(_ALTERNATES),
    "gemma2": "{{- bos_token -}}" + _NO_SYSTEM + _GEMMA,
    "gemma3": _GEMMA3,
    "gemma4": _GEMMA4,
    "phi3": _tagged("<|ROLE|>\\n", "<|end|>\\n", "<|assistant|>\\n"),
    "phi4": _tagged("<|im_start|>ROLE<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "zephyr": _tagged("<|ROLE|>\\n", "</s>\\n", "<|assistant|>\\n"),
    "vicuna": _ALTERNATES
    + "{{- (messages[0].content + ' ' if messages[0].role == 'system' else '') -}}"
    + "{%- for message in rest -%}{{- 'USER: ' + message.content + ' ' if message.role == 'user' else"
    + " 'ASSISTANT: ' + message.content + eos_token -}}{%- endfor -%}"
    + "{%- if add_generation_prompt -%}{{- 'ASSISTANT:' -}}{%- endif -%}",
    "r1-distill": _R1,
    "deepseek-v3": _DEEPSEEK,
    "smollm3": _SMOLLM3,
    "granite3": _GRANITE,
    "gpt-oss": _GPT_OSS,
    "command-r": _COMMAND_R,
    "seed-oss": _SEED,
    "yi": _NO_SYSTEM.replace("no system messages here", "system is not for this model") + _CHATML,
    "falcon3": _tagged("<|ROLE|>\\n", "\\n", "<|assistant|>\\n", head=_ALTERNATES),
    "glm4": _tagged("<|ROLE|>\\n", "", "<|assistant|>\\n", head="{{- '[gMASK]<sop>' -}}"),
    "exaone": _tagged("[|ROLE|]", "[|endofturn|]\\n", "[|assistant|]"),
    "olmo2": _tagged("<|ROLE|>\\n", "\\n", "<|assistant|>\\n", head="{{- bos_token -}}"),
    "nemotron": _tagged("<extra_id_1>ROLE\\n", "\\n", "<extra_id_1>assistant\\n"),
    "internlm2": "{{- bos_token -}}" + _CHATML,
    "kimi": _tagged("<|im_ROLE|>ROLE<|im_middle|>", "<|im_end|>", "<|im_assistant|>assistant<|im_middle|>"),
    **LATER_FAMILIES,
}
SPECIALS: Final = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<|eot_id|>",
    "<|end|>",
    "[INST]",
)
