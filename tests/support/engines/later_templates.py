"""Chat templates of more families, written for these tests after the families' rules: none is copied.

Most of these models think, and each writes calls in words of its own. `chat_templates.FAMILIES` has all families.
"""

from __future__ import annotations

from typing import Final

_LAST_QUESTION: Final = r"""
{%- set ns = namespace(asked=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
"""
_THOUGHT_AND_WORDS: Final = r"""
{%- set words = message.content -%}{%- set thought = message.reasoning_content or '' -%}
{%- if message.reasoning_content is not string and '</think>' in words -%}
{%- set thought = words.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set words = words.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
"""
_CHATML_ASKED: Final = r"""
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
_XML_CALLS: Final = r"""
{%- for call in message.tool_calls or [] -%}
{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' -}}
{%- for name, value in call.function.arguments.items() -%}
{{- '<parameter=' + name + '>\n' + (value if value is string else value | tojson) + '\n</parameter>\n' -}}
{%- endfor -%}
{{- '</function>\n</tool_call>' -}}
{%- endfor -%}
"""
_CHATML_OUTPUT: Final = r"""
{%- if loop.previtem is not defined or loop.previtem.role != 'tool' -%}{{- '<|im_start|>user\n' -}}{%- endif -%}
{{- '<tool_response>\n' + message.content + '\n</tool_response>\n' -}}
{%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
"""
_XML_TOOLS: Final = r"""
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if own or tools -%}{{- '<|im_start|>system\n' + own -}}
{%- if tools -%}{{- '\n\n# Tools\n\n<tools>' -}}
{%- for tool in tools -%}
{{- '\n<function>\n<name>' + tool.function.name + '</name>\n<parameters>' -}}
{%- for name, parameter in tool.function.parameters.properties | items -%}
{{- '\n<parameter>\n<name>' + name + '</name>\n<type>' + parameter.type + '</type>\n</parameter>' -}}
{%- endfor -%}{{- '\n</parameters>\n</function>' -}}
{%- endfor -%}{{- '\n</tools>\n\nCalls go <tool_call>\n<function=NAME>\n<parameter=NAME>\nvalue' -}}
{{- '\n</parameter>\n</function>\n</tool_call>' -}}{%- endif -%}
{{- '<|im_end|>\n' -}}{%- endif -%}
"""
_QWEN3_CODER: Final = rf"""{_XML_TOOLS}
{{%- for message in messages -%}}
{{%- if message.role == 'tool' -%}}{_CHATML_OUTPUT}
{{%- elif message.tool_calls -%}}
{{{{- '<|im_start|>assistant' + ('\n' + message.content | trim if message.content else '') -}}}}{_XML_CALLS}
{{{{- '<|im_end|>\n' -}}}}
{{%- elif not (message.role == 'system' and loop.first) -%}}
{{{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}}}
{{%- endif -%}}
{{%- endfor -%}}{_CHATML_ASKED}"""
_QWEN35: Final = rf"""{_LAST_QUESTION}{_XML_TOOLS}
{{%- for message in messages -%}}
{{%- if message.role == 'tool' -%}}{_CHATML_OUTPUT}
{{%- elif message.role == 'assistant' -%}}{_THOUGHT_AND_WORDS}
{{{{- '<|im_start|>assistant\n' -}}}}
{{%- if loop.index0 > ns.asked -%}}{{{{- '<think>\n' + thought + '\n</think>\n\n' -}}}}{{%- endif -%}}
{{{{- words | trim -}}}}{_XML_CALLS}{{{{- '<|im_end|>\n' -}}}}
{{%- elif message.role == 'system' and not loop.first -%}}{{{{- raise_exception('system comes first') -}}}}
{{%- elif message.role == 'user' -%}}
{{{{- '<|im_start|>user\n' + message.content | trim + '<|im_end|>\n' -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}
{{{{- '<|im_start|>assistant\n' -}}}}
{{{{- '<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '<think>\n' -}}}}
{{%- endif -%}}
"""
_DEEPSEEK31: Final = r"""
{%- set thinks = thinking | default(enable_thinking | default(false)) -%}
{%- set own = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\n\n') -%}
{{- bos_token + own -}}
{%- set ns = namespace(turn='') -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.turn = 'user' -%}{{- '<｜User｜>' + message.content -}}
{%- elif message.role == 'assistant' -%}
{%- if ns.turn == 'user' -%}{{- '<｜Assistant｜></think>' -}}{%- endif -%}
{{- message.content.split('</think>', 1)[-1] -}}
{%- if message.tool_calls -%}{{- '<｜tool▁calls▁begin｜>' -}}
{%- for call in message.tool_calls -%}
{{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments | tojson -}}
{{- '<｜tool▁call▁end｜>' -}}
{%- endfor -%}{{- '<｜tool▁calls▁end｜>' -}}{%- endif -%}
{{- '<｜end▁of▁sentence｜>' -}}{%- set ns.turn = 'assistant' -%}
{%- elif message.role == 'tool' -%}{%- set ns.turn = 'tool' -%}
{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.turn == 'user' -%}
{{- '<｜Assistant｜>' + ('<think>' if thinks else '</think>') -}}
{%- endif -%}
"""
_COMMAND_R7B: Final = r"""
{{- bos_token -}}
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># System Preamble' -}}
{%- if tools -%}{{- '\n\n## Available Tools\n```json\n[' -}}
{%- for tool in tools -%}
{{- '{"name": ' + tool.function.name | tojson + ', "parameters": ' + tool.function.parameters | tojson + '}' -}}
{{- '' if loop.last else ', ' -}}
{%- endfor -%}{{- ']\n```' -}}{%- endif -%}
{%- if own -%}{{- '\n\n# Developer Preamble\n' + own -}}{%- endif -%}{{- '<|END_OF_TURN_TOKEN|>' -}}
{%- set ns = namespace(calls=[]) -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[{"tool_call_id": ' -}}
{{- (ns.calls.index(message.tool_call_id) if message.tool_call_id in ns.calls else 0) | string | tojson -}}
{{- ', "results": ' + message.content | tojson + '}]<|END_TOOL_RESULT|><|END_OF_TURN_TOKEN|>' -}}
{%- elif message.role == 'user' -%}
{{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message.content + '<|END_OF_TURN_TOKEN|>' -}}
{%- elif message.role == 'assistant' -%}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}
{%- if message.tool_calls -%}{{- '<|START_THINKING|>' + message.content + '<|END_THINKING|><|START_ACTION|>[' -}}
{%- for call in message.tool_calls -%}
{%- set ns.calls = ns.calls + [call.id] -%}
{{- '\n    {"tool_call_id": ' + (ns.calls | length - 1) | string | tojson + ', "tool_name": ' -}}
{{- call.function.name | tojson + ', "parameters": ' + call.function.arguments | tojson + '}' -}}
{{- '' if loop.last else ',' -}}
{%- endfor -%}{{- '\n]<|END_ACTION|>' -}}
{%- else -%}{{- '<|START_RESPONSE|>' + message.content + '<|END_RESPONSE|>' -}}{%- endif -%}
{{- '<|END_OF_TURN_TOKEN|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}{%- endif -%}
"""
_GLM46: Final = rf"""{_LAST_QUESTION}
{{{{- '[gMASK]<sop>' -}}}}
{{%- if tools -%}}{{{{- '<|system|>\n# Tools\n\n<tools>' -}}}}
{{%- for tool in tools -%}}{{{{- '\n' + tool | tojson(ensure_ascii=False) -}}}}{{%- endfor -%}}
{{{{- '\n</tools>\n\n<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>' -}}}}
{{%- endif -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'assistant' -%}}{_THOUGHT_AND_WORDS}
{{{{- '<|assistant|>\n<think>' + (thought | trim if loop.index0 > ns.asked else '') + '</think>' -}}}}
{{%- if words | trim -%}}{{{{- '\n' + words | trim -}}}}{{%- endif -%}}
{{%- for call in message.tool_calls or [] -%}}
{{{{- '\n<tool_call>' + call.function.name + '\n' -}}}}
{{%- for name, value in call.function.arguments | items -%}}
{{{{- '<arg_key>' + name + '</arg_key>\n<arg_value>' + (value if value is string else value | tojson) -}}}}
{{{{- '</arg_value>\n' -}}}}
{{%- endfor -%}}{{{{- '</tool_call>' -}}}}
{{%- endfor -%}}
{{%- elif message.role == 'tool' -%}}
{{%- if loop.first or loop.previtem.role != 'tool' -%}}{{{{- '<|observation|>' -}}}}{{%- endif -%}}
{{{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}}}
{{%- else -%}}{{{{- '<|' + message.role + '|>\n' + message.content -}}}}
{{%- if message.role == 'user' and enable_thinking is defined and not enable_thinking -%}}
{{{{- '/nothink' -}}}}{{%- endif -%}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}
{{{{- '<|assistant|>' + ('\n<think></think>' if enable_thinking is defined and not enable_thinking else '') -}}}}
{{%- endif -%}}
"""
_MINIMAX2: Final = rf"""{_LAST_QUESTION}
{{%- set own = messages[0].content if messages[0].role == 'system' else 'A helpful assistant.' -%}}
{{{{- ']~!b[]~b]system\n' + own -}}}}
{{%- if tools -%}}{{{{- '\n\n<tools>\n' -}}}}
{{%- for tool in tools -%}}{{{{- '<tool>' + tool.function | tojson + '</tool>\n' -}}}}{{%- endfor -%}}
{{{{- '</tools>\n\n<minimax:tool_call>\n<invoke name="NAME">\n<parameter name="KEY">value</parameter>\n' -}}}}
{{{{- '</invoke>\n</minimax:tool_call>' -}}}}{{%- endif -%}}{{{{- '[e~[\n' -}}}}
{{%- for message in messages -%}}
{{%- if message.role == 'assistant' -%}}{_THOUGHT_AND_WORDS}
{{{{- ']~b]ai\n' -}}}}
{{%- if thought and loop.index0 > ns.asked -%}}{{{{- '<think>\n' + thought + '\n</think>\n\n' -}}}}{{%- endif -%}}
{{{{- words -}}}}
{{%- if message.tool_calls -%}}{{{{- '\n<minimax:tool_call>\n' -}}}}
{{%- for call in message.tool_calls -%}}{{{{- '<invoke name="' + call.function.name + '">\n' -}}}}
{{%- for name, value in call.function.arguments.items() -%}}
{{{{- '<parameter name="' + name + '">' + (value if value is string else value | tojson) -}}}}
{{{{- '</parameter>\n' -}}}}
{{%- endfor -%}}{{{{- '</invoke>\n' -}}}}
{{%- endfor -%}}{{{{- '</minimax:tool_call>' -}}}}{{%- endif -%}}{{{{- '[e~[\n' -}}}}
{{%- elif message.role == 'tool' -%}}
{{%- if loop.previtem is defined and loop.previtem.role not in ('assistant', 'tool') -%}}
{{{{- raise_exception('an output without a call') -}}}}{{%- endif -%}}
{{%- if loop.previtem.role != 'tool' -%}}{{{{- ']~b]tool' -}}}}{{%- endif -%}}
{{{{- '\n<response>' + message.content + '</response>' -}}}}
{{%- if loop.last or loop.nextitem.role != 'tool' -%}}{{{{- '[e~[\n' -}}}}{{%- endif -%}}
{{%- elif message.role == 'user' -%}}{{{{- ']~b]user\n' + message.content + '[e~[\n' -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- ']~b]ai\n<think>\n' -}}}}{{%- endif -%}}
"""
_KIMI_K2: Final = r"""
{%- if tools -%}{{- '<|im_system|>tool_declare<|im_middle|>' + tools | tojson + '<|im_end|>' -}}{%- endif -%}
{%- if messages[0].role != 'system' -%}{{- '<|im_system|>system<|im_middle|>You are Kimi.<|im_end|>' -}}{%- endif -%}
{%- for message in messages -%}
{%- set name = message.get('name') or message.role -%}
{%- set kind = message.role if message.role in ('user', 'assistant') else 'system' -%}
{{- '<|im_' + kind + '|>' + name + '<|im_middle|>' -}}
{%- if message.role == 'tool' -%}{{- '## Return of ' + message.tool_call_id + '\n' -}}{%- endif -%}
{{- message.content -}}
{%- if message.tool_calls -%}{{- '<|tool_calls_section_begin|>' -}}
{%- for call in message.tool_calls -%}
{{- '<|tool_call_begin|>' + call.id + '<|tool_call_argument_begin|>' -}}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}
{{- '<|tool_call_end|>' -}}
{%- endfor -%}{{- '<|tool_calls_section_end|>' -}}{%- endif -%}{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
"""
_NEMOTRON_NANO2: Final = r"""
{%- set ns = namespace(thinks=true) -%}
{%- for message in messages if message.role in ('user', 'system') -%}
{%- if '/no_think' in message.content -%}{%- set ns.thinks = false -%}
{%- elif '/think' in message.content -%}{%- set ns.thinks = true -%}{%- endif -%}
{%- endfor -%}
{%- macro plain(text) -%}{{- text.replace('/no_think', '').replace('/think', '') | trim -}}{%- endmacro -%}
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{{- '<SPECIAL_10>System\n' + plain(own) -}}
{%- if tools -%}{{- '\n\n<AVAILABLE_TOOLS>' + tools | map(attribute='function') | list | tojson -}}
{{- '</AVAILABLE_TOOLS>\n\nCalls go <TOOLCALL>[{"name": "NAME", "arguments": {}}]</TOOLCALL>' -}}{%- endif -%}
{{- '\n\n' -}}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '<SPECIAL_11>User\n' + plain(message.content) + '\n' -}}
{%- elif message.role == 'tool' -%}
{{- '<SPECIAL_11>User\n<TOOL_RESPONSE>[' if loop.first or loop.previtem.role != 'tool' else ', ' -}}
{{- message.content -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- ']</TOOL_RESPONSE>\n' -}}{%- endif -%}
{%- elif message.role == 'assistant' -%}
{{- '<SPECIAL_11>Assistant\n' + message.content.split('</think>')[-1] | trim -}}
{%- if message.tool_calls -%}{{- '<TOOLCALL>[' -}}
{%- for call in message.tool_calls -%}
{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}' -}}
{{- '' if loop.last else ', ' -}}
{%- endfor -%}{{- ']</TOOLCALL>' -}}{%- endif -%}{{- '\n<SPECIAL_12>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<SPECIAL_11>Assistant\n' + ('<think>\n' if ns.thinks else '<think></think>') -}}
{%- endif -%}
"""
_MINISTRAL3: Final = r"""
{{- bos_token -}}
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{{- '[SYSTEM_PROMPT]' + (own or 'Think between [THINK] and [/THINK].') + '[/SYSTEM_PROMPT]' -}}
{%- if tools -%}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{%- set ns = namespace(index=0) -%}
{%- for message in messages if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('roles must alternate') -}}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '[INST]' + message.content + '[/INST]' -}}
{%- elif message.role == 'assistant' -%}
{{- message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson -}}
{%- endfor -%}{{- eos_token -}}
{%- elif message.role == 'tool' -%}{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' -}}
{%- elif not loop.first -%}{{- raise_exception('a role that nobody knows: ' + message.role) -}}
{%- endif -%}
{%- endfor -%}
"""
_HERMES3: Final = (
    r"""
{{- bos_token -}}
{%- if tools -%}{{- '<|im_start|>system\nYou call functions. Here are they: <tools> ' -}}
{%- for tool in tools -%}{{- tool | tojson + ('' if loop.last else '\n') -}}{%- endfor -%}
{{- ' </tools>\n<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call><|im_end|>\n' -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- ('<|im_start|>tool\n' if loop.first or loop.previtem.role != 'tool' else '') + '<tool_response>\n' -}}
{{- message.content + '\n</tool_response>\n' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>' -}}{%- endif -%}
{%- elif message.tool_calls -%}{{- '<|im_start|>assistant' -}}
{%- for call in message.tool_calls -%}
{{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson -}}
{{- '}\n</tool_call>' -}}
{%- endfor -%}{{- '<|im_end|>\n' -}}
{%- else -%}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}{%- endif -%}
{%- endfor -%}"""
    + _CHATML_ASKED
)
_FUNCTIONARY: Final = r"""
{{- bos_token -}}
{%- macro block(role, text, end='<|eot_id|>') -%}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + text + end -}}
{%- endmacro -%}
{%- if tools -%}{%- set ns = namespace(list='') -%}
{%- for tool in tools -%}{%- set ns.list = ns.list + '\n' + tool.function | tojson -%}{%- endfor -%}
{{- block('system', 'Functions, called as <function=NAME>{"KEY": "value"}</function>:' + ns.list) -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}{{- block('ipython', message.content) -}}
{%- elif message.tool_calls -%}{%- set ns = namespace(list=message.content) -%}
{%- for call in message.tool_calls -%}
{%- set ns.list = ns.list + '<function=' + call.function.name + '>' + call.function.arguments + '</function>' -%}
{%- endfor -%}{{- block('assistant', ns.list, '<|eom_id|>') -}}
{%- else -%}{{- block(message.role, message.content) -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""
_RWKV: Final = r"""
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{- 'System: ' + message.content + '\n\n' -}}
{%- elif message.role == 'user' -%}{{- 'User: ' + message.content | trim + '\n\n' -}}
{%- elif message.role == 'assistant' -%}
{{- 'Assistant: ' + message.content.split('</think>')[-1] | trim + '\n\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}
{%- if enable_thinking is defined -%}{{- ' <think>' + ('' if enable_thinking else '\n</think>') -}}{%- endif -%}
{%- endif -%}
"""
_GRANITE4: Final = r"""
{%- macro block(role, text) -%}
{{- '<|start_of_role|>' + role + '<|end_of_role|>' + text + '<|end_of_text|>\n' -}}
{%- endmacro -%}
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if tools -%}{%- set ns = namespace(text=own + ('\n\n' if own else '') + 'Tools:\n<tools>') -%}
{%- for tool in tools -%}{%- set ns.text = ns.text + '\n' + tool | tojson -%}{%- endfor -%}
{{- block('system', ns.text + '\n</tools>\nCalls go <tool_call>{"name": NAME, "arguments": OBJECT}</tool_call>') -}}
{%- elif own -%}{{- block('system', own) -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}{{- '<|start_of_role|>user<|end_of_role|>' -}}{%- endif -%}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|end_of_text|>\n' -}}{%- endif -%}
{%- elif message.role == 'assistant' -%}{%- set ns = namespace(text=message.content) -%}
{%- for call in message.tool_calls or [] -%}
{%- set ns.text = ns.text + ('\n' if ns.text else '') + '<tool_call>\n{"name": "' + call.function.name -%}
{%- set ns.text = ns.text + '", "arguments": ' + call.function.arguments | tojson + '}\n</tool_call>' -%}
{%- endfor -%}{{- block('assistant', ns.text) -}}
{%- elif not (message.role == 'system' and loop.first) -%}{{- block(message.role, message.content) -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_of_role|>assistant<|end_of_role|>' -}}{%- endif -%}
"""
_LLAMA4: Final = r"""
{{- bos_token -}}
{%- macro block(role, text, end='<|eot|>') -%}
{{- '<|header_start|>' + role + '<|header_end|>\n\n' + text + end -}}
{%- endmacro -%}
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if own or tools -%}{%- set ns = namespace(text=own) -%}
{%- if tools -%}{%- set ns.text = ns.text + '\n\nCall them as {"name": NAME, "parameters": OBJECT}.\n\n' -%}
{%- for tool in tools -%}{%- set ns.text = ns.text + tool | tojson(indent=4) + '\n\n' -%}{%- endfor -%}{%- endif -%}
{{- block('system', ns.text | trim) -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}{{- block('ipython', message.content | tojson) -}}
{%- elif message.tool_calls -%}{%- set ns = namespace(text=message.content) -%}
{%- for call in message.tool_calls -%}
{%- set ns.text = ns.text + '{"name": "' + call.function.name + '", "parameters": ' -%}
{%- set ns.text = ns.text + call.function.arguments | tojson + '}' -%}
{%- endfor -%}{{- block('assistant', ns.text, '<|eom|>') -}}
{%- elif not (message.role == 'system' and loop.first) -%}{{- block(message.role, message.content | trim) -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|header_start|>assistant<|header_end|>\n\n' -}}{%- endif -%}
"""
_PHI4_MINI: Final = r"""
{%- for message in messages -%}
{{- '<|' + message.role + '|>' + message.content -}}
{%- if message.tool_calls -%}
{{- '<|tool_call|>' + message.tool_calls | map(attribute='function') | list | tojson + '<|/tool_call|>' -}}{%- endif -%}
{%- if loop.first and tools -%}
{{- '<|tool|>' + tools | map(attribute='function') | list | tojson + '<|/tool|>' -}}{%- endif -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""
_OPENCHAT: Final = r"""
{{- bos_token -}}
{%- for message in messages -%}
{{- 'GPT4 Correct ' + message.role.title() + ': ' + message.content + '<|end_of_turn|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'GPT4 Correct Assistant:' -}}{%- endif -%}
"""

_LFM2: Final = (
    r"""
{{- bos_token -}}
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{%- if own or tools -%}{{- '<|im_start|>system\n' + own -}}
{%- if tools -%}{{- ('\n' if own else '') + 'List of tools: <|tool_list_start|>[' -}}
{%- for tool in tools -%}{{- tool | tojson + ('' if loop.last else ', ') -}}{%- endfor -%}
{{- ']<|tool_list_end|>' -}}{%- endif -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- for message in messages if message.role != 'system' or message is not sameas messages[0] -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- if message.role == 'tool' -%}
{{- '<|tool_response_start|>' + message.content + '<|tool_response_end|>' -}}
{%- else -%}{{- message.content -}}{%- endif -%}{{- '<|im_end|>\n' -}}
{%- endfor -%}"""
    + _CHATML_ASKED
)
_APERTUS: Final = r"""
{%- set own = messages[0].content if messages[0].role == 'system' else 'You are Apertus.' -%}
{{- bos_token + '<|system_start|>' + own + '<|system_end|><|developer_start|>Deliberation: ' -}}
{{- 'enabled' if enable_thinking else 'disabled' -}}
{{- '\nTool Capabilities:' + (tools | map(attribute='function') | list | tojson if tools else ' disabled') -}}
{{- '<|developer_end|>' -}}
{%- set ns = namespace(open=false) -%}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) -%}
{%- if message.role == 'tool' -%}{{- '[' + message.content + ']' -}}
{%- elif message.role == 'assistant' -%}
{{- ('' if ns.open else '<|assistant_start|>') -}}
{%- if message.reasoning_content -%}
{{- '<|inner_prefix|>' + message.reasoning_content + '<|inner_suffix|>' -}}{%- endif -%}
{{- message.content -}}
{%- if message.tool_calls -%}{{- '<|tools_prefix|>[' -}}
{%- for call in message.tool_calls -%}
{{- '{"' + call.function.name + '": ' + call.function.arguments | tojson + '}' + ('' if loop.last else ', ') -}}
{%- endfor -%}{{- ']<|tools_suffix|>' -}}{%- endif -%}
{%- set ns.open = message.tool_calls | length > 0 -%}{{- '' if ns.open else '<|assistant_end|>' -}}
{%- else -%}
{{- '<|assistant_end|>' if ns.open else '' -}}{%- set ns.open = false -%}
{{- '<|' + message.role + '_start|>' + message.content + '<|' + message.role + '_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and not ns.open -%}{{- '<|assistant_start|>' -}}{%- endif -%}
"""
_HY3: Final = r"""
{%- set own = messages[0].content if messages[0].role == 'system' else '' -%}
{{- bos_token + own -}}
{%- if tools -%}{{- '\n\n# Tools\n<tools>\n' + tools | tojson + '\n</tools>\n' -}}
{{- '<tool_calls>\n<tool_call>NAME<tool_sep>\n' -}}
{{- '<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>\n</tool_calls>' -}}{%- endif -%}
{%- for message in (messages[1:] if messages[0].role == 'system' else messages) -%}
{%- if message.role == 'assistant' -%}{{- '<|assistant|>' + message.content -}}
{%- if message.tool_calls -%}{{- '\n<tool_calls>\n' -}}
{%- for call in message.tool_calls -%}{{- '<tool_call>' + call.function.name + '<tool_sep>\n' -}}
{%- for name, value in call.function.arguments.items() -%}
{{- '<arg_key>' + name + '</arg_key>\n<arg_value>' + (value if value is string else value | tojson) -}}
{{- '</arg_value>\n' -}}
{%- endfor -%}{{- '</tool_call>\n' -}}
{%- endfor -%}{{- '</tool_calls>' -}}{%- endif -%}{{- eos_token -}}
{%- elif message.role == 'tool' -%}
{{- '<|user|><tool_responses>\n' if loop.first or loop.previtem.role != 'tool' else '' -}}
{{- '<tool_response>\n' + message.content + '\n</tool_response>\n' -}}
{{- '</tool_responses>' if loop.last or loop.nextitem.role != 'tool' else '' -}}
{%- else -%}{{- '<|' + message.role + '|>' + message.content -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

LATER_FAMILIES: Final[dict[str, str]] = {
    "qwen3-coder": _QWEN3_CODER,
    "qwen3.5": _QWEN35,
    "deepseek-v3.1": _DEEPSEEK31,
    "command-r7b": _COMMAND_R7B,
    "glm4.6": _GLM46,
    "minimax-m2": _MINIMAX2,
    "kimi-k2": _KIMI_K2,
    "nemotron-nano2": _NEMOTRON_NANO2,
    "ministral3": _MINISTRAL3,
    "hermes3": _HERMES3,
    "functionary": _FUNCTIONARY,
    "rwkv": _RWKV,
    "granite4": _GRANITE4,
    "llama4": _LLAMA4,
    "phi4-mini": _PHI4_MINI,
    "openchat": _OPENCHAT,
    "lfm2": _LFM2,
    "apertus": _APERTUS,
    "hy3": _HY3,
}
