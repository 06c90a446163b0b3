"""The package on disk: every byte is hashed, other programs can read it, and it is written completely or not at
all."""

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
import xxhash
from export_reference import read_json
from safetensors import safe_open

from accord.exporter.export import export
from accord.graph.errors import ExportError
from accord.package import weight_files, writer
from accord.package.sharding import Column, Row, ShardingPlan
from accord.package.writer import write_package

ONE = {"name": "one", "dtype": "float32", "shape": [1]}
FULL = {"op": "aten.full.default", "arguments": {"size": [1], "fill_value": 1.0}, "outputs": [ONE]}
GRAPH = {  # reads no weights
    "symbols": [],
    "inputs": [],
    "parameters": [],
    "nodes": [{**FULL, "module": "", "source": "model.py:1"}],
    "outputs": ["one"],
}


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)).eval()


@pytest.fixture
def package(tmp_path) -> Path:
    sharding = {"0": Column(unit=16), "2": Row(unit=16)}
    return export(small_model(), (torch.rand(2, 32),), path=tmp_path / "m.accord", sharding=sharding)


def empty_plan() -> ShardingPlan:
    return ShardingPlan([], {}, [])


def test_every_byte_of_the_package_is_covered_by_a_hash(package):
    manifest_bytes = (package / "manifest.json").read_bytes()
    assert (package / "manifest.sha256").read_text() == hashlib.sha256(manifest_bytes).hexdigest() + "\n"
    manifest = json.loads(manifest_bytes)
    graph, *weights = manifest["files"]
    graph_bytes = (package / "graph.json").read_bytes()
    assert graph["size"] == len(graph_bytes)
    assert graph["sha256"] == hashlib.sha256(graph_bytes).hexdigest()
    for file in weights:
        data = (package / file["name"]).read_bytes()
        assert file["size"] == len(data)
        assert file["header_sha256"] == hashlib.sha256(data[: file["header_size"]]).hexdigest()
        covered = file["header_size"]
        for tensor in sorted((t for t in manifest["tensors"] if t["file"] == file["name"]), key=lambda t: t["offset"]):
            assert tensor["offset"] == covered
            size = torch.empty(tensor["shape"]).numel() * getattr(torch, tensor["dtype"]).itemsize
            begins = range(covered, covered + size, tensor["granule_bytes"])
            assert len(tensor["xxh3"]) == len(begins)
            for begin, expected in zip(begins, tensor["xxh3"], strict=True):
                end = min(begin + tensor["granule_bytes"], covered + size)
                assert xxhash.xxh3_64_hexdigest(data[begin:end]) == expected
            covered += size
        assert covered == len(data)
    names = {"manifest.json", "manifest.sha256", *(file["name"] for file in manifest["files"])}
    assert {path.name for path in package.iterdir()} == names


def test_the_safetensors_library_reads_the_weights_and_their_layout(package):
    with safe_open(package / "weights-00001.safetensors", "pt") as file:
        assert file.get_tensor("2.weight").shape == (4, 32 * 16 * 4)
        assert file.get_tensor("0.bias").shape == (4, 16)
        assert file.get_tensor("2.bias").shape == (32,)
        assert "32x64, cut along dimension 1 in units of 16, each packed" in file.metadata()["stored:2.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8])
def test_tensors_of_all_dtypes_and_odd_sizes_are_stored_exactly(tmp_path, dtype):
    tensors = {"a": torch.arange(7).to(dtype), "b": torch.tensor(5).to(dtype), "c": torch.arange(12).reshape(3, 4).t()}
    path = write_package(tmp_path / "m.accord", GRAPH, tensors, empty_plan(), "test")
    with safe_open(path / "weights-00001.safetensors", "pt") as file:
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor)


