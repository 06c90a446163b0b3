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
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
CONFIGURATIONS = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "gemma2": transformers.Gemma2Config(**SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=16),
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None),
    "qwen2_moe": transformers.Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=96),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, norm_topk_prob=True),
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
        with torch.no_grad():  # so that what experts do is seen
            for parameter_name, parameter in model.named_parameters():
                if ".experts." in parameter_name:
                    parameter.mul_(8)
        path = folder / f"{name}-{len(list(folder.iterdir()))}.accord"
        options = {"sharding": "auto", **options}
        return str(accord.export(model if dtype is None else model.to(dtype), path=path, **options))

    return export


def run_logits(_, path, package, sizes, cache="float32"):
    """The logits of the steps, on the CPU and on groups of devices; those of each group's first rank."""
    from host_devices import library, on_thread_ranks
    from language_runs import logits_of_steps

    import accord

    library(path)
    with accord.load(package, device="cpu") as engine:
        found = [logits_of_steps(engine, cache)]
    for size in sizes:
        given = {}

        def body(comm, rank, given=given):
            with accord.load(package, {"tp": comm}, device=f"cuda:{rank}") as engine:
                given[rank] = logits_of_steps(engine, cache)

        on_thread_ranks(size, body)
        assert all(logits == given[0] for logits in given.values())
        found.append(given[0])
    return found


def numbers(dtype: str, data: bytes) -> np.ndarray:
    if dtype == "float32":
        return np.frombuffer(data, np.float32)
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).float().numpy()


def check(found, tolerance: float) -> None:
    cpu, *devices = found
    for device in devices:
        for (expected_dtype, expected), (dtype, given) in zip(cpu, device, strict=True):
            assert dtype == expected_dtype
            right = numbers(dtype, expected)
            atol = tolerance * max(1.0, np.abs(right).max())
            np.testing.assert_allclose(numbers(dtype, given), right, rtol=0, atol=atol)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_family_gives_the_logits_of_the_cpu(name, process, exported):
    check(process(run_logits, exported(name), [1]), 2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.03), (torch.float16, 0.005)])
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_narrow_model_stays_within_its_rounding(name, dtype, tolerance, process, exported):
    check(process(run_logits, exported(name, dtype), [1]), tolerance)


# Where a key or value lies between two codes the CPU and a device may choose differently: a code is a 254th of the largest one.
def test_a_cache_of_int8_is_read_as_on_the_cpu(process, exported):
    check(process(run_logits, exported("llama"), [1, 2], "int8"), 2e-3)


def test_weights_of_8_bits_are_held_in_the_models_dtype(process, exported):
    check(process(run_logits, exported("llama", weights="int8"), [1]), 2e-4)


# A part of every expert for each rank, in units that fill no group of a scale, or some experts for each.
@pytest.mark.parametrize("rule", [accord.Row(unit=24), accord.Expert()])
@pytest.mark.parametrize("weights", [None, "int8", "int4"])
def test_ranks_share_experts(weights, rule, process, exported):
    package = exported("mixtral", weights=weights, sharding={"*.experts": rule})
    check(process(run_logits, package, [1, 2, 4]), 2e-5 if weights is None else 2e-4)


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
        with pytest.raises(accord.Unsupported, match="float32, bfloat16 or int8, not float16"):
            context.create_cache(8, dtype="float16")


def test_mistakes_are_named(process, exported):
    process(run_mistakes, exported("gpt2"))
