"""An engine's memory limit: memory that does not fit is rejected before it runs. The error lists the parts and what
would fit."""

import re

import numpy as np
import pytest
from small_llama import make_small_llama

import accord

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

HIDDEN, MOST_ROWS = 256, 1000
WEIGHTS = 4 * (2 * HIDDEN * HIDDEN + 2 * HIDDEN)
KIB = 1 << 10


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, HIDDEN))
    return accord.export(
        model.eval(),
        (torch.zeros(2, HIDDEN),),
        path=tmp_path_factory.mktemp("engine") / "mlp.accord",
        dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=MOST_ROWS)},),
        progress=lambda done, total: None,
    )


@pytest.fixture(scope="module")
def arena(package) -> int:
    with accord.load(package) as engine:
        return engine.report({"rows": MOST_ROWS})["arena_bytes"]


def test_weights_that_do_not_fit_are_rejected_before_they_are_read(package):
    with pytest.raises(accord.ResourceExhausted, match=r"weights 51\d KiB\), the limit is 100 KiB"):
        accord.load(package, memory_limit="100KiB")


def test_an_arena_that_does_not_fit_is_rejected_with_the_sizes_that_would_fit(package, arena):
    limit = WEIGHTS + arena // 2
    with pytest.raises(accord.ResourceExhausted, match="an arena at rows=1000") as caught:
        accord.load(package, memory_limit=limit)
    rows = int(re.search(r"an arena at rows=(\d+) would fit", str(caught.value))[1])
    with accord.load(package) as engine:
        assert engine.report({"rows": rows})["arena_bytes"] <= arena // 2
        assert engine.report({"rows": rows + 4})["arena_bytes"] > arena // 2


def test_each_context_has_its_own_arena_which_is_released_with_it(package, arena):
    with accord.load(package, memory_limit=WEIGHTS + 2 * arena + 64 * KIB) as engine:
        contexts = [engine.create_context() for _ in range(2)]
        with pytest.raises(accord.ResourceExhausted, match="arenas"):
            engine.create_context()
        x = np.zeros((MOST_ROWS, HIDDEN), np.float32)
        for context in contexts:
            assert context.run(x)[0].shape == (MOST_ROWS, HIDDEN)
        del context
        contexts.pop()
        engine.create_context().run(x)


def test_a_cache_that_does_not_fit_is_rejected_with_the_number_of_tokens_that_would_fit(tmp_path):
    model = make_small_llama(max_position_embeddings=4096)
    path = accord.export(model, path=tmp_path / "llama.accord", progress=lambda done, total: None)
    limit = sum(p.numel() for p in model.parameters()) * 4 + 2048 * KIB
    per_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, elements, bytes
    with accord.load(path, memory_limit=limit) as engine:
        with pytest.raises(accord.ResourceExhausted, match="caches of keys and values 2 MiB") as caught:
            accord.LanguageModel.create(engine, max_rows=64)
        tokens = int(re.search(r"a cache of (\d+) tokens would fit", str(caught.value))[1])
        arena = engine.report({"tokens": 64, "rows": 64})["arena_bytes"]
        left = limit - (engine.load_report.shard_bytes + engine.load_report.replicated_bytes) - arena
        assert 0 <= left - tokens * per_token <= 2 * 16 * per_token
        accord.LanguageModel.create(engine, max_rows=64, cache_tokens=tokens).stop()
        with pytest.raises(accord.ResourceExhausted, match="arenas"):
            accord.LanguageModel.create(engine, max_rows=4096)
        # Without sequences, a run uses its own cache.
        ids = np.arange(4096) % 160
        arenas = engine.report({"tokens": 4096, "rows": 1})["arena_bytes"]
    with accord.load(path, memory_limit=limit - 2048 * KIB + arenas + 2048 * per_token) as engine:
        engine.run(ids[:2000], np.arange(2000), np.arange(1))
        with pytest.raises(accord.ResourceExhausted, match="caches of keys and values 2 MiB"):
            engine.run(ids, np.arange(4096), np.arange(1))
        engine.run(ids[:2000], np.arange(2000), np.arange(1))


class InParts(torch.nn.Module):
    """Two engines, with a product in between that stays in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.Linear(HIDDEN, HIDDEN)
        self.matrix = torch.nn.Parameter(torch.rand(HIDDEN, HIDDEN) / HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.mm(torch.tanh(self.first(x)), self.matrix))


@torch.no_grad()
def test_the_parts_of_a_program_share_one_limit_and_are_rejected_when_loaded(tmp_path):
    model, path = InParts().eval(), tmp_path / "parts.accord"
    accord.export(
        model,
        (torch.zeros(2, HIDDEN),),
        path=path,
        dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=MOST_ROWS)},),
        options={"min_block_size": 1, "torch_executed_ops": ["aten.mm"]},
    )
    packages = sorted(path.glob("engine-*.accord"))
    assert len(packages) == 2
    arenas = []
    for package in packages:
        with accord.Engine.load(package) as engine:
            ((symbol, *_),) = (one.shape for one in engine.inputs)
            arenas.append(engine.report({symbol: MOST_ROWS})["arena_bytes"])
    in_torch = 4 * HIDDEN * HIDDEN
    needed = WEIGHTS + sum(arenas) + in_torch
    for limit in (needed - 1, needed - min(arenas), WEIGHTS + in_torch, WEIGHTS // 2 + in_torch, in_torch - 1):
        with pytest.raises(accord.ResourceExhausted, match="the limit is"):
            accord.load(path, memory_limit=limit)
    parts = r"weights 514 KiB, arenas .*iB, PyTorch partitions 256 KiB, an arena at \w+=1000 .*, the limit is"
    with pytest.raises(accord.ResourceExhausted, match=parts):
        accord.load(path, memory_limit=needed - 1)
    program = accord.load(path, memory_limit=needed)
    x = torch.rand(MOST_ROWS, HIDDEN)
    torch.testing.assert_close(program.run(x)[0], model(x), rtol=1e-5, atol=1e-5)
    for engine in program.engines:
        with pytest.raises(accord.ResourceExhausted, match="arenas"):
            engine.create_context()


@pytest.mark.parametrize("limit", ["2 bananas", "1.5g", -1])
def test_an_invalid_limit_is_rejected(package, limit):
    with pytest.raises((accord.InvalidArgument, TypeError)):
        accord.load(package, memory_limit=limit)


def test_an_unknown_option_is_named_with_the_nearest_one(package):
    with pytest.raises(TypeError, match='no option "memory_limt"; did you mean "memory_limit"'):
        accord.load(package, memory_limt=5)