def test_bools_are_stored_exactly(tmp_path):
    tensor = torch.tensor([True, False, True])
    path = write_package(tmp_path / "m.accord", GRAPH, {"a": tensor}, empty_plan(), "test")
    with safe_open(path / "weights-00001.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("a"), tensor)


def test_a_whole_tensor_has_granules_of_a_mebibyte(tmp_path):
    tensor = torch.rand((1 << 18) * 2 + 3)
    path = write_package(tmp_path / "m.accord", GRAPH, {"a": tensor}, empty_plan(), "test")
    (entry,) = read_json(path, "manifest.json")["tensors"]
    assert entry["granule_bytes"] == 1 << 20
    assert len(entry["xxh3"]) == 3
    assert entry["xxh3"][2] == xxhash.xxh3_64_hexdigest(tensor[-3:].numpy().tobytes())


def test_large_weights_are_spread_over_files(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_files, "FILE_BYTES", 1000)
    tensors = {f"t{i}": torch.rand(100) for i in range(5)}
    path = write_package(tmp_path / "m.accord", GRAPH, tensors, empty_plan(), "test")
    files = [file["name"] for file in read_json(path, "manifest.json")["files"][1:]]
    assert files == [f"weights-{i:05}.safetensors" for i in (1, 2, 3)]
    for entry in read_json(path, "manifest.json")["tensors"]:
        with safe_open(path / entry["file"], "pt") as file:
            assert torch.equal(file.get_tensor(entry["name"]), tensors[entry["name"]])


def test_progress_reports_bytes_up_to_the_total(tmp_path):
    seen = []
    write_package(
        tmp_path / "m.accord",
        GRAPH,
        {"a": torch.rand(1 << 19)},
        empty_plan(),
        "test",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(1 << 20, 1 << 21), (1 << 21, 1 << 21)]


def test_an_older_package_is_replaced(tmp_path):
    path = tmp_path / "m.accord"
    write_package(path, GRAPH, {"a": torch.ones(3)}, empty_plan(), "old")
    write_package(path, GRAPH, {"b": torch.ones(3)}, empty_plan(), "new")
    assert read_json(path, "manifest.json")["producer"] == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.accord"]


def test_an_older_package_is_replaced_without_renameat2(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_exchange", lambda one, other: False)
    path = tmp_path / "m.accord"
    write_package(path, GRAPH, {"a": torch.ones(3)}, empty_plan(), "old")
    write_package(path, GRAPH, {"b": torch.ones(3)}, empty_plan(), "new")
    assert read_json(path, "manifest.json")["producer"] == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.accord"]


@pytest.mark.parametrize("make", ["file", "directory", "link"])
def test_a_path_that_is_not_a_package_is_not_replaced(tmp_path, make):
    path = tmp_path / "m.accord"
    if make == "file":
        path.write_text("mine")
    elif make == "directory":
        path.mkdir()
        (path / "notes.txt").write_text("mine")
    else:
        write_package(tmp_path / "other.accord", GRAPH, {"a": torch.ones(3)}, empty_plan(), "other")
        path.symlink_to(tmp_path / "other.accord")
    before = sorted(entry.name for entry in tmp_path.rglob("*"))
    with pytest.raises(ExportError, match="exists and is not an engine package; it is left unchanged"):
        write_package(path, GRAPH, {"a": torch.ones(3)}, empty_plan(), "test")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == before


def test_a_name_without_the_suffix_and_a_missing_parent_are_rejected(tmp_path):
    with pytest.raises(ExportError, match=r'ends in "\.accord"'):
        write_package(tmp_path / "m", GRAPH, {}, empty_plan(), "test")
    with pytest.raises(ExportError, match="there is no directory"):
        write_package(tmp_path / "no" / "m.accord", GRAPH, {}, empty_plan(), "test")


def test_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ExportError, match=r"the disk is full; nothing was written"):
        write_package(tmp_path / "m.accord", GRAPH, {"a": torch.ones(3)}, empty_plan(), "test")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_export_keeps_the_older_package(tmp_path):
    path = tmp_path / "m.accord"
    write_package(path, GRAPH, {"a": torch.ones(3)}, empty_plan(), "old")

    def fail(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_package(path, GRAPH, {"b": torch.ones(3)}, empty_plan(), "new", progress=fail)
    assert read_json(path, "manifest.json")["producer"] == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.accord"]


def test_an_empty_tensor_is_rejected(tmp_path):
    with pytest.raises(ExportError, match='tensor "a" is empty'):
        write_package(tmp_path / "m.accord", GRAPH, {"a": torch.empty(0, 3)}, empty_plan(), "test")
