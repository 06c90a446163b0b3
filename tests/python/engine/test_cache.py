"""The cache of compiled engines: the contents of its keys, and how several processes share it."""

import copy
import json
import math
import os
import subprocess
import sys
import threading

import pytest
from accord_command import BUILD, clean_environment
from accord_command import accord as run_accord

import accord
from accord.engine_cache import EngineCache, cache_key, default_directory

torch = pytest.importorskip("torch")

GRAPH = {
    "symbols": [{"name": "rows", "min": 1, "max": 8}],
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["rows", 4]}],
    "parameters": [{"name": "weight.w", "dtype": "float32", "shape": [4, 4], "tensor": "w"}],
    "nodes": [
        {
            "op": "aten.linear.default",
            "arguments": {"input": {"value": "x"}, "weight": {"value": "weight.w"}},
            "outputs": [{"name": "linear_0", "dtype": "float32", "shape": ["rows", 4]}],
            "module": "layer",
            "source": "model.py:1",
        },
        {
            "op": "_c10d_functional.all_reduce.default",
            "arguments": {"input": {"value": "linear_0"}, "reduce_op": "sum", "group_name": "tp"},
            "outputs": [{"name": "all_reduce_0", "dtype": "float32", "shape": ["rows", 4]}],
            "module": "layer",
            "source": "model.py:2",
        },
    ],
    "outputs": ["all_reduce_0"],
}
OPTIONS = {"use_fp32_acc": True, "epsilon": math.inf}


def key_of(change=None) -> str:
    facts = {
        "graph": copy.deepcopy(GRAPH),
        "tensors": {"w": torch.arange(16.0).reshape(4, 4)},
        "sharding": {"layer": "row"},
        "groups": {"tp": {"size": 2, "members": [0, 1]}},
        "options": dict(OPTIONS),
    }
    if change is not None:
        change(facts)
    return cache_key(facts.pop("graph"), facts.pop("tensors"), **facts)


CHANGES = {
    "op of the collective": lambda f: f["graph"]["nodes"][1]["arguments"].update(reduce_op="max"),
    "group of the collective": lambda f: f["graph"]["nodes"][1]["arguments"].update(group_name="dp"),
    "an argument left out": lambda f: f["graph"]["nodes"][1]["arguments"].pop("reduce_op"),
    "dtype of a value": lambda f: f["graph"]["inputs"][0].update(dtype="bfloat16"),
    "range of a size": lambda f: f["graph"]["symbols"][0].update(max=9),
    "outputs": lambda f: f["graph"].update(outputs=["linear_0"]),
    "name of a module": lambda f: f["graph"]["nodes"][0].update(module="other"),
    "dtype of a weight": lambda f: f["tensors"].update(w=f["tensors"]["w"].to(torch.bfloat16)),
    "shape of a weight": lambda f: f["tensors"].update(w=f["tensors"]["w"].reshape(2, 8)),
    "contents of a weight": lambda f: f["tensors"].update(w=f["tensors"]["w"] + 1),
    "name of a weight": lambda f: f["tensors"].update(v=f["tensors"].pop("w")),
    "size of a group": lambda f: f["groups"]["tp"].update(size=4),
    "members of a group": lambda f: f["groups"]["tp"].update(members=[1, 0]),
    "another group": lambda f: f["groups"].update(dp={"size": 1}),
    "sharding": lambda f: f["sharding"].update(layer="column"),
    "an option": lambda f: f["options"].update(use_fp32_acc=False),
    "infinity or its name": lambda f: f["options"].update(epsilon="inf"),
    "true or 1": lambda f: f["options"].update(use_fp32_acc=1),
}


def test_every_change_of_an_engines_ingredients_changes_its_key(monkeypatch):
    keys = {name: key_of(change) for name, change in CHANGES.items()}
    keys["nothing"] = key_of()
    monkeypatch.setattr(accord.engine_cache, "__version__", "another")
    keys["version"] = key_of()
    assert len(set(keys.values())) == len(keys)
    assert all(len(key) == 64 for key in keys.values())


