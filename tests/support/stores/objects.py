"""What every object store does."""

from __future__ import annotations

from persistence.objects.object_store import ObjectStore


async def check_objects(objects: ObjectStore) -> None:
    """Puts, reads, lists and deletes."""
    assert await objects.get("a/1") is None and await objects.get_start("a/1", 3) is None
    assert [name async for name in objects.names("a")] == []
    for number in (3, 1, 2):
        assert not await objects.put(f"a/{number:03d}", b"x" * number)
    await objects.put("b/001", b"")
    await objects.put("a/001", b"again")
    assert await objects.get("a/001") == b"again" and await objects.get_start("a/001", 2) == b"ag"
    assert await objects.get_start("a/001", 99) == b"again" and await objects.get("b/001") == b""
    assert [name async for name in objects.names("a")] == ["a/001", "a/002", "a/003"]
    assert [name async for name in objects.names("a", after="a/001")] == ["a/002", "a/003"]
    await objects.delete(["a/001", "a/002", "a/none"])
    await objects.delete([])
    assert [name async for name in objects.names("a")] == ["a/003"]
