"""The directory on Valkey or Redis 7: one server, a master behind Sentinel, or a cluster.

Everything of one partition lives in one hash slot (`{namespace:17}:…`), so one script sees lease and entry together and
runs whole or not at all; the members live in a slot of their own. Scripts take the time from their server. The rules
are those of `rules.py`, the layout is at the top of `lua/prelude.lua`, addresses are described in `address.py`.

Every call waits at most about three times `timeout_s` (a connection, the queue, the answer). Errors: Unavailable means
that nothing happened. OutcomeUnknown means that a write was sent and not answered; it is not repeated here (reads are,
once). A call that is cancelled may still happen, before any later call of the same directory for the same session.

Announcing and withdrawing write the member first and the 64 leases after it, so on a cluster they can half succeed.
They then raise, the keeper's own deadline stays where it was, and doing it again repairs it.

It does not know who may own a session: that another replica was first is an ordinary answer, and the journal's fence
decides.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import structlog
from redis.asyncio import RedisCluster
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from actors.directory.address import client_for, parse
from actors.directory.common import (
    LEASE_TTL_S,
    PARTITIONS,
    Activations,
    Announcement,
    Freshness,
    partition_of,
    session_name,
)
from actors.directory.pipelined_connection import NotSent, ReplyLost, Word
from actors.directory.pubsub import QUIET_S, PubSubListener
from actors.directory.rules import GRACE_TTLS, lease_missing, replaced, stable
from actors.directory.scripts import Script, run_script, script
from actors.directory.topology import servers_for
from sessions.model.errors import BadInput, Internal, OutcomeUnknown, SessileError, Unavailable
from sessions.model.types import ActivationId, ReplicaId, SessionKey
from sessions.ports import Claim, Member, Owner, View

VERSION_MIN: Final = (7, 0)
WATCH_BATCH: Final = 256
REPLACED: Final = 4
SWEEPING: Final = 2
JOINED: Final = 1
NO_LEASE: Final = -1

log = structlog.get_logger(__name__)

Activation = tuple[SessionKey, Owner]


class ValkeyDirectory:
    """The directory on Valkey or Redis; implements `actors.directory.Leases`, with a script for each method. It has
    many methods because the port has."""

    def __init__(
        self,
        url: str,
        *,
        lease_ttl_s: float = LEASE_TTL_S,
        timeout_s: float = 1.0,
        quiet_s: float = QUIET_S,
        namespace: str = "sessile",
    ) -> None:
        """Connects to nothing yet. Raises BadInput for a malformed `url` (see `address.parse`).

        `timeout_s` bounds each wait for a server; `quiet_s` is how long a subscription may be silent before it is
        probed.
        """
        address = parse(url)
        client = client_for(address, timeout_s=timeout_s)
        self.where = address.where
        self._clustered = isinstance(client, RedisCluster)
        self._servers = servers_for(client, timeout_s=timeout_s)
        self._ttl_ms = round(lease_ttl_s * 1000)
        self._timeout_s = timeout_s
        self._quiet_s = quiet_s
        self._namespace = namespace
        self._freshness = Freshness()
        self._generations: dict[tuple[ReplicaId, str], int] = {}
        self._tidy_next = 0
        self._sweeping: set[int] = set()
        self._subscriptions: dict[Activations, tuple[str, PubSubListener]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._open = False

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connects. Raises Unavailable if no server answers, BadInput if a server cannot be the directory."""
        try:
            await self._servers.open()
            info = await self._servers.call(self._key(0, "meta"), "INFO")
        except (NotSent, ReplyLost) as error:
            raise self._not_opened(error) from error
        except RedisError as error:
            raise self._refused(error) from error
        self._check_server(_info(info))
        self._open = True

    async def clock_s(self) -> float:
        """Returns the server's wall clock in Unix seconds; that of the first node in a cluster. Raises Unavailable."""
        try:
            seconds, micros = await self._servers.call(self._key(0, "meta"), "TIME")
        except (NotSent, ReplyLost, RedisError) as error:
            raise self._not_opened(error) from error
        return int(seconds) + int(micros) / 1e6

    def _not_opened(self, error: Exception) -> SessileError:
        causes = list(_causes(error))
        if any(isinstance(cause, AuthenticationError | AuthorizationError) for cause in causes):
            problem = "refuses our name or password"
        elif self._clustered and any(isinstance(cause, ResponseError) for cause in causes):
            problem = "is not part of a cluster: write redis:// instead of redis+cluster://"
        else:
            return Unavailable(
                "directory_unavailable", f"The session directory at {self.where} does not answer ({error})."
            )
        return BadInput("directory_unsuitable", f"The server at {self.where} {problem}.", param="directory")

    def _check_server(self, info: dict[str, str]) -> None:
        version = tuple(int(part) for part in info.get("redis_version", "0").split(".")[:2] if part.isdigit())
        if version < VERSION_MIN:
            raise BadInput(
                "directory_unsuitable",
                f"The server at {self.where} speaks Redis {info.get('redis_version', '?')}; 7.0 or Valkey is needed.",
                param="directory",
            )
        if info.get("cluster_enabled") == "1" and not self._clustered:
            raise BadInput(
                "directory_unsuitable",
                f"The server at {self.where} is part of a cluster: write redis+cluster:// instead of redis://.",
                param="directory",
            )
        if info.get("maxmemory", "0") != "0" and info.get("maxmemory_policy") != "noeviction":
            log.warning("directory_evicts", where=self.where, policy=info.get("maxmemory_policy"))

    async def close(self) -> None:
        """Ends the streams of activations and the connections; what is stored stays. Idempotent."""
        self._open = False
        for stream in list(self._subscriptions):
            stream.close()
        await asyncio.gather(*self._closing)
        await self._servers.close()

    # -- members ------------------------------------------------------------------------------------

    async def announce(self, member: Member) -> Announcement:
        replica, incarnation = member.replica, member.incarnation
        generation = self._generations.get((replica, incarnation), 0)
        status, version, *rest = await self._run(
            script("announce"),
            [self._members, self._members_meta],
            [
                replica,
                incarnation,
                generation,
                self._ttl_ms,
                self._freshness.seen,
                GRACE_TTLS,
                msgspec.json.encode(stable(member)),
                msgspec.json.encode(member),
            ],
        )
        self._freshness.record_answer(version)
        if status == b"replaced":
            raise replaced(replica)
        generation, members, vanished = rest
        rejoined = await self._lease(replica, incarnation, generation, version)
        self._generations[replica, incarnation] = generation
        self._freshness.record_returned(version)
        return Announcement(version, _members(members), rejoined, _members(vanished))

    async def _lease(self, replica: ReplicaId, incarnation: str, generation: int, version: int) -> frozenset[int]:
        """Renews the lease in all partitions; returns those in which it had not been alive."""
        tidy = self._sweeping | {self._tidy_next}
        self._tidy_next = (self._tidy_next + 1) % PARTITIONS
        common: list[Word] = [replica, incarnation, generation, self._ttl_ms, version, GRACE_TTLS]
        groups = self._partition_groups()
        answers = await self._all(
            [
                self._run(
                    script("lease"),
                    [key for partition in group for key in self._partition_keys(partition)],
                    common + [int(partition in tidy) for partition in group],
                )
                for group in groups
            ]
        )
        flags = {
            partition: flag
            for group, answer in zip(groups, answers, strict=True)
            for partition, flag in zip(group, answer, strict=True)
        }
        self._sweeping = {partition for partition, flag in flags.items() if flag & SWEEPING}
        if any(flag & REPLACED for flag in flags.values()):
            raise replaced(replica)
        return frozenset(partition for partition, flag in flags.items() if flag & JOINED)

    async def withdraw(self, replica: ReplicaId, incarnation: str) -> None:
        # A replica that joins again under this name joins anew: nothing that was claimed before counts for it.
        self._generations.pop((replica, incarnation), None)
        (version,) = await self._run(script("resign"), [self._members, self._members_meta], [replica, incarnation])
        self._freshness.record_answer(version)
        await self._all(
            [
                self._run(
                    script("withdraw"),
                    [key for partition in group for key in self._partition_keys(partition)],
                    [replica, incarnation, version],
                )
                for group in self._partition_groups()
            ]
        )

    async def view(self) -> View:
        version, *members = await self._run(
            script("view"), [self._members, self._members_meta], [self._freshness.seen, GRACE_TTLS]
        )
        self._freshness.record_returned(version)
        return View(version, _members(members))

    async def news(self) -> None:
        await self._freshness.news()

    # -- sessions -----------------------------------------------------------------------------------

    async def locate(self, key: SessionKey) -> Owner | None:
        version, *owner = await self._run(
            script("locate"), self._partition_keys(partition_of(key)), [session_name(key)]
        )
        self._freshness.record_answer(version)
        return _owner(owner) if owner else None

    async def claim(self, key: SessionKey, owner: Owner, *, instead_of: Owner | None = None) -> Claim:
        words: list[Word] = [session_name(key), owner.replica, owner.incarnation, owner.activation]
        if instead_of is not None:
            words += [instead_of.replica, instead_of.incarnation, instead_of.activation]
        won, version, *holder = await self._run(script("claim"), self._partition_keys(partition_of(key)), words)
        self._freshness.record_answer(version)
        if won == NO_LEASE:
            self._freshness.lease_missing()
            raise lease_missing(owner.replica)
        return Claim(won=bool(won), owner=_owner(holder) if holder else owner)

    async def release(self, key: SessionKey, owner: Owner) -> None:
        _, owners, meta = self._partition_keys(partition_of(key))
        (version,) = await self._run(
            script("release"),
            [owners, meta],
            [session_name(key), owner.replica, owner.incarnation, owner.activation],
        )
        self._freshness.record_answer(version)

    # -- readers ------------------------------------------------------------------------------------

    async def watch(self, gateway: str, keys: Sequence[SessionKey]) -> None:
        """Registers a gateway's interest as in the port. If this directory also listens for `gateway`, the call first
        waits for its subscription, so that no activation after the return is missed while the servers stay up."""
        self._check_open()
        try:
            for name, subscription in list(self._subscriptions.values()):
                if name == gateway:
                    await subscription.ready(self._timeout_s)
        except NotSent as error:
            raise self._unavailable(error) from error
        groups: dict[int, list[str]] = defaultdict(list)
        for key in keys:
            groups[0 if self._servers.together else partition_of(key)].append(self._watch_key(key))
        for names in groups.values():
            for start in range(0, len(names), WATCH_BATCH):
                await self._run(script("watch"), names[start : start + WATCH_BATCH], [gateway, self._ttl_ms])

    async def watchers(self, key: SessionKey) -> list[str]:
        return sorted(name.decode() for name in await self._run(script("watchers"), [self._watch_key(key)], []))

    async def activated(self, key: SessionKey, owner: Owner) -> None:
        await self._run(
            script("activated"),
            [self._watch_key(key)],
            [self._key(partition_of(key), "told:"), msgspec.msgpack.encode((key, owner))],
        )

    def activations(self, gateway: str) -> Activations:
        self._check_open()

        def forget(stream: Activations) -> None:
            _, subscription = self._subscriptions.pop(stream)
            closing = asyncio.get_running_loop().create_task(subscription.close(), name="directory-unsubscribe")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

        stream = Activations(forget)

        def push(message: bytes) -> None:
            try:
                key, owner = msgspec.msgpack.decode(message, type=Activation)
            except msgspec.MsgspecError as error:
                log.warning("directory_message_refused", error=str(error))
            else:
                stream.push(key, owner)

        channels = [self._key(partition, f"told:{gateway}") for partition in range(PARTITIONS)]
        self._subscriptions[stream] = (gateway, PubSubListener(self._servers, channels, push, quiet_s=self._quiet_s))
        return stream

    # -- keys ---------------------------------------------------------------------------------------

    def _key(self, partition: int | str, name: str) -> str:
        return f"{{{self._namespace}:{partition}}}:{name}"

    @property
    def _members(self) -> str:
        return self._key("members", "members")

    @property
    def _members_meta(self) -> str:
        return self._key("members", "meta")

    def _partition_keys(self, partition: int) -> list[str]:
        return [self._key(partition, "leases"), self._key(partition, "owners"), self._key(partition, "meta")]

    def _watch_key(self, key: SessionKey) -> str:
        return self._key(partition_of(key), f"watch:{session_name(key)}")

    def _partition_groups(self) -> list[range]:
        if self._servers.together:
            return [range(PARTITIONS)]
        return [range(partition, partition + 1) for partition in range(PARTITIONS)]

    # -- calls --------------------------------------------------------------------------------------

    async def _run(self, what: Script, keys: Sequence[str], words: Sequence[Word]) -> Any:
        """Runs a script on the server of `keys`, and translates errors into those of the port."""
        self._check_open()
        attempts = 1 if what.writes else 2
        while True:
            attempts -= 1
            try:
                return await run_script(self._servers, what, keys, *words)
            except NotSent as error:
                raise self._unavailable(error) from error
            except ReplyLost as error:
                if what.writes:
                    raise OutcomeUnknown(
                        "directory_outcome_unknown", "The session directory took a request and did not answer."
                    ) from error
                if not attempts:
                    raise self._unavailable(error) from error
            except RedisError as error:
                raise self._refused(error) from error

    async def _all(self, runs: Sequence[Any]) -> list[Any]:
        """Awaits all script runs, even if some fail, and returns their answers. Raises the first failure, but
        OutcomeUnknown before any other."""
        answers = await asyncio.gather(*runs, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if failures:
            raise next((failure for failure in failures if isinstance(failure, OutcomeUnknown)), failures[0])
        return answers

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable("directory_closed", "The session directory is closed.")

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable("directory_unavailable", "The session directory cannot be reached.")

    def _refused(self, error: RedisError) -> SessileError:
        """Returns the error of the port for one that a server answered with: nothing has happened."""
        if isinstance(error, OutOfMemoryError):
            return Unavailable("directory_full", "The session directory is out of memory.")
        if isinstance(error, NoPermissionError):
            return Unavailable("directory_forbids", f"The session directory does not allow us this: {error}")
        if isinstance(error, ReadOnlyError) or _passing(error):
            return Unavailable("directory_unavailable", "The session directory cannot take requests now.")
        return Internal("directory_script_failed", "The session directory refused a script of ours.")


# Answers of a server that will take the same request later, by their first word.
_PASSING: Final = ("LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "BUSY", "UNKILLABLE", "TRYAGAIN")


def _passing(error: RedisError) -> bool:
    return isinstance(error, ResponseError) and str(error).startswith(_PASSING)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _owner(words: Sequence[bytes]) -> Owner:
    replica, incarnation, activation = (word.decode() for word in words)
    return Owner(ReplicaId(replica), incarnation, ActivationId(activation))


def _members(blobs: Sequence[bytes]) -> tuple[Member, ...]:
    members = [msgspec.json.decode(blob, type=Member) for blob in blobs]
    return tuple(sorted(members, key=lambda member: member.replica))


def _info(text: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}
