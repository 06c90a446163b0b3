"""Engines from Python: a small sharded model, on one rank in this process and on two rank processes without torch."""

import gc
import shutil
import sys
import threading
import weakref

import numpy as np
import pytest

import accord

torch = pytest.importorskip("torch")

HIDDEN, INNER = 16, 64


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, INNER)
        self.down = torch.nn.Linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(x))) * scale


@pytest.fixture(scope="module")
def model() -> Mlp:
    torch.manual_seed(0)
    return Mlp().eval()


@pytest.fixture(scope="module")
def package(model, tmp_path_factory) -> str:
    rows = torch.export.Dim("rows", min=1, max=100)
    path = tmp_path_factory.mktemp("engine") / "mlp.accord"
    accord.export(
        model,
        (torch.zeros(2, HIDDEN), torch.zeros(HIDDEN)),
        path=path,
        sharding={"up": accord.Column(unit=8), "down": accord.Row(unit=8)},
        dynamic_shapes={"x": {0: rows}, "scale": None},
        output_names=["y"],
        progress=lambda done, total: None,
    )
    return str(path)


def inputs(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return (
        generator.standard_normal((rows, HIDDEN), dtype=np.float32),
        generator.standard_normal(HIDDEN, dtype=np.float32),
    )


def expected(model: Mlp, x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.from_numpy(x), torch.from_numpy(scale)).numpy()


def test_an_engine_matches_the_model(package, model):
    with accord.load(package) as engine:
        for rows in (1, 3, 100):
            x, scale = inputs(rows, seed=rows)
            (y,) = engine.run(x, scale)
            assert (y.shape, y.dtype, len(y)) == ((rows, HIDDEN), "float32", rows)
            np.testing.assert_allclose(np.asarray(y), expected(model, x, scale), atol=1e-5)
            (named,) = engine.run(scale=scale, x=torch.from_numpy(x))
            np.testing.assert_allclose(np.array(named), expected(model, x, scale), atol=1e-5)


def test_an_engine_describes_itself(package):
    engine = accord.load(package)
    assert [(info.name, info.dtype, info.shape) for info in engine.inputs] == [
        ("x", "float32", ("rows", HIDDEN)),
        ("scale", "float32", (HIDDEN,)),
    ]
    assert [(info.name, info.dtype, info.shape) for info in engine.outputs] == [("y", "float32", ("rows", HIDDEN))]
    assert repr(engine.inputs[0]) == "TensorInfo(name='x', dtype='float32', shape=('rows', 16))"
    report = engine.load_report
    assert report.weight_bytes_read >= report.shard_bytes + report.replicated_bytes >= 4 * 2 * HIDDEN * INNER
    assert report.manifest_bytes > 0 and report.seconds > 0 and "weight_bytes_read=" in repr(report)
    assert engine.groups == {"tp": (0, 1)}
    assert engine.state == "bound"
    engine.close()
    engine.close()
    assert engine.state == "closed"
    with pytest.raises(accord.WrongState):
        engine.run(*inputs(1))


def test_outputs_are_views_until_the_next_run(package, model):
    engine = accord.load(package)
    x, scale = inputs(4)
    (first,) = engine.run(x, scale)
    view, copy = np.asarray(first), np.array(first)
    assert np.shares_memory(view, np.asarray(first)) and not view.flags.writeable
    tensor = torch.from_dlpack(first)
    assert tensor.data_ptr() == view.ctypes.data and torch.equal(tensor, torch.from_numpy(copy))
    assert memoryview(first).format == "f" and memoryview(first).tolist()[0][0] == copy[0, 0]
    (second,) = engine.run(*inputs(4, seed=1))
    for look in (np.asarray, memoryview, torch.from_dlpack):
        with pytest.raises(accord.WrongState, match="has run again"):
            look(first)
    np.testing.assert_allclose(np.asarray(second), expected(model, *inputs(4, seed=1)), atol=1e-5)
    np.testing.assert_allclose(copy, expected(model, x, scale), atol=1e-5)


def test_arrays_of_outputs_can_be_read_after_a_larger_run(package):
    engine = accord.load(package)
    # The memory regions of several contexts are adjacent, so a context that grows cannot cover its former place.
    contexts = [engine.create_context() for _ in range(3)]
    rows = (1, 10, 30, 60, 100)
    views = [np.asarray(context.run(*inputs(count))[0]) for count in rows for context in contexts]
    assert all(np.isfinite(view.sum()) for view in views)


def test_outputs_outlive_their_engine(package, model):
    engine = accord.load(package)
    x, scale = inputs(2)
    (y,) = engine.run(x, scale)
    view, reference = np.asarray(y), weakref.ref(engine)
    del engine, y
    gc.collect()
    assert reference() is None
    np.testing.assert_allclose(view, expected(model, x, scale), atol=1e-5)


def test_contexts_have_their_own_memory(package, model):
    engine = accord.load(package)
    contexts = [engine.create_context() for _ in range(3)]
    outputs = [context.run(*inputs(3, seed))[0] for seed, context in enumerate(contexts)]
    for seed, output in enumerate(outputs):
        np.testing.assert_allclose(np.asarray(output), expected(model, *inputs(3, seed)), atol=1e-5)
    results: dict[int, np.ndarray] = {}

    def run(number: int) -> None:
        for _ in range(50):
            results[number] = np.array(contexts[number].run(*inputs(3, number))[0])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for number in range(3):
        np.testing.assert_allclose(results[number], expected(model, *inputs(3, number)), atol=1e-5)


def test_wrong_inputs_are_rejected_by_name(package):
    engine = accord.load(package)
    x, scale = inputs(2)
    for given, named, message in [
        ((x,), {}, 'input "scale" is missing; the engine\'s inputs are: x, scale'),
        ((x, scale, x), {}, "3 inputs were given, expected 2"),
        ((x,), {"scales": scale}, 'unknown input "scales"'),
        ((x, scale), {"x": x}, 'input "x" was given twice'),
        ((x.tolist(), scale), {}, "x: expected an array"),
    ]:
        with pytest.raises(TypeError, match=message):
            engine.run(*given, **named)
    for given in [
        (x.T, scale),
        (x[:, ::2], scale),
        (x[:, :8].copy(), scale),
        (x.astype(np.int32), scale),
        (x.astype(np.float64), scale),
        inputs(101),
    ]:
        with pytest.raises(ValueError, match="x"):
            engine.run(*given)
    assert engine.run(x, scale)[0].shape == (2, HIDDEN), "a rejected run has no effect"


def test_an_engine_is_loaded_for_a_rank_and_size_and_runs_after_bind(package):
    engine = accord.Engine.load(package, {"tp": (1, 2)})
    assert (engine.state, engine.groups) == ("unbound", {"tp": (1, 2)})
    with pytest.raises(accord.WrongState, match="bind the engine before running it"):
        engine.run(*inputs(1))
    with accord.Communicator.create(accord.MemoryStore(), 0, 1) as solo:
        with pytest.raises(accord.InvalidArgument, match=r'"tp" was loaded for rank 1 of 2, but .* is rank 0 of 1'):
            engine.bind({"tp": solo})
    with pytest.raises(accord.InvalidArgument, match='"pt"'):
        accord.Engine.load(package, {"pt": (0, 2)})
    with pytest.raises(
        accord.InvalidArgument, match=r'"up\.weight" .* 8 units of 8 .* "tp" has 100 ranks; use at most 8'
    ):
        accord.Engine.load(package, {"tp": (0, 100)})
    with pytest.raises(TypeError, match="groups: the name 3 is not a str"):
        accord.load(package, groups={3: None})
    with pytest.raises(TypeError, match='groups: "tp" is a int, expected an accord.Communicator'):
        accord.load(package, groups={"tp": 3})


def test_loading_errors_are_reported(package, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.accord"):
        accord.load(tmp_path / "nothing.accord")
    damaged = tmp_path / "damaged.accord"
    shutil.copytree(package, damaged)
    weights = next(damaged.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(accord.Corrupt, match=weights.name):
        accord.load(damaged)


def test_runs_keep_no_reference_to_their_arrays(package):
    engine = accord.load(package)
    x, scale = inputs(2)
    before = sys.getrefcount(x), sys.getrefcount(scale), sys.getrefcount(engine)
    for _ in range(20):
        engine.run(x, scale=scale)
        with pytest.raises(TypeError):
            engine.run(x, [])
    assert (sys.getrefcount(x), sys.getrefcount(scale), sys.getrefcount(engine)) == before


def test_outputs_keep_their_names_where_the_engine_computes_one_value_for_two(tmp_path):
    class Twice(torch.nn.Module):
        def forward(self, x):
            y = torch.nn.functional.gelu(x)
            return y * 1.0, torch.nn.functional.gelu(x + 1.0), torch.nn.functional.gelu(x + 1.0)

    names = ["y", "first", "second"]
    x = torch.randn(3, 4)
    path = accord.export(Twice().eval(), (x,), path=tmp_path / "twice.accord", output_names=names)
    engine = accord.load(path)
    assert [info.name for info in engine.outputs] == names
    for got, wanted in zip(engine.run(x), Twice()(x), strict=True):
        np.testing.assert_allclose(np.asarray(got), wanted.numpy(), atol=1e-6)


def test_a_value_returned_twice_and_an_input_have_their_own_output_names(tmp_path):
    class Both(torch.nn.Module):
        def forward(self, x):
            y = torch.nn.functional.gelu(x)
            return y, y, x

    x = torch.randn(3, 4)
    engine = accord.load(accord.export(Both().eval(), (x,), path=tmp_path / "both.accord"))
    assert len({info.name for info in engine.outputs} | {"x"}) == 4
    for got, wanted in zip(engine.run(x), Both()(x), strict=True):
        np.testing.assert_allclose(np.asarray(got), wanted.numpy(), atol=1e-6)


def run_sharded(comm, path, x, scale):
    engine = accord.load(path, groups={"tp": comm})
    first = np.array(engine.run(x, scale)[0])
    again = np.array(engine.run(x=x, scale=scale)[0])
    assert np.array_equal(first, again)
    return first, engine.load_report.shard_bytes, engine.groups, engine.state


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_that_share_an_engine_give_bit_identical_results(ranks, package, model, size):
    x, scale = inputs(5)
    results = ranks(size).run(run_sharded, package, x, scale)
    for rank, (y, _, groups, state) in enumerate(results):
        np.testing.assert_allclose(y, expected(model, x, scale), atol=1e-5)
        assert y.tobytes() == results[0][0].tobytes()
        assert (groups, state) == ({"tp": (rank, size)}, "bound")
    assert sum(shard for _, shard, _, _ in results) == accord.load(package).load_report.shard_bytes


def one_cannot_load(comm, path, missing):
    try:
        accord.load(missing if comm.rank == 1 else path, groups={"tp": comm})
    except accord.Error as error:
        return error.code, error.ranks, str(error)
    return "loaded", (), ""


def test_if_one_rank_cannot_load_no_rank_does(ranks, package):
    for code, _, message in ranks(2).run(one_cannot_load, package, package + ".missing"):
        assert code == "not_found"
        assert "missing" in message or "rank 1" in message


def one_runs_out_of_memory(comm, path, rows):
    import resource

    engine = accord.load(path, groups={"tp": comm})
    scale = np.ones(16, dtype=np.float32)
    engine.run(np.ones((1, 16), dtype=np.float32), scale)
    x = np.ones((rows, 16), dtype=np.float32)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if comm.rank == 1:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), limits[1]))
    try:
        engine.run(x, scale)
    except accord.Error as error:
        return error.code, str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    return "ran", ""


def test_a_rank_that_runs_out_of_memory_does_not_leave_the_others_waiting(fresh_ranks, model, tmp_path):
    rows = torch.export.Dim("rows", min=1, max=1_000_000)
    path = accord.export(
        model,
        (torch.zeros(2, HIDDEN), torch.zeros(HIDDEN)),
        path=tmp_path / "large.accord",
        sharding={"up": accord.Column(unit=8), "down": accord.Row(unit=8)},
        dynamic_shapes={"x": {0: rows}, "scale": None},
    )
    # The arena is about 40 MB. The peer's timeout exceeds the time that the test may take.
    outcomes = fresh_ranks(2).run(one_runs_out_of_memory, str(path), 200_000, timeout=300)
    (waited, reason), (failed, message) = outcomes
    assert failed == "resource_exhausted" and "the engine's arena" in message
    assert waited == "aborted" and "the engine's arena" in reason
