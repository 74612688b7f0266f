"""One suite for push on every store: a user's devices, and an outbox that is written with the log."""

from __future__ import annotations

import msgspec
import pytest

from sessions.governance.end_user_data import Erasure
from sessions.model.audit import Audited
from sessions.model.errors import Fenced, Limited
from sessions.model.journal_types import Due
from sessions.model.push import (
    GRACE_MS,
    SUBSCRIPTIONS_MAX,
    ApnsTarget,
    FcmTarget,
    PushId,
    PushStore,
    PushSubscription,
    PushTarget,
    QuietHours,
    address_of,
    push_id,
)
from sessions.model.types import UnixMs
from sessions.ports import Journal
from sessions.store import Store
from tests.support.stores.journals import ACME, NOW, Bed, a_log, an_append, key, patch, purge, reopened
from tests.support.stores.push_rows import a_device, a_notice, noted

DUE = UnixMs(NOW + GRACE_MS)
LATER = UnixMs(DUE + 60_000)


@pytest.fixture
def push(store: Store) -> PushStore:
    return store.push


async def test_a_users_devices_are_theirs_alone(push: PushStore) -> None:
    quiet = QuietHours(start=1320, end=420, time_zone="Europe/Berlin")
    phone, laptop = a_device("phone", quiet=quiet), a_device("laptop", created_at=UnixMs(NOW + 1))
    for each in (laptop, phone, a_device("x", "x"), a_device("y", tenant="beta")):
        await push.subscribe(each)
    assert await push.subscriptions(ACME, "ü") == [phone, laptop]
    renamed = msgspec.structs.replace(phone, label="Old phone", created_at=UnixMs(NOW + 9))
    await push.subscribe(renamed)
    assert (await push.subscriptions(ACME, "ü"))[0] == msgspec.structs.replace(renamed, created_at=NOW)
    assert not await push.unsubscribe(ACME, "x", phone.id)
    assert await push.unsubscribe(ACME, "ü", phone.id) and not await push.unsubscribe(ACME, "ü", phone.id)
    assert await push.subscriptions(ACME, "ü") == [laptop]


async def test_apps_and_browsers_side_by_side(journal: Journal, push: PushStore) -> None:
    targets: tuple[PushTarget, ...] = (ApnsTarget(token="ab" * 32, sandbox=True), FcmTarget(token="cd" * 32))
    for at, target in enumerate(targets):
        await push.subscribe(
            PushSubscription(
                id=push_id(ACME, "ü", target), tenant=ACME, user="ü", target=target, created_at=UnixMs(NOW + at)
            )
        )
    await push.subscribe(a_device("laptop", created_at=UnixMs(NOW + 9)))
    kept = await push.subscriptions(ACME, "ü")
    assert [each.target for each in kept[:2]] == list(targets) and len(kept) == 3
    await noted(journal)
    claimed = await push.claim(DUE, until=LATER, limit=9)
    found = {each.subscription.target for each in claimed if each.subscription is not None}
    assert len(claimed) == 3 and found >= set(targets)
    taken = msgspec.structs.replace(kept[0], id=push_id(ACME, "x", targets[0]), user="x")
    await push.subscribe(taken)
    assert next(each.target for each in await push.subscriptions(ACME, "ü")) == targets[1]


async def test_a_device_that_changes_hands_is_its_new_users(journal: Journal, push: PushStore) -> None:
    await push.subscribe(a_device("phone"))
    await noted(journal)
    await push.subscribe(a_device("phone", "x"))
    assert await push.subscriptions(ACME, "ü") == []
    assert len(await push.subscriptions(ACME, "x")) == 1
    assert await push.claim(DUE, until=LATER, limit=9) == []


async def test_the_devices_of_a_user_are_bounded(push: PushStore) -> None:
    for number in range(SUBSCRIPTIONS_MAX):
        await push.subscribe(a_device(str(number)))
    with pytest.raises(Limited):
        await push.subscribe(a_device("more"))
    await push.subscribe(a_device("0", label="again"))
    await push.subscribe(a_device("more", "x"))


