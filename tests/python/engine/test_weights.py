"""The weights of a loaded engine are replaced: all of them are checked first, each run sees either the old or the new
ones, and language models see them at once."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from accord_command import wait_until
from safetensors.torch import save_file
from small_llama import make_small_llama

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

HIDDEN, INNER = 64, 128
LLAMA = {"max_position_embeddings": 128, "tie_word_embeddings": True}


def make_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(HIDDEN, INNER), torch.nn.Tanh(), torch.nn.Linear(INNER, HIDDEN), torch.nn.LayerNorm(HIDDEN)
    ).eval()


def export(model, path):
    return accord.export(
        model,
        (torch.zeros(2, HIDDEN),),
        path=path,
        sharding={"0": accord.Column(unit=16), "2": accord.Row(unit=16)},
        dynamic_shapes=({0: torch.export.Dim("rows", min=1, max=64)},),
        progress=lambda done, total: None,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return export(make_model(0), tmp_path_factory.mktemp("engine") / "mlp.accord")


X = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(0))


def expected(seed: int) -> np.ndarray:
    with torch.no_grad():
        return make_model(seed)(X).numpy()


def run(engine) -> np.ndarray:
    return np.array(engine.run(X)[0])


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, atol=1e-5))


def test_weights_are_taken_from_a_state_dict_files_or_a_package(package, tmp_path):
    with accord.load(package) as engine:
        context = engine.create_context()
        assert near(run(engine), expected(0))
        engine.load_weights(make_model(1).state_dict())
        assert near(run(engine), expected(1))
        assert near(np.array(context.run(X)[0]), expected(1))
        save_file(make_model(2).state_dict(), tmp_path / "model.safetensors")
        for source in (tmp_path / "model.safetensors", tmp_path):
            engine.load_weights(make_model(1).state_dict())
            engine.load_weights(source)
            assert near(run(engine), expected(2))
        engine.load_weights(export(make_model(3), tmp_path / "other.accord"))
        assert near(run(engine), expected(3))
    assert list(package.parent.glob(".weights.*")) == []


def with_other(name, tensor) -> dict:
    return {**make_model(1).state_dict(), name: tensor}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"0.weight": torch.zeros(INNER, HIDDEN)}, 'no tensor "2.weight"'),
        (with_other("0.weight", torch.zeros(INNER, HIDDEN + 1)), r'"0.weight" is \[128, 65\]'),
        (with_other("2.bias", torch.zeros(HIDDEN, dtype=torch.int64)), '"2.bias" is torch.int64'),
        (with_other("4.weight", torch.zeros(1)), 'no tensor "4.weight"'),
    ],
)
def test_weights_that_do_not_fit_change_nothing(package, weights, message):
    with accord.load(package) as engine:
        with pytest.raises(accord.Mismatch, match=message):
            engine.load_weights(weights)
        assert near(run(engine), expected(0))


def test_a_different_or_damaged_package_changes_nothing(package, tmp_path):
    other = torch.nn.Sequential(torch.nn.Linear(HIDDEN, INNER), torch.nn.Tanh()).eval()
    path = accord.export(other, (X,), path=tmp_path / "other.accord", progress=lambda done, total: None)
    damaged = export(make_model(1), tmp_path / "damaged.accord")
    content = bytearray((damaged / "weights-00001.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "weights-00001.safetensors").write_bytes(content)
    with accord.load(package) as engine:
        for source, error, message in (
            (path, accord.Mismatch, "a different model"),
            (damaged, accord.Corrupt, "weights-00001.safetensors"),
            (tmp_path / "nothing.accord", FileNotFoundError, "nothing"),
            (tmp_path / "nothing", accord.NotFound, "no safetensors files"),
        ):
            with pytest.raises(error, match=message):
                engine.load_weights(source)
            assert near(run(engine), expected(0))


def test_contexts_on_threads_see_either_old_or_new_weights(package, tmp_path):
    sources = [package, export(make_model(1), tmp_path / "one.accord")]
    answers = [expected(0), expected(1)]
    done = threading.Event()
    wrong = []
    seen = [0, 0]

    def use(engine) -> None:
        context = engine.create_context()
        while not done.is_set():
            found = np.array(context.run(X)[0])
            which = [near(found, answer) for answer in answers]
            if sum(which) != 1:
                wrong.append(found)
                return
            seen[which.index(True)] += 1

    with accord.load(package) as engine:
        threads = [threading.Thread(target=use, args=(engine,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for turn in range(20):
            new = (turn + 1) % 2
            engine.load_weights(sources[new])
            before = seen[new]
            wait_until(lambda new=new, before=before: seen[new] > before or wrong, "a run with the new weights")
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_ranks_agree_on_new_weights(package, tmp_path):
    good = export(make_model(1), tmp_path / "good.accord")
    bad = export(make_model(2), tmp_path / "bad.accord")
    content = bytearray((bad / "weights-00001.safetensors").read_bytes())
    content[-1] ^= 1
    (bad / "weights-00001.safetensors").write_bytes(content)
    store = accord.MemoryStore()

    def rank_part(rank: int) -> list:
        with (
            accord.Communicator.create(store, rank, 2, timeout=60) as comm,
            accord.load(package, {"tp": comm}) as engine,
        ):
            engine.load_weights(good)
            answers = [run(engine)]
            whole, none = make_model(1).state_dict(), {}
            for source in (
                good if rank == 0 else bad,
                good if rank == 0 else package,
                whole if rank == 0 else none,
                none if rank == 0 else tmp_path / "not_there.safetensors",
            ):
                with pytest.raises(accord.Error):
                    engine.load_weights(source)
                answers.append(run(engine))
            return answers

    with ThreadPoolExecutor(2) as pool:
        for answers in pool.map(rank_part, range(2)):
            assert all(near(answer, expected(1)) for answer in answers)


def test_a_language_model_discards_its_cache_of_the_old_weights(tmp_path):
    path = accord.export(
        make_small_llama(0, **LLAMA), path=tmp_path / "llama.accord", sharding="auto", progress=lambda done, total: None
    )
    prompt = list(range(2, 60))

    def answer(model) -> list[int]:
        return [event.token for event in model.submit(prompt, max_new_tokens=12) if event.token is not None]

    with accord.load(path) as engine:
        model = accord.LanguageModel.create(engine)
        old = answer(model)
        engine.load_weights(make_small_llama(1, **LLAMA).state_dict())
        new = answer(model)
        model.stop()
    for seed, found in ((0, old), (1, new)):
        with torch.no_grad():
            ids = make_small_llama(seed, **LLAMA).generate(
                torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
            )
        assert found == ids[0, len(prompt) :].tolist()


def test_the_manifest_names_the_required_entries_of_a_state_dict(package):
    names = [entry["name"] for entry in json.loads((package / "manifest.json").read_text())["tensors"]]
    assert sorted(names) == sorted(make_model(0).state_dict())


SIZES = {"vocab_size": 160, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 64}
HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
FUSED = {
    "gpt2": transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=64, vocab_size=160),
    "phi3": transformers.Phi3Config(**SIZES, **HEADS, intermediate_size=96),
    "mixtral": transformers.MixtralConfig(**SIZES, **HEADS, intermediate_size=96, num_local_experts=4),
}


@pytest.mark.parametrize("name", FUSED)
def test_a_state_dict_with_fused_layers_is_split_as_in_export(name, tmp_path):
    def make(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(FUSED[name]).eval()

    path = accord.export(make(0), path=tmp_path / "m.accord", sharding="auto", progress=lambda done, total: None)
    ids, places = np.arange(20), np.arange(20)
    with accord.load(path) as engine:
        engine.load_weights(make(1).state_dict())
        found = np.array(engine.run(ids, places, places)[0])
    with torch.no_grad():
        wanted = make(1)(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
