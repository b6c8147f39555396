"""What a worker keeps of what it was sent."""

from jaxtribute.coordinator._blobs import BlobStore


def test_what_was_not_used_for_the_longest_time_goes_first():
    store = BlobStore(limit=10)
    assert store.add("a", bytes(4)) == store.add("b", bytes(4)) == []
    assert len(store["a"]) == 4  # used after b
    assert store.add("c", bytes(4)) == ["b"]
    assert list(store) == ["a", "c"]


def test_what_is_pinned_stays_however_little_room_there_is():
    store = BlobStore(limit=5)
    store.pin(["a", "b"])
    store.pin(["a"])
    dropped = [store.add(digest, bytes(4)) for digest in "abc"]
    assert dropped == [[], [], []]
    assert store.unpin(["a", "b"]) == ["b", "c"]  # the newest is only spared while it is added
    assert store.missing(["a", "b", "c", "b"]) == ["b", "c"]
    assert list(store) == ["a"]


def test_a_blob_larger_than_the_limit_is_there_until_the_next_comes():
    store = BlobStore(limit=5)
    assert store.add("large", bytes(100)) == []
    assert "large" in store
    assert store.add("small", bytes(1)) == ["large"]


def test_a_blob_that_comes_twice_counts_once():
    store = BlobStore(limit=8)
    store.add("a", bytes(4))
    store.add("a", bytes(4))
    assert store.add("b", bytes(4)) == []
