"""One suite for files on every store: who has what, contents that are shared and let go, quotas, erasure."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from persistence.sql.files import SqlFiles
from persistence.sql.folder_file_chunks import FolderFileChunks
from persistence.sqlite.store import SqliteStore
from sessions.governance.end_user_data import Erasure
from sessions.model.audit import Audited
from sessions.model.errors import Internal, Limited, NotFound, Unavailable
from sessions.model.knowledge.files import (
    CHUNK_BYTES,
    UPLOAD_MS,
    FileId,
    FileQuery,
    FileQuota,
    FileQuotas,
    FileStore,
    FileTotals,
    StoredFile,
)
from sessions.model.types import TenantId, UnixMs
from sessions.store import Store
from tests.support.stores.file_rows import a_file, content_of, uploaded
from tests.support.stores.journals import ACME, NOW, SqliteBed

LONG = bytes(range(256)) * 2600  # of three chunks


@pytest.fixture
def files(store: Store) -> FileStore:
    return store.files


@pytest.fixture
async def in_a_folder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FileStore]:
    """The other driver of bytes: rows in SQLite, bytes in a folder."""
    folder = tmp_path_factory.mktemp("files")
    store = await SqliteBed(folder, sealed=True).open()
    assert isinstance(store, SqliteStore)
    yield SqlFiles(store.database, FolderFileChunks(folder / "objects"))
    await store.close()


async def test_a_file_is_read_as_it_was_put(files: FileStore, in_a_folder: FileStore) -> None:
    for each in (files, in_a_folder):
        for number, content in enumerate((b"", b"x", b"y" * CHUNK_BYTES, LONG)):
            file = await uploaded(each, content, name=f"{number}.txt")
            assert await each.find(ACME, file.id, NOW) == file
            assert await content_of(each, file) == content
        assert await each.totals(ACME, "ü") == FileTotals(4, 1 + CHUNK_BYTES + len(LONG))


async def test_files_are_their_tenants(files: FileStore) -> None:
    file = await uploaded(files, b"mine")
    assert await files.find(TenantId("beta"), file.id, NOW) is None
    assert not await files.remove(TenantId("beta"), file.id, NOW)
    for name in ("../" + file.id, file.id + "\0", "", "ü", "x" * 5000):
        assert await files.find(ACME, FileId(name), NOW) is None


async def test_lists_go_page_by_page_of_one_user_or_all(files: FileStore) -> None:
    made = [await uploaded(files, b"%d" % n, at=NOW + n // 2, user="ü" if n % 2 else "x") for n in range(6)]
    every = FileQuery(tenant=ACME, anybody=True)
    newest = sorted(made, key=lambda file: (file.created_at, file.id), reverse=True)
    assert await files.files(every, NOW) == newest
    assert await files.files(msgspec.structs.replace(every, newest_first=False, limit=2), NOW) == newest[::-1][:2]
    page = msgspec.structs.replace(every, limit=2, after=newest[1].id)
    assert await files.files(page, NOW) == newest[2:4]
    assert await files.files(FileQuery(tenant=ACME, user="x"), NOW) == [f for f in newest if f.user == "x"]
    assert await files.files(FileQuery(tenant=ACME), NOW) == []
    vision = await uploaded(files, b"v", purpose="vision")
    assert await files.files(msgspec.structs.replace(every, purpose="vision"), NOW) == [vision]
    for after in (FileId("file-none"), made[0].id):
        with pytest.raises(NotFound):
            await files.files(FileQuery(tenant=ACME, user="ü", after=after), NOW)


async def test_equal_contents_of_one_owner_are_kept_once(files: FileStore) -> None:
    one, two = await uploaded(files, LONG), await uploaded(files, LONG, name="again.txt")
    others = await uploaded(files, LONG, user="x")
    nobodys = await uploaded(files, LONG, user=None)
    assert one.blob == two.blob and len({one.blob, others.blob, nobodys.blob}) == 3
    assert await files.collect(NOW, limit=9) == 1, "what was put a second time"
    assert await files.remove(ACME, one.id, NOW) and not await files.remove(ACME, one.id, NOW)
    assert await files.collect(NOW, limit=9) == 0
    assert await content_of(files, two) == LONG
    assert await files.remove(ACME, two.id, NOW)
    with pytest.raises(NotFound):
        await content_of(files, two)
    assert await files.collect(NOW, limit=9) == 1
    again = await uploaded(files, LONG)
    assert again.blob != one.blob and await content_of(files, again) == LONG


async def test_an_upload_that_is_left_alone_is_collected(files: FileStore) -> None:
    blob = await files.begin(ACME, "ü", NOW)
    await files.put_chunk(ACME, blob, 0, b"x")
    assert await files.collect(UnixMs(NOW + UPLOAD_MS - 1), limit=9) == 0
    assert await files.collect(UnixMs(NOW + UPLOAD_MS), limit=9) == 1
    await files.put_chunk(ACME, blob, 1, b"x")
    with pytest.raises(Unavailable):
        await files.finish(a_file(b"xx", blob=blob), FileQuotas())
    given_up = await files.begin(ACME, "ü", NOW)
    await files.put_chunk(ACME, given_up, 0, b"x")
    await files.abandon(ACME, given_up)
    await files.abandon(ACME, given_up)
    assert await files.collect(UnixMs(NOW + UPLOAD_MS), limit=9) == 0


async def test_quotas_of_a_user_and_of_the_tenant(files: FileStore) -> None:
    user = FileQuotas(user=FileQuota(files=2, size=10))
    await uploaded(files, b"12345", quotas=user)
    with pytest.raises(Limited) as refused:
        await uploaded(files, b"123456", quotas=user)
    assert refused.value.code == "file_quota_exceeded"
    await uploaded(files, b"12345", quotas=user)
    with pytest.raises(Limited, match="files"):
        await uploaded(files, b"", quotas=user)
    await uploaded(files, b"12345", user="x", quotas=user)
    tenant = FileQuotas(tenant=FileQuota(size=20))
    with pytest.raises(Limited, match="organisation"):
        await uploaded(files, b"123456", user=None, quotas=tenant)
    await uploaded(files, b"12345", user=None, quotas=tenant)
    assert await files.totals(ACME, None, anybody=True) == FileTotals(4, 20)


async def test_expired_files_are_not_there_and_are_collected(files: FileStore) -> None:
    file = await uploaded(files, LONG, expires_at=UnixMs(NOW + 10))
    assert await files.find(ACME, file.id, UnixMs(NOW + 9)) == file
    late = UnixMs(NOW + 10)
    assert await files.find(ACME, file.id, late) is None and not await files.remove(ACME, file.id, late)
    assert await files.files(FileQuery(tenant=ACME, anybody=True), late) == []
    ids = [file.id, FileId("file-none"), FileId("\0")]
    assert await files.existing(ACME, ids, UnixMs(NOW + 9)) == {file.id}
    assert await files.existing(ACME, ids, late) == await files.existing(ACME, [], NOW) == set()
    assert await files.existing(TenantId("beta"), ids, NOW) == set()
    assert await files.collect(UnixMs(NOW + 9), limit=9) == 0
    assert await files.collect(late, limit=9) == 2
    assert await files.totals(ACME, "ü") == FileTotals()


async def test_an_erasure_takes_what_its_user_had_and_nothing_else(store: Store, files: FileStore) -> None:
    gone = await uploaded(files, LONG)
    kept = [await uploaded(files, LONG, user=user) for user in ("x", None)]
    asked = Erasure(tenant=ACME, user="ü", asked_at=NOW, asked_by="boss")
    row = Audited(action="user.erasure_asked", at=NOW, user="ü")
    await store.end_users.request_erasure(asked, row)
    assert await files.find(ACME, gone.id, NOW) is None
    later = await uploaded(files, LONG, at=NOW + 1)
    assert later.blob != gone.blob
    await store.end_users.finish(asked, row)
    assert await files.collect(UnixMs(NOW + 1), limit=9) == 1
    for file in (*kept, later):
        assert await content_of(files, file) == LONG


async def test_bytes_that_were_changed_or_moved_do_not_open(in_a_folder: FileStore, tmp_path_factory: object) -> None:
    file, other = await uploaded(in_a_folder, LONG), await uploaded(in_a_folder, LONG[::-1])
    assert isinstance(in_a_folder, SqlFiles)
    chunks = in_a_folder._chunks
    first = await chunks.get(ACME, file.blob, 0)
    assert first is not None and LONG[:64] not in first
    for forged in (first[:-1], await chunks.get(ACME, other.blob, 0), await chunks.get(ACME, file.blob, 1), b""):
        assert forged is not None
        await chunks.put(ACME, "ü", file.blob, 0, forged)
        with pytest.raises(Internal):
            await content_of(in_a_folder, file)
    await chunks.put(ACME, "ü", file.blob, 0, first)
    assert await content_of(in_a_folder, file) == LONG


def test_the_hash_is_of_the_content() -> None:
    file: StoredFile = a_file(b"abc", blob="b")
    assert file.sha256 == hashlib.sha256(b"abc").hexdigest()


async def test_a_file_whose_id_is_taken_is_the_first_one(files: FileStore) -> None:
    first = await uploaded(files, b"first", name="a.txt")
    blob = await files.begin(ACME, "ü", NOW)
    await files.put_chunk(ACME, blob, 0, b"second, and longer")
    second = msgspec.structs.replace(a_file(b"second, and longer", blob=blob, filename="b.txt"), id=first.id)
    assert await files.finish(second, FileQuotas(user=FileQuota(files=1))) == first
    assert await content_of(files, first) == b"first" and await files.totals(ACME, "ü") == FileTotals(1, 5)
    await files.collect(UnixMs(NOW + 1), limit=10)
    await files.abandon(ACME, blob)
    assert await content_of(files, first) == b"first"
