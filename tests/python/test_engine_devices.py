"""Engines on GPUs, over devices of host memory: language models of transformers beside the engine on the CPU, which other tests hold against PyTorch."""

import os
from pathlib import Path

import numpy as np
import pytest
from accord_command import BUILD
from host_devices import LIBRARY
from language_runs import VOCABULARY
from ranks import Ranks

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import accord  # noqa: E402

PATH = str(BUILD / "tests" / LIBRARY)
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
CONFIGURATIONS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "gemma2": transformers.Gemma2Config(**SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=16),
    "gpt2": transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=128),
}


@pytest.fixture(scope="module")
def process():
    """One that has the devices of the test library; accord reads ACCORD_NCCL once."""
    path = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    started = Ranks(1, environment={"ACCORD_NCCL": PATH, "PYTHONPATH": path})
    yield lambda function, *arguments: started.run(function, PATH, *arguments)[0]
    started.end()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def export(name: str, dtype=None, **options) -> str:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGURATIONS[name]).eval()
        path = folder / f"{name}-{len(list(folder.iterdir()))}.accord"
        return str(accord.export(model if dtype is None else model.to(dtype), path=path, sharding="auto", **options))

    return export


def run_logits(_, path, package):
    """The logits of a prompt, and of tokens that follow it one by one, on the CPU and on a device."""

    import numpy as np
    from host_devices import library
    from language_runs import bits, make_ids

    import accord

    library(path)
    found = []
    for device in ("cpu", "cuda:0"):
        with accord.load(package, device=device) as engine:
            context = engine.create_context()
            context.create_cache(8, block_tokens=16)
            ids, begin, logits = make_ids(24), 0, []
            for count in (19, 1, 1, 1, 1, 1):
                at = np.arange(begin, begin + count)
                output = context.run_sequences([(count, begin, [2, 0])], ids[at], at, np.arange(count))[0]
                logits.append((output.dtype, bits(output)))
                begin += count
            found.append(logits)
    return found


def numbers(dtype: str, data: bytes) -> np.ndarray:
    if dtype == "float32":
        return np.frombuffer(data, np.float32)
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).float().numpy()


def check(found, tolerance: float) -> None:
    cpu, device = found
    for (expected_dtype, expected), (dtype, given) in zip(cpu, device, strict=True):
        assert dtype == expected_dtype
        right = numbers(dtype, expected)
        np.testing.assert_allclose(numbers(dtype, given), right, rtol=0, atol=tolerance * max(1.0, np.abs(right).max()))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_family_gives_the_logits_of_the_cpu(name, process, exported):
    check(process(run_logits, exported(name)), 2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 0.005)])
def test_a_narrow_model_stays_within_its_rounding(dtype, tolerance, process, exported):
    check(process(run_logits, exported("llama", dtype)), tolerance)


def test_weights_of_8_bits_are_held_in_the_models_dtype(process, exported):
    check(process(run_logits, exported("llama", weights="int8")), 2e-4)


def run_generation(_, path, package):
    from host_devices import library, on_thread_ranks
    from language_runs import make_ids

    import accord

    library(path)
    prompts = [make_ids(count, count).tolist() for count in (5, 30)]

    def answers(model):
        streams = [model.submit(prompt, max_new_tokens=6) for prompt in prompts]
        return [[event.token for event in stream if event.token is not None] for stream in streams]

    with accord.load(package) as engine:
        model = accord.LanguageModel.create(engine)
        expected = answers(model)
        model.stop()

    given = []

    def body(comm, rank):
        with accord.load(package, {"tp": comm}, device=f"cuda:{rank}") as engine:
            model = accord.LanguageModel.create(engine)
            if rank != 0:
                model.follow()
                return
            given.extend(answers(model))
            model.stop()

    on_thread_ranks(2, body)
    return expected, given


def test_two_ranks_with_a_device_each_generate_what_the_cpu_does(process, exported):
    expected, given = process(run_generation, exported("llama"))
    assert [len(tokens) for tokens in given] == [6, 6]
    assert given == expected


def run_mistakes(_, path, package):
    import pytest
    from host_devices import library

    import accord

    library(path)
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", ""):
        with pytest.raises(accord.InvalidArgument, match="is none of cpu, cuda, cuda:0"):
            accord.load(package, device=name)
    with pytest.raises(accord.InvalidArgument, match="there is no cuda:99"):
        accord.load(package, device="cuda:99")
    with pytest.raises(accord.Unsupported, match="canonical_ranks is for engines on the CPU"):
        accord.load(package, device="cuda", canonical_ranks=2)
    with accord.load(package, device="cuda") as engine:
        context = engine.create_context()
        with pytest.raises(accord.Unsupported, match="not int8"):
            context.create_cache(8, dtype="int8")


def test_mistakes_are_named(process, exported):
    process(run_mistakes, exported("gpt2"))
