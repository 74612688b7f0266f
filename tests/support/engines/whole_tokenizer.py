"""The simulated engine's vocabulary behind a chat template that is no sum of pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence

from inference.chat_template import ChatTemplate
from inference.simulated import SimulatedTokenizer
from inference.simulated.vocabulary import BEGIN, END, ROLE
from inference.template_tokenizer import TemplateTokenizer
from sessions.model.generation import TokenizerInfo
from sessions.model.types import Tokens

FORGETFUL = """\
<begin>{{ strftime_now('%d %B') }}
{%- for message in messages -%}
{%- if (loop.index0 % 2 == 1) != (message.role == 'assistant') -%}
{{ raise_exception('roles must alternate') }}
{%- endif -%}
<{{ message.role }}>
{%- if message.role == 'assistant' and not loop.last -%}
{{ message.content.split('it is')[-1].split('</think>')[-1] }}
{%- else -%}
{{ message.content }}
{%- endif -%}<end>
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}
"""
"""Names the day, takes no system message and no neighbours, and leaves out what earlier answers begin with."""

SPECIALS = {"<begin>": BEGIN, "<end>": END} | {f"<{role}>": token for role, token in ROLE.items()}
_SPELLINGS = re.compile(f"({'|'.join(SPECIALS)})")


class WholeTokenizer(TemplateTokenizer):
    """Has a spelling for each special token. `asked`: the texts that were tokenised as somebody's words."""

    def __init__(self, source: str = FORGETFUL) -> None:
        template = ChatTemplate(source, bos="<begin>", eos="<end>", specials=tuple(SPECIALS))
        super().__init__(template, "whole", (BEGIN,))
        self._words = SimulatedTokenizer()
        self._gap = 3 if template.whole else None
        self._scaffold[""] = ()
        self.asked: list[str] = []

    async def text(self, text: str) -> Tokens:
        self.asked.append(text)
        return await self._words.text(text)

    @property
    def about(self) -> TokenizerInfo:
        return self._words.about

    def pieces(self, tokens: Sequence[int]) -> list[bytes]:
        return self._words.pieces(tokens)

    async def _opening_piece(self, piece: str, *, special: bool) -> Tokens:
        if not special:
            return await self.text(piece)
        tokens: list[int] = []
        for each in _SPELLINGS.split(piece):
            tokens += (SPECIALS[each],) if each in SPECIALS else await self._words.text(each)
        return tuple(tokens)
