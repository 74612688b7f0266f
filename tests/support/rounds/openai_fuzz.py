"""Requests made up from the OpenAPI document, thousands of them: no server error, no answer that is not as described.

    python -m tests.support.rounds.openai_fuzz --cases 20000 --seed 1      # `make fuzz`

In three phases: coverage (each constraint of the document at and beyond its bounds, unexpected methods included),
sequences (answers' ids go into the next requests, along the links that schemathesis infers), and requests drawn at
random. Half of these are as the document asks, the others are not; in most of them the model and the ids are ones that
exist, so that they get behind the first check. Every answer must have
a status, a content type and a body that the document describes; every line of a stream must fit its model, and what
goes to an OpenAI client must also fit the types of OpenAI's own SDK.

The same seed makes the same requests in the same order, but for the ids that the server chose and for what hangs on how
far a turn has come meanwhile: `digests` names each phase's order of operations.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky, FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from testbed.server_process import ServerProcess
from transport.openai.response_models import ChatChunk

FAST: Final = (
    *("--engine", "sim", "--journal", "memory", "--sim-tokens-per-s", "5000", "--sim-answer-tokens", "8"),
    *("--input-keywords", "nightjar"),
)
KEPT_MAX: Final = 40
COVERAGE_SHARE: Final = 0.4
SEQUENCES_SHARE: Final = 0.25
SEQUENCES_AT_ONCE: Final = 10  # of ten requests
SEED_STEP: Final = 1000  # between the passes of a run: two runs whose seeds are near share none
PASSES_MAX: Final = 6
CHECKS: Final = (
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)
CHAT, RESPONSES, CONVERSATIONS = "/v1/chat/completions", "/v1/responses", "/v1/conversations"
ENDLESS: Final = "/v1/sessions/{session}/events"  # of a session that exists: read elsewhere

_chunk: Final[TypeAdapter[Any]] = TypeAdapter(ChatCompletionChunk)
_event: Final[TypeAdapter[Any]] = TypeAdapter(ResponseStreamEvent)
_whole: Final[dict[str, TypeAdapter[Any]]] = {CHAT: TypeAdapter(ChatCompletion), RESPONSES: TypeAdapter(Response)}


class Fuzzer:
    """Draws and judges. What is wrong is collected in `problems`; nothing is raised for it."""

    def __init__(self, url: str, number: int) -> None:
        self.schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        self.problems: list[str] = []
        self.statuses: Counter[int] = Counter()
        self.cases = 0
        self.phases: Counter[str] = Counter()
        self._phase = ""
        self._orders: dict[str, Any] = {}
        self._http = requests.Session()
        self._rng = random.Random(number)
        self._model = requests.get(f"{url}/v1/models", timeout=60).json()["data"][0]["id"]
        self._url = url
        self._kept: dict[str, list[str]] = {"conversation": [], "response_id": [], "item_id": []}

    @property
    def digests(self) -> dict[str, str]:
        """Of each phase's operations in their order: two runs with equal ones went the same way."""
        return {phase: order.hexdigest()[:12] for phase, order in self._orders.items()}

    def _stock(self) -> None:
        """Makes what requests may name, where little of it is left."""
        if len(self._kept["conversation"]) < 3:
            items = [{"role": "user", "content": "hello"}]
            conversation = self._post(CONVERSATIONS, {"items": items})["id"]
            self._post(RESPONSES, {"model": self._model, "input": "hello", "conversation": conversation})
        if len(self._kept["response_id"]) < 3:
            self._post(RESPONSES, {"model": self._model, "input": "hello", "background": True})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._http.post(self._url + path, json=body, timeout=60)
        answer.raise_for_status()
        self._keep(path, answer.json())
        return answer.json()

    def run(self, cases: int, number: int) -> None:
        """Coverage and sequences take their shares, as far as there are so many; the rest is drawn."""
        operations = [result.ok() for result in self.schema.get_all_operations() if isinstance(result, Ok)]
        self._phase = "coverage"
        self._cover(operations, round(cases * COVERAGE_SHARE))
        self._phase = "sequences"
        self._follow(round(cases * SEQUENCES_SHARE), number)
        self._phase = "drawn"
        self._draw(operations, cases, number)

    def _cover(self, operations: list[Any], cases: int) -> None:
        """Takes turns between the operations, so that none is left out where there are more than `cases`."""
        modes = list(schemathesis.GenerationMode)
        rest = [
            self.schema.iter_coverage_cases(
                operation,
                generation_modes=modes,
                generation_config=self.schema.config.generation_for(operation=operation, phase="coverage"),
            )
            for operation in operations
        ]
        while rest and self.cases < cases:
            for one in list(rest):
                case = next(one, None)
                if case is None:
                    rest.remove(one)
                elif case.path != ENDLESS or self.cases % 2:  # of a session that is not there
                    self._judge(case)

    def _follow(self, cases: int, number: int) -> None:
        fuzzer, until = self, self.cases + cases

        class Sequences(self.schema.exclude(path=ENDLESS).as_state_machine()):  # type: ignore[misc]
            def call(self, case: Any, **kwargs: Any) -> Any:
                return fuzzer._call(case)

            def validate_response(self, response: Any, case: Any, **kwargs: Any) -> None:
                fuzzer._check(case, response)

            def teardown(self) -> None:
                pass

        self._stock()
        given_settings = settings(
            max_examples=SEQUENCES_AT_ONCE,
            stateful_step_count=10,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        rounds = 0
        while self.cases < until and rounds < cases:
            rounds += 1
            with suppress(Flaky, FlakyStrategyDefinition):  # the server remembers: what went another way is no finding
                run_state_machine_as_test(seed(number + SEED_STEP * rounds)(Sequences), settings=given_settings)

    def _draw(self, operations: list[Any], cases: int, number: int) -> None:
        """Spreads the cases over the operations, more of them to those with bodies."""
        begun = self.cases
        cases -= begun
        weights = [4 if operation.body else 1 for operation in operations]
        for again in range(PASSES_MAX):  # some operations have fewer requests to make up than their share
            left = cases - (self.cases - begun)
            for operation, weight in zip(operations, weights, strict=True):
                if left > 0:
                    self._operation(operation, max(1, round(left * weight / sum(weights))), number + SEED_STEP * again)

    def _operation(self, operation: Any, cases: int, number: int) -> None:
        modes = schemathesis.GenerationMode
        drawn = st.one_of(
            operation.as_strategy(generation_mode=modes.POSITIVE), operation.as_strategy(generation_mode=modes.NEGATIVE)
        )

        @seed(number)
        @settings(
            max_examples=cases,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(drawn)
        def fuzz(case: Any) -> None:
            self._stock()
            self._nearer(case)
            self._judge(case)

        fuzz()

    # -- a request -----------------------------------------------------------------------------------------------

    def _nearer(self, case: Any) -> None:
        """Puts a model and ids that exist into most requests."""
        parameters = case.path_parameters
        if parameters and case.path != ENDLESS and self._rng.random() < 0.8:
            for name in list(parameters):
                kept = self._kept.get("conversation" if name == "session" else name)
                if kept:
                    parameters[name] = self._rng.choice(kept)
                elif name == "model":
                    parameters[name] = self._model
        body = case.body
        if isinstance(body, dict) and self._rng.random() < 0.8:
            if case.path in (CHAT, RESPONSES):
                body["model"] = self._model
            for name, where in (("previous_response_id", "response_id"), ("conversation", "conversation")):
                if name in body and self._rng.random() < 0.7:
                    body[name] = self._rng.choice([None, *self._kept[where]])

    def _judge(self, case: Any) -> None:
        try:
            answer = self._call(case)
        except requests.RequestException as error:
            self._wrong(case, f"no answer: {error!r}")
            return
        self._check(case, answer)

    def _call(self, case: Any) -> Any:
        self.cases += 1
        self.phases[self._phase] += 1
        self._orders.setdefault(self._phase, hashlib.sha256()).update(f"{case.method} {case.path}\n".encode())
        return case.call(session=self._http, timeout=60)

    def _check(self, case: Any, answer: Any) -> None:
        self.statuses[answer.status_code] += 1
        if case.method == "DELETE" or answer.status_code == 410:
            for kept in self._kept.values():
                kept[:] = [each for each in kept if each not in case.path_parameters.values()]
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                self._wrong(case, f"{answer.status_code}: {failure}")
            return
        except Failure as failure:
            self._wrong(case, f"{answer.status_code}: {failure}")
            return
        if answer.status_code >= 300:
            return
        try:
            self._fits(case, answer)
        except ValueError as error:
            self._wrong(case, f"{answer.status_code}: {error}")

    def _fits(self, case: Any, answer: Any) -> None:
        """Raises ValueError for what OpenAI's own types, or our models of streams, do not take."""
        kind = answer.headers["content-type"][0]
        path = case.path.removesuffix("/cancel").replace("/{response_id}", "")
        if kind.startswith("text/event-stream"):
            lines = [line for line in answer.content.decode().split("\n") if line.startswith("data: ")]
            for line in lines:
                if line == "data: [DONE]":
                    continue
                data = json.loads(line.removeprefix("data: "))
                if "error" in data or data.get("type") == "error":
                    continue
                if path == CHAT:
                    ChatChunk.model_validate(data, strict=True)
                    _chunk.validate_python(data)
                elif path == RESPONSES:
                    _event.validate_python(data)
        elif kind.startswith("application/json"):
            data = json.loads(answer.content)
            if path in _whole and not data.get("deleted") and data.get("object") in ("response", "chat.completion"):
                _whole[path].validate_python(data)
            self._keep(case.path, data)

    def _keep(self, path: str, data: Any) -> None:
        """Ids that answers named, for requests to come."""
        where = {CONVERSATIONS: "conversation", RESPONSES: "response_id"}.get(path)
        if where is not None and isinstance(data.get("id"), str):
            self._kept[where].append(data["id"])
            del self._kept[where][:-KEPT_MAX]
        for item in data["data"] if isinstance(data, dict) and path.endswith("/items") else ():
            self._kept["item_id"].append(item["id"])
            del self._kept["item_id"][:-KEPT_MAX]

    def _wrong(self, case: Any, what: str) -> None:
        body = repr(case.body)[:600]
        self.problems.append(f"{case.method} {case.formatted_path} {case.query!r}\n  body {body}\n  {what[:1500]}")


def fuzzed(url: str, cases: int, number: int, *, fuzzer: Callable[[str, int], Fuzzer] = Fuzzer) -> Fuzzer:
    made = fuzzer(url, number)
    made.run(cases, number)
    return made


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with ServerProcess(*FAST) as server:
        done = fuzzed(f"http://127.0.0.1:{server.port}", chosen.cases, chosen.seed)
    print(*done.problems[:20], sep="\n")
    print(f"{done.cases} cases, {dict(done.phases)}, {dict(sorted(done.statuses.items()))}, {done.digests}")
    print(f"{len(done.problems)} problems")
    return not done.problems


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