def test_a_key_does_not_depend_on_the_order_of_facts_or_on_strides():
    def reversed_facts(facts):
        facts["options"] = dict(reversed(facts["options"].items()))
        facts["graph"] = dict(reversed(facts["graph"].items()))
        facts["tensors"]["w"] = facts["tensors"]["w"].t().contiguous().t()

    assert key_of(reversed_facts) == key_of()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def build(path) -> None:
    accord.export(Model().eval(), (torch.zeros(2, 4),), path=path, progress=lambda done, total: None)


def forbidden(path) -> None:
    raise AssertionError("built again")


def test_a_package_is_built_once_and_rebuilt_when_damaged(tmp_path):
    cache = EngineCache(tmp_path / "made")
    key = key_of()
    with cache.package(key, build) as path, accord.load(path) as engine:
        assert engine.state == "bound"
        # Ranks that load one package wait for each other while they hold it.
        with cache.package(key, forbidden) as shared:
            assert shared == path
    with cache.package(key, forbidden) as path:
        weights = path / "weights-00001.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with cache.package(key, build) as path:
        assert accord.verify(path) == []
    (path / "manifest.json").unlink()
    with cache.package(key, build) as path:
        assert accord.verify(path) == []


def test_a_failed_build_leaves_nothing(tmp_path):
    cache = EngineCache(tmp_path)
    with pytest.raises(RuntimeError, match="no such op"), cache.package(key_of(), lambda path: fail("no such op")):
        pass
    assert cache.entries() == []
    with cache.package(key_of(), build):
        assert len(cache.entries()) == 1


def fail(message: str):
    raise RuntimeError(message)


def fill(cache: EngineCache, count: int) -> list[str]:
    keys = [key_of(set_number(number)) for number in range(count)]
    for number, key in enumerate(keys):
        with cache.package(key, build) as path:
            os.utime(path, (number, number))
    return keys


def set_number(number: int):
    return lambda facts: facts["options"].update(number=number)


def test_the_least_recently_used_packages_are_evicted_unless_in_use(tmp_path):
    keys = fill(EngineCache(tmp_path), 4)
    size = EngineCache(tmp_path).entries()[0].bytes
    small = EngineCache(tmp_path, limit=2 * size)
    with small.package(keys[1], forbidden), small.package(key_of(), build):
        assert {entry.key for entry in small.entries()} == {keys[1], key_of()}
    none = EngineCache(tmp_path, limit=0)
    with none.package(keys[1], forbidden):
        assert [entry.key for entry in none.entries()] == [keys[1]]
        assert none.clear() == 0
    assert none.clear() == 1
    assert none.entries() == []


def test_threads_that_need_a_package_concurrently_build_it_once(tmp_path):
    built = []
    found = []

    def build_slowly(path) -> None:
        built.append(path)
        build(path)

    def use() -> None:
        with EngineCache(tmp_path).package(key_of(), build_slowly) as path:
            found.append(accord.verify(path))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert found == [[]] * 4


KILLED = """
import os, signal, sys, tempfile
from accord.engine_cache import EngineCache
def build(path):
    if sys.argv[3] == "half":
        path.mkdir()
        (path / "manifest.json").write_text("{")
    else:  # as accord.export writes it
        tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent)
    os.kill(os.getpid(), signal.SIGKILL)
with EngineCache(sys.argv[1]).package(sys.argv[2], build):
    pass
"""


def killed_while_building(directory, key: str, how: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(BUILD / "python")}
    killed = subprocess.run([sys.executable, "-c", KILLED, directory, key, how], env=environment, check=False)
    assert killed.returncode == -9


def test_an_incomplete_build_of_a_killed_process_is_rebuilt(tmp_path):
    killed_while_building(tmp_path, key_of(), "half")
    with EngineCache(tmp_path).package(key_of(), build) as path:
        assert accord.verify(path) == []