async def test_a_notice_waits_for_each_device_of_the_user_and_is_claimed_once(
    bed: Bed, journal: Journal, push: PushStore
) -> None:
    phone, laptop = a_device("phone"), a_device("laptop")
    for each in (phone, laptop, a_device("x", "x"), a_device("y", tenant="beta")):
        await push.subscribe(each)
    await noted(journal)
    assert await push.claim(UnixMs(DUE - 1), until=LATER, limit=9) == []
    claimed = await push.claim(DUE, until=LATER, limit=9)
    assert {row.subscription for row in claimed} == {phone, laptop}
    assert {(row.key, row.notice, row.at, row.attempts) for row in claimed} == {(key("s"), a_notice(), NOW, 1)}
    assert await push.claim(DUE, until=LATER, limit=9) == []
    await push.settle(claimed[0])
    await push.postpone(claimed[1], UnixMs(DUE + 5))
    (again,) = await push.claim(UnixMs(DUE + 5), until=LATER, limit=9)
    assert (again.subscription, again.attempts) == (claimed[1].subscription, 2)
    await push.settle(again)
    assert await push.claim(LATER, until=LATER, limit=9) == []


async def test_a_later_notice_takes_the_place_of_one_that_was_not_sent(journal: Journal, push: PushStore) -> None:
    await push.subscribe(a_device("phone"))
    await noted(journal)
    (first,) = await push.claim(DUE, until=LATER, limit=9)
    head = await journal.head(key("s"))
    assert head is not None
    await journal.append(an_append(head, 3, push=a_notice(5)))
    await push.settle(first)
    await push.postpone(first, LATER)
    (second,) = await push.claim(DUE, until=LATER, limit=9)
    assert (second.notice.offset, second.attempts) == (5, 1)


async def test_what_was_read_is_sent_to_nobody(journal: Journal, push: PushStore) -> None:
    await push.subscribe(a_device("phone"))
    await noted(journal)
    await noted(journal, "t")
    await push.read_to(key("s"), 1)
    assert len(await push.claim(DUE, until=DUE, limit=9)) == 2
    await push.read_to(key("s"), 2)
    (left,) = await push.claim(DUE, until=DUE, limit=9)
    assert left.key == key("t")


async def test_a_fenced_append_notes_nothing(journal: Journal, push: PushStore) -> None:
    await push.subscribe(a_device("phone"))
    head = await a_log(journal, "s", 1)
    stale = msgspec.structs.replace(head, fence=head.fence - 1)
    with pytest.raises(Fenced):
        await journal.append(an_append(stale, 1, push=a_notice()))
    assert await push.claim(LATER, until=LATER, limit=9) == []


async def test_a_device_that_has_ended_has_nothing_waiting(journal: Journal, push: PushStore) -> None:
    phone = a_device("phone")
    await push.subscribe(phone)
    await noted(journal)
    await push.unsubscribe(ACME, "ü", phone.id)
    await push.subscribe(phone)
    assert await push.claim(LATER, until=LATER, limit=9) == []


async def test_a_deleted_session_is_told_of_nowhere_and_a_purged_one_leaves_nothing(
    journal: Journal, push: PushStore
) -> None:
    await push.subscribe(a_device("phone"))
    await a_log(journal, "s", 2, head=patch(user="ü", deleted_at=NOW), push=a_notice())
    (row,) = await push.claim(DUE, until=DUE, limit=9)
    assert row.subscription is None
    due = Due(deleted_before=UnixMs(NOW + 1))
    assert await purge(journal, due, commands_before=UnixMs(0), limit=9) == [key("s")]
    assert await push.claim(LATER, until=LATER, limit=9) == []


async def test_an_erasure_takes_devices_and_what_waits_for_them(store: Store, push: PushStore) -> None:
    for each in (a_device("phone"), a_device("x", "x"), a_device("new", created_at=UnixMs(NOW + 9))):
        await push.subscribe(each)
    await noted(store.journal)
    await noted(store.journal, "t", user="x")
    asked = Erasure(tenant=ACME, user="ü", asked_at=UnixMs(NOW + 5), asked_by="boss")
    await store.end_users.request_erasure(asked, Audited(action="user.erasure_asked", at=NOW, user="ü"))
    assert [address_of(each.target)[-3:] for each in await push.subscriptions(ACME, "ü")] == ["new"]
    assert [row.key for row in await push.claim(LATER, until=LATER, limit=9)] == [key("t")]


async def test_what_is_stored_of_a_device_outlives_the_process(bed: Bed, store: Store) -> None:
    await store.push.subscribe(a_device("phone"))
    await noted(store.journal)
    async with reopened(bed, store) as again:
        assert await again.push.subscriptions(ACME, "ü") == [a_device("phone")]
        (row,) = await again.push.claim(DUE, until=LATER, limit=9)
    assert row.subscription == a_device("phone") and row.subscription_id == PushId(a_device("phone").id)
