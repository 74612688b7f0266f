"""Replays what an answer has written into its grammar, before the run that goes on with it takes a step.

A grammar's state is a fold of the tokens that it has accepted, and is empty when a run begins. A run that continues an
answer ends its prompt with the token ids that were written, and says how many they are (`EMITTED`):

    prompt:    question | answer's opening | emitted ids |
    grammar:                                accept_tokens | as if its run had never ended

Ids are fed, not text. Only the text beyond the last whole token, of which the log has no ids, was tokenised for the
prompt: grammars work on bytes, however these are cut.

Invariants:
* Until all is replayed the grammar counts as being compiled: nothing is masked, drafted or sampled before.
* A rollback of drafted tokens ends where the replayed part does.
* Ids that the grammar refuses fail the request, as a grammar that cannot be compiled does: it never waits for ever, and
  never goes on without its grammar.

Pure but for a thread. It knows of vLLM only the shapes of its objects, so that it is tested without vLLM.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

EMITTED: Final = "sessile_emitted_tokens"  # in a run's `extra_args`: how many last prompt tokens are the answer's
_THREADS: Final = 2


class GrammarRefusal(ValueError):
    """Raised if the text written so far does not follow the grammar."""


class Grammar(Protocol):
    """The part of vLLM's `StructuredOutputGrammar` that is used here."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool: ...

    def validate_tokens(self, tokens: list[int]) -> list[int]: ...

    def rollback(self, num_tokens: int) -> None: ...

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None: ...

    def is_terminated(self) -> bool: ...

    def reset(self) -> None: ...


class Reasoner(Protocol):
    """The part of vLLM's `ReasoningParser` that is used here. It tells where the thoughts in an answer end; the grammar
    applies only behind them."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool: ...

    def extract_content_ids(self, input_ids: list[int]) -> list[int]: ...


class ReplayedGrammar:
    """A grammar that is rolled back at most to the end of its replayed part."""

    def __init__(self, grammar: Grammar, request_id: str, replayed: list[int]) -> None:
        self._grammar = grammar
        self._request_id = request_id
        self._replayed = replayed
        self._num_accepted = 0  # since the replay
        self.fill_bitmask = grammar.fill_bitmask
        self.is_terminated = grammar.is_terminated
        self.validate_tokens = grammar.validate_tokens

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        accepted = self._grammar.accept_tokens(request_id, tokens)
        if accepted:
            self._num_accepted += len(tokens)
        return accepted

    def rollback(self, num_tokens: int) -> None:
        count = min(num_tokens, self._num_accepted)
        self._num_accepted -= count
        self._grammar.rollback(count)

    def reset(self) -> None:
        self._grammar.reset()
        self._num_accepted = 0
        feed(self._grammar, self._request_id, self._replayed)


def feed(grammar: Grammar, request_id: str, tokens: list[int]) -> None:
    """Advances the grammar by these tokens. Raises GrammarRefusal."""
    if not grammar.accept_tokens(request_id, tokens):
        raise GrammarRefusal(f"{len(tokens)} tokens that were written of the answer do not follow its grammar")


def ruled_tokens(prompt: Sequence[int], count: int, reasoner: Reasoner | None) -> list[int]:
    """Returns those of the last `count` tokens of a prompt to which the grammar applies: all behind the thoughts."""
    if not 0 <= count <= len(prompt):
        raise GrammarRefusal(f"{count} tokens were written, and the prompt has {len(prompt)}")
    first = len(prompt) - count
    emitted = list(prompt[first:])
    if reasoner is None or reasoner.is_reasoning_end(prompt[:first]):
        return emitted
    return reasoner.extract_content_ids(emitted) if reasoner.is_reasoning_end(emitted) else []


class GrammarReplays:
    """Replays the grammars of one scheduler's continued answers. Call `prepare` for each request as it comes in."""

    def __init__(self, reasoner_of: Callable[[Any], Reasoner | None], *, speculates: bool) -> None:
        self._reasoner_of = reasoner_of
        self._speculates = speculates
        self._threads: ThreadPoolExecutor | None = None

    def prepare(self, request: Any) -> None:
        """Replaces the grammar of a request that continues an answer by one that has taken the answer's tokens already.

        Raises nothing: what fails here fails the request.
        """
        structured, params = request.structured_output_request, request.sampling_params
        if structured is None or params is None or not params.extra_args or EMITTED not in params.extra_args:
            return
        try:
            count = int(params.extra_args[EMITTED])
            tokens = ruled_tokens(request.prompt_token_ids, count, self._reasoner_of(request))
            if not tokens:
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar-replay")
            # Looked at as it is: its property would give nothing before it is compiled.
            structured.grammar = self._threads.submit(self._replay, structured._grammar, request.request_id, tokens)
        except Exception as exc:
            log.exception("the grammar of %s cannot be replayed", request.request_id)
            failed: Future[Grammar] = Future()
            failed.set_exception(exc)
            structured.grammar = failed

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _replay(self, compiled: Future[Grammar] | Grammar | None, request_id: str, tokens: list[int]) -> Grammar:
        grammar = compiled.result() if isinstance(compiled, Future) else compiled
        if grammar is None:
            raise GrammarRefusal("the request has no grammar")
        feed(grammar, request_id, tokens)
        return ReplayedGrammar(grammar, request_id, tokens) if self._speculates else grammar