def test_the_next_use_removes_leftovers_but_not_running_builds(tmp_path):
    cache = EngineCache(tmp_path)
    keys = [key_of(set_number(number)) for number in range(2)]
    killed_while_building(tmp_path, keys[0], "aside")
    assert sorted(file.name[:2] for file in tmp_path.iterdir()) == [f".{keys[0][0]}", keys[0][:2]]

    def build_beside(path) -> None:
        aside = tmp_path / f".{path.name}.abc"
        aside.mkdir()
        EngineCache(tmp_path).sweep()
        assert aside.exists()  # its builder is alive
        aside.rmdir()
        build(path)

    with cache.package(keys[1], build_beside):
        assert {file.name for file in tmp_path.iterdir()} == {f"{keys[1]}.accord", f"{keys[1]}.lock"}
    killed_while_building(tmp_path, keys[0], "aside")
    with cache.package(keys[0], build):
        assert len(list(tmp_path.iterdir())) == 4
    assert cache.clear() == 2
    assert list(tmp_path.iterdir()) == []


def test_invalid_keys_and_the_cache_folder(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="not a key"), EngineCache(tmp_path).package("../x", build):
        pass
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "accord" / "engines"
    assert EngineCache().entries() == []
    assert EngineCache().directory == default_directory()


def test_the_command_lists_and_clears_a_cache(tmp_path):
    cache = EngineCache(tmp_path)
    keys = fill(cache, 2)
    environment = clean_environment(PYTHONPATH=str(BUILD / "python"))
    arguments = ("--directory", tmp_path)
    listed = json.loads(run_accord("engine", "cache", "list", *arguments, "--json", env=environment).stdout)
    assert [entry["key"] for entry in listed["entries"]] == keys[::-1]
    assert "2 packages" in run_accord("engine", "cache", "list", *arguments, env=environment).stdout
    with cache.package(keys[0], forbidden):
        assert "removed 1, 1 in use" in run_accord("engine", "cache", "clear", *arguments, env=environment).stdout
    cleared = json.loads(run_accord("engine", "cache", "clear", *arguments, "--json", env=environment).stdout)
    assert (cleared["removed"], cleared["entries"]) == (1, [])
    assert run_accord("engine", "cache", "empty", env=environment).returncode == 2


COMPILES = """
import sys
import torch, torch.distributed as dist
import accord

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

class Model(torch.nn.Module):
    def __init__(self, op):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.op = torch.nn.Linear(16, 16), op

    def forward(self, x):
        ops = torch.ops._c10d_functional
        return ops.wait_tensor(ops.all_reduce(self.linear(x), self.op, dist.group.WORLD.group_name)).relu()

def compiled(op, **options):
    torch._dynamo.reset()
    model, x = Model(op).eval(), torch.rand(3, 16)
    call = torch.compile(model, backend="accord", options={"min_block_size": 1, **options})
    with torch.no_grad():
        torch.testing.assert_close(call(x), model(x))
        if options:
            model.linear.weight.mul_(2)
            torch.testing.assert_close(call(x), model(x))
    (report,) = accord.compilation_report(model)
    return report.builds, report.from_cache

print(compiled("sum", engine_cache=True), compiled("max", engine_cache=True), compiled("sum"))
"""


@pytest.mark.slow
def test_a_second_process_reuses_packages_of_torch_compile_and_sum_is_not_max(tmp_path):
    def run() -> str:
        result = subprocess.run(
            [sys.executable, "-c", COMPILES],
            env=clean_environment(PYTHONPATH=os.pathsep.join(filter(None, sys.path)), XDG_CACHE_HOME=str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    entries = EngineCache(tmp_path / "accord/engines").entries
    # Weights that have changed are not cached, nor is an engine this small unless requested.
    assert run() == "(2, 0) (2, 0) (1, 0)"
    assert len(entries()) == 2
    assert run() == "(2, 1) (2, 1) (1, 0)"
    assert len(entries()) == 2
    (first, _) = entries()
    (first.path / "graph.json").write_text("damaged")
    assert run().count("(2, 1)") == 1
