"""What people do: several devices on the same sessions, saying, editing, regenerating, queueing, cancelling, leaving.

Whoever acts looks at the books to know what there is (an item to edit, an answer to cancel), so that a refusal tells of
a race and not of ignorance; everything else goes through the device's own connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sessions.model.types import Message, SessionId, SessionKey
from tests.simulation.client import Client
from tests.simulation.nodes import ALICE
from tests.simulation.oracle import ASKED, LOOK, mark
from tests.simulation.rules import Rules
from tests.simulation.surroundings import MODELS, Surroundings

WORDS = (
    "the river",
    "a small house",
    "my answer",
    "every bird",
    "some music",
    "the road",
    "that question",
    "old words",
)


class Person:
    """One device and what is done with it, on one session."""

    def __init__(self, cluster: Surroundings, client: Client, session: str, *, actions: int, hurry: float) -> None:
        self.cluster = cluster
        self.client = client
        self.session = session
        self.key = SessionKey(ALICE.tenant, SessionId(session))
        self.actions = actions
        self.hurry = hurry
        self.rng = client.rng

    @property
    def rules(self) -> Rules:
        return self.cluster.books.account(self.key).rules

    async def create(self, *, tools: bool) -> None:
        fields: dict[str, Any] = {"instructions": "say little"} if self.rng.random() < 0.5 else {}
        if self.cluster.config.mixed:
            fields["model"] = self.rng.choice(sorted(MODELS.file.models))
        if self.rng.random() < 0.3:
            fields |= {"context_policy": "compact", "compact_threshold": self.rng.choice([60, 100, 160])}
        if tools:
            fields["tools"] = [msgspec.to_builtins(LOOK)]
        await self.client.do("session.create", self.session, **fields)

    async def live(self) -> None:
        if self.rng.random() < 0.85:
            self.client.subscribe(self.session, offset=self.rng.choice([None, 0]))
        for _ in range(self.actions):
            await asyncio.sleep(self.rng.expovariate(1.0) * self.hurry)
            if self.rules.deleted:
                return
            await self._act()
        await self._answer_tools()

    async def _act(self) -> None:
        names = list(ACTIONS)
        weights = [ACTIONS[name][0] for name in names]
        name = self.rng.choices(names, weights)[0]
        if self.rules.awaiting and self.rng.random() < 0.7:
            await self._answer_tools()
        self.client.world.count("did_" + name)
        await ACTIONS[name][1](self)

    async def _do(self, kind: str, **fields: Any) -> None:
        ask = await self.client.do(kind, self.session, **fields)
        if ask.ok is not None and self.rng.random() < 0.05:
            self.client.send(ask)  # much later, the same again: the same answer

    def text(self) -> str:
        words = f"{self.rng.choice(WORDS)} {mark(self.cluster.number())}"
        if self.rules.info is not None and self.rules.info.tools and self.rng.random() < 0.5:
            return f"{ASKED} both {words}" if self.rng.random() < 0.3 else f"{ASKED} {words}"
        return words

    def sampling(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.rng.random() < 0.3:
            fields["max_output_tokens"] = self.rng.choice([1, 2, 5, 12, 60])
        if self.rng.random() < 0.03:
            fields["stop"] = " the"
        return fields

    # -- actions ----------------------------------------------------------------------------------------------------

    async def say(self) -> None:
        fields: dict[str, Any] = self.sampling()
        if self.rng.random() < 0.4:
            fields["queue"] = True
        elif self.rng.random() < 0.1:
            fields["respond"] = False
        if self.rng.random() < 0.12:
            fields["parent_id"] = self.rng.choice([None, *self.rules.items])
        await self._do("message.create", content=self.text(), **fields)

    async def burst(self) -> None:
        """Several at once, without waiting: they are answered in the order in which they were sent."""
        asks = [
            self.client.ask("message.create", self.session, content=self.text(), queue=True, **self.sampling())
            for _ in range(self.rng.randint(2, 4))
        ]
        for ask in asks:
            await asyncio.wait((ask.answered,))

    async def edit(self) -> None:
        mine = [item.id for item in self.rules.items.values() if isinstance(item, Message) and item.role == "user"]
        if mine:
            await self._do("message.edit", item_id=self.rng.choice(mine), content=self.text(), **self.sampling())

    async def regenerate(self) -> None:
        fields: dict[str, Any] = {"queue": True} if self.rng.random() < 0.3 else {}
        if self.rng.random() < 0.5:
            asked = [item.id for item in self.rules.items.values() if isinstance(item, Message) and item.role == "user"]
            if not asked:
                return
            fields["parent_id"] = self.rng.choice(asked)
        if self.rules.items:
            await self._do("response.create", **fields, **self.sampling())

    async def cancel(self) -> None:
        rules = self.rules
        begun = [*(response.id for response in (*rules.open, *rules.queue)), *rules.awaiting]
        ended = [response.id for response in rules.responses.values() if response.terminal is not None]
        if begun or (ended and self.rng.random() < 0.2):
            await self._do("response.cancel", response_id=self.rng.choice(begun or ended))

    async def steer(self) -> None:
        rules = self.rules
        begun = [*(response.id for response in rules.open), *rules.awaiting]
        others = [response.id for response in rules.responses.values() if response.id not in begun]
        if begun or (others and self.rng.random() < 0.2):
            await self._do("response.steer", response_id=self.rng.choice(begun or others), content=self.text())

    async def follow(self) -> None:
        """Goes on from a response, as `previous_response_id` does."""
        if await self._calm() and self.rules.responses:
            rare = [response.id for response in self.rules.responses.values() if not response.parts]
            after = self.rng.choice(rare if rare and self.rng.random() < 0.5 else list(self.rules.responses))
            text = self.text()
            items = [{"type": "message", "content": text}]
            await self._do("turn.create", after_response=after, items=items, content=text)

    async def pin(self) -> None:
        if await self._calm() and self.rules.items:
            item_id = self.rng.choice(list(self.rules.items))
            await self._do("item.pin", item_id=item_id, pinned=item_id not in self.rules.pinned)

    async def remove(self) -> None:
        if await self._calm() and self.rules.items:
            await self._do("item.delete", item_id=self.rng.choice(list(self.rules.items)))

    async def erase(self) -> None:
        ended = [response.id for response in self.rules.responses.values() if response.terminal is not None]
        if ended:
            await self._do("response.erase", response_id=self.rng.choice(ended))

    async def compact(self) -> None:
        if await self._calm():
            fields: dict[str, Any] = {"keep_turns": self.rng.choice([0, 1, 1, 2])}
            if self.rules.items and self.rng.random() < 0.2:
                fields["item_id"] = self.rng.choice(list(self.rules.items))
            await self._do("session.compact", **fields)

    async def undo(self) -> None:
        if await self._calm() and (self.rules.in_force or self.rng.random() < 0.2):
            named = [summary.id for summary in self.rules.in_force]
            await self._do("compaction.undo", compaction_id=self.rng.choice([None, *named]))

    async def _calm(self) -> bool:
        """Waits a while for the end of a turn; whether the session is still there."""
        for _ in range(20):
            if self.rules.busy:
                await asyncio.sleep(self.rng.random() * 0.2)
        return not self.rules.deleted

    async def rename(self) -> None:
        await self._do("session.update", title=f"title {self.cluster.number()}", metadata={"n": str(self.actions)})

    async def look(self) -> None:
        kind = self.rng.choice(["session.get", "session.list", "session.warm"])
        await self.client.do(kind, None if kind == "session.list" else self.session)

    async def reconnect(self) -> None:
        self.client.drop()

    async def reread(self) -> None:
        """Reads anew: from the start, with a snapshot, or from where the device stands."""
        view = self.client.views.get(self.session)
        if view is not None and self.rng.random() < 0.5:
            self.client._subscribe(view)
        else:
            self.client.unsubscribe(self.session)
            await asyncio.sleep(self.rng.random() * 0.2)
            self.client.subscribe(self.session, offset=self.rng.choice([None, 0, self.rng.randint(0, self.rules.top)]))

    async def confuse(self) -> None:
        """An id that is taken, and a session that is there already."""
        ask = await self.client.do("session.update", self.session, title=f"title {self.cluster.number()}")
        if ask.ok is not None:
            other = self.client.ask("session.update", self.session, id=ask.id, title="another body")
            await asyncio.wait((other.answered,))
        await self.client.do("session.create", self.session)

    async def delete(self) -> None:
        if self.rng.random() < 0.3:
            await self._do("session.delete")

    async def think(self) -> None:
        """Long enough for the session to be parked."""
        await asyncio.sleep(self.cluster.config.idle_s + 1.5 if self.cluster.config.idle_s < 5 else 0.5)

    async def _answer_tools(self) -> None:
        for calls, _ in list(self.rules.awaiting.values()):
            for call_id in list(calls):
                if self.rng.random() < 0.85:
                    await self._do("tool.output", call_id=call_id, output=f"it is {self.text()}")


Action = Callable[[Person], Awaitable[None]]
ACTIONS: dict[str, tuple[float, Action]] = {
    "say": (10, Person.say),
    "burst": (1.5, Person.burst),
    "edit": (2, Person.edit),
    "regenerate": (2, Person.regenerate),
    "cancel": (2.5, Person.cancel),
    "steer": (1.5, Person.steer),
    "follow": (0.7, Person.follow),
    "pin": (0.7, Person.pin),
    "remove": (1.2, Person.remove),
    "erase": (0.5, Person.erase),
    "compact": (1.2, Person.compact),
    "undo": (0.7, Person.undo),
    "rename": (1, Person.rename),
    "look": (1, Person.look),
    "reconnect": (2, Person.reconnect),
    "reread": (1.5, Person.reread),
    "confuse": (0.4, Person.confuse),
    "delete": (0.5, Person.delete),
    "think": (1, Person.think),
}
