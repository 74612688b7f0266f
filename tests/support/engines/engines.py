"""The engines that the contract suite runs on.

`World.engine()` starts one more engine of the same kind: a second replica, or the same one after a restart. Everything
that was started is closed at the end, and must have given all its slots back.
"""

from __future__ import annotations

from pathlib import Path

from inference.brownout_engine import make_brownout_engine
from inference.kv.cost import CostModel, RestoreChoice
from inference.llama import LlamaEngine, LlamaOptions
from inference.simulated import SimulatedEngine, SimulatedOptions
from sessions.model.types import OPENINGS, SessionKey
from sessions.ports import Engine

SLOTS = 2
WINDOW = 1024
WAITING_MAX = 4


class AlwaysRestores(CostModel):
    """Restores where a busy machine's clock might advise against it: what is tested here is that it comes out right."""

    def choose(self, tiers: tuple[str, ...], num_bytes: int, begin: int, end: int, now_s: float) -> RestoreChoice:
        return RestoreChoice(True, 0.0, 1.0, 30.0)

    def is_worth_saving(self, num_bytes: int, begin: int, end: int, now_s: float) -> bool:
        return True


class World:
    """One kind of engine. Subclasses say how to start one."""

    name = ""
    block_tokens = 1  # the unit in which KV is kept and reused

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._engines: list[Engine] = []

    def whole(self, tokens: int) -> int:
        """What of so many tokens can be reused."""
        return tokens - tokens % self.block_tokens

    def _make(self, waiting_max: int) -> Engine:
        raise NotImplementedError

    async def engine(self, *, waiting_max: int = WAITING_MAX) -> Engine:
        engine = self._make(waiting_max)
        self._engines.append(engine)
        await engine.start()
        return engine

    async def close(self) -> None:
        for engine in self._engines:
            stats = engine.stats()
            assert (stats.running, stats.waiting) == (0, 0), "a test left something running"
            await engine.close()


class SimulatedWorld(World):
    name = "simulated"

    def _make(self, waiting_max: int) -> Engine:
        return SimulatedEngine(
            SimulatedOptions(
                slots=SLOTS,
                context_window=WINDOW,
                kv_tokens_max=8 * WINDOW,
                waiting_max=waiting_max,
                step_base_s=0.001,
                answer_tokens_mean=60,
            )
        )


class SwitchingWorld(SimulatedWorld):
    """A model with a smaller one beside it that nobody asks for: it does all that the model alone does."""

    def _make(self, waiting_max: int) -> Engine:
        main = super()._make(waiting_max)
        assert isinstance(main, SimulatedEngine)
        return make_brownout_engine(main, lambda _: SimulatedEngine(main.options.smaller("smaller", 4.0, 1)))


class LlamaWorld(World):
    """Takes engines that other tests have left `idle`, and leaves its own there without a session: to start one takes
    more than a second."""

    name = "llama"

    def __init__(
        self, folder: Path, model_path: Path, *, chat_template: str | None = None, idle: list[Engine] | None = None
    ) -> None:
        super().__init__(folder)
        self.model_path = model_path
        self.chat_template = chat_template
        self._idle = idle

    def _make(self, waiting_max: int) -> Engine:
        return LlamaEngine(
            LlamaOptions(
                model_path=self.model_path,
                slots=SLOTS,
                context_window=WINDOW,
                chat_template=self.chat_template,
                waiting_max=waiting_max,
                spill_tokens_min=16,
                disk_folder=self.folder / f"kv{len(self._engines)}",
            ),
            cost=AlwaysRestores(),
        )

    async def engine(self, *, waiting_max: int = WAITING_MAX) -> Engine:
        if not self._idle or waiting_max != WAITING_MAX:
            return await super().engine(waiting_max=waiting_max)
        self._engines.append(self._idle.pop())
        return self._engines[-1]

    async def close(self) -> None:
        for engine in self._engines:
            assert isinstance(engine, LlamaEngine)
            if self._idle is not None and engine._unavailable is None and engine.options.waiting_max == WAITING_MAX:
                held = engine.held_sessions()
                for who in held | {SessionKey(each.tenant, OPENINGS) for each in held}:
                    await engine.release(who)
                assert (engine.stats().running, engine.stats().waiting) == (0, 0), "a test left something running"
                self._idle.append(engine)
        self._engines = [engine for engine in self._engines if engine not in (self._idle or ())]
        await super().close()
