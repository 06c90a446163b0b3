"""The stores, and a Communicator whose ranks meet in the user's own store."""

import datetime
import subprocess
import sys
import threading
import time

import pytest

import accord


@pytest.fixture(params=["memory", "file", "tcp", "prefix"])
def store(request, tmp_path):
    if request.param == "memory":
        return accord.MemoryStore()
    if request.param == "file":
        return accord.FileStore(tmp_path / "store")
    if request.param == "tcp":
        return accord.TcpStore("127.0.0.1", 0, is_host=True)
    return accord.PrefixStore(accord.MemoryStore(), "job")


def test_a_store_keeps_bytes_and_counts(store):
    store.set("key", b"\x00\xff bytes")
    assert store.get("key") == b"\x00\xff bytes"
    store.set("key", "téxt")
    assert store.get("key", timeout=1) == "téxt".encode()
    store.set("key", bytearray(b"more"))
    assert store.get("key", timeout=datetime.timedelta(seconds=1)) == b"more"
    assert [store.add("count", 2), store.add("count", -5)] == [2, -3]
    store.erase("key")
    store.erase("key")
    with pytest.raises(TimeoutError, match="key"):
        store.get("key", timeout=0.05)
    with pytest.raises(accord.InvalidArgument):
        store.set("word", "no number") or store.add("word", 1)
    for wrong in (3, None, [1]):
        with pytest.raises(TypeError, match="value: expected bytes or str|value: bytes"):
            store.set("key", wrong)
    assert store.describe() in repr(store)


def test_get_waits_for_a_set_from_another_thread_without_the_gil(store):
    threading.Timer(0.2, store.set, ["later", b"value"]).start()
    assert store.get("later", timeout=10) == b"value"


def test_a_tcp_store_serves_clients_of_other_processes():
    host = accord.TcpStore("127.0.0.1", 0, is_host=True)
    program = f"import accord; accord.TcpStore('127.0.0.1', {host.port}, timeout=10).set('from', b'a client')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert host.get("from", timeout=5) == b"a client"
    start = time.monotonic()
    with pytest.raises(accord.Timeout):
        accord.TcpStore("127.0.0.1", 9, timeout=0.3)
    assert time.monotonic() - start < 3


def test_prefixes_separate_keys():
    inner = accord.MemoryStore()
    a, b = accord.PrefixStore(inner, "a"), accord.PrefixStore(inner, "b")
    a.set("key", b"1")
    b.set("key", b"2")
    assert (a.get("key"), b.get("key"), inner.get("a/key")) == (b"1", b"2", b"1")


class DictStore:
    """The minimal interface of a user's own store: no check(), no erase()."""

    def __init__(self, error=KeyError):
        self.values, self.lock, self.error = {}, threading.Lock(), error

    def set(self, key: str, value: bytes) -> None:
        with self.lock:
            self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
            return int(self.values[key])


class NoneStore(DictStore):
    def get(self, key: str):
        value = self.values.get(key)
        return None if value is None else value.decode("latin-1") if value.isascii() else value


def all_reduce_in_threads(store, size: int = 2) -> None:
    results = []

    def rank(number: int) -> None:
        with accord.Communicator.create(store, number, size, timeout=20) as comm:
            x = bytearray(b"\x01\x00\x00\x00")
            comm.all_reduce(x, dtype="int32")
            results.append(x[0])
            comm.barrier()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert results == [size] * size


@pytest.mark.parametrize("kind", [DictStore, NoneStore])
def test_any_object_with_set_get_and_add_is_a_store(kind):
    all_reduce_in_threads(kind())
    all_reduce_in_threads(accord.PrefixStore(kind(), "some/prefix"))


@pytest.mark.alone
def test_torch_stores_are_stores():
    distributed = pytest.importorskip("torch.distributed")
    all_reduce_in_threads(distributed.HashStore())
    tcp = distributed.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    all_reduce_in_threads(distributed.PrefixStore("inner", tcp))
    adapted = accord.PrefixStore(distributed.HashStore(), "p")
    adapted.set("key", b"\x00\xff")
    assert adapted.get("key") == b"\x00\xff"
    start = time.monotonic()
    with pytest.raises(accord.Timeout, match="never"):
        adapted.get("never", timeout=0.3)
    assert 0.25 < time.monotonic() - start < 3


class RaisingStore(DictStore):
    def set(self, key: str, value: bytes) -> None:
        raise OSError("the disk is full")

    def add(self, key: str, amount: int) -> int:
        return "one"


def test_an_exception_of_a_user_store_is_reported():
    with pytest.raises(accord.IoError, match="RaisingStore.set.*OSError: the disk is full"):
        accord.PrefixStore(RaisingStore(), "p").set("key", b"value")
    with pytest.raises(accord.IoError, match="RaisingStore.add.*'str' object cannot be interpreted as an integer"):
        accord.PrefixStore(RaisingStore(), "p").add("key", 1)
    with pytest.raises(accord.Timeout, match='"p/never"'):
        accord.PrefixStore(DictStore(), "p").get("never", timeout=0.05)
    with pytest.raises(TypeError, match="store: .* has no set"):
        accord.PrefixStore(object(), "p")


class NamedStore(DictStore):
    def describe(self) -> str:
        return "the shelf"


def test_the_error_for_a_missing_rank_0_says_that_it_may_be_waiting_itself():
    with pytest.raises(
        accord.Timeout, match="in the shelf: rank 0 of 3 did not arrive in time .* waiting itself"
    ) as caught:
        accord.Communicator.create(NamedStore(), 1, 3, timeout=0.1)
    assert caught.value.ranks == (0,)


def test_a_path_is_text_without_null_bytes(tmp_path):
    with pytest.raises(TypeError, match="expected a path as str, got bytes"):
        accord.FileStore(b"store")
    with pytest.raises(accord.InvalidArgument, match="null byte.*store.x00"):
        accord.FileStore(f"{tmp_path}/store\0s")
    assert list(tmp_path.iterdir()) == []
