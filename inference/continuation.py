"""Makes the rest of an answer, which an engine interrupted to make room, a request of its own.

Used by engines whose queue takes a slot away in mid-answer (`inference.fair_queue`): the tokens that were emitted
become prompt, and what remains is asked for with a seed of its own. Does not know slots and who is next.
"""

from __future__ import annotations

import msgspec

from sessions.model.generation import GenerationRequest, continuation_seed
from sessions.model.types import Tokens


def continuation_of(request: GenerationRequest, emitted: Tokens) -> GenerationRequest:
    """Returns a request for the rest of a run that gave up its slot to another run after it had emitted tokens."""
    all_emitted = (*request.emitted, *emitted)
    return msgspec.structs.replace(
        request,
        prompt=(*request.prompt, *emitted),
        emitted=all_emitted,
        max_tokens=request.max_tokens - len(emitted),
        seed=continuation_seed(request.seed, request.response_id, len(all_emitted)),
    )
