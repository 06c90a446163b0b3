"""Engines on simulated GPUs (in host memory): language models of transformers compared with the engine on the CPU,
which other tests compare with PyTorch."""

import numpy as np
import pytest
from language_runs import VOCABULARY

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiers import mostly_slow  # noqa: E402

import accord  # noqa: E402

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
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def export(name: str, dtype=None, **options) -> str:
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(CONFIGURATIONS[name]).eval()
        with torch.no_grad():  # so that errors in experts show
            for parameter_name, parameter in model.named_parameters():
                if ".experts." in parameter_name:
                    parameter.mul_(8)
        path = folder / f"{name}-{len(list(folder.iterdir()))}.accord"
        options = {"sharding": "auto", **options}
        return str(accord.export(model if dtype is None else model.to(dtype), path=path, **options))

    return export


def run_logits(_, path, package, sizes, cache="float32"):
    """Returns the logits of the steps on the CPU, and on groups of devices of each size (their ranks must agree)."""
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


@pytest.mark.parametrize("name", mostly_slow(CONFIGURATIONS, "llama", "mixtral"))
def test_the_logits_of_a_family_match_the_cpu(name, device_process, exported):
    check(device_process(run_logits, exported(name), [1]), 2e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [pytest.param(torch.bfloat16, 0.03, marks=pytest.mark.slow), (torch.float16, 0.005)]
)
@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_a_narrow_model_stays_within_its_rounding(name, dtype, tolerance, device_process, exported):
    check(device_process(run_logits, exported(name, dtype), [1]), tolerance)


# A key or value halfway between two codes may be rounded differently on the CPU and on a device. A code is 1/254 of
# the largest one.
def test_a_cache_of_int8_is_read_as_on_the_cpu(device_process, exported):
    check(device_process(run_logits, exported("llama"), [1, 2], "int8"), 2e-3)


def test_8_bit_weights_are_held_in_the_models_dtype(device_process, exported):
    check(device_process(run_logits, exported("llama", weights="int8"), [1]), 2e-4)


# Each rank has a part of every expert, in units that do not fill a scale group, or it has some of the experts.
@pytest.mark.parametrize("rule", [accord.Row(unit=24), accord.Expert()])
@pytest.mark.parametrize("weights", mostly_slow([None, "int8", "int4"], "int4"))
def test_ranks_share_experts(weights, rule, device_process, exported):
    package = exported("mixtral", weights=weights, sharding={"*.experts": rule})
    check(device_process(run_logits, package, [1, 2, 4]), 2e-5 if weights is None else 2e-4)


def run_canonical(_, path, package):
    """Returns the logits of the steps on the CPU, and on each rank of groups of devices with canonical ranks."""
    from host_devices import library, on_thread_ranks
    from language_runs import logits_of_steps

    import accord

    library(path)
    with accord.load(package) as engine:
        found = [logits_of_steps(engine)]
    for size in (1, 2):

        def body(comm, rank):
            with accord.load(package, {"tp": comm}, device=f"cuda:{rank}", canonical_ranks=4) as engine:
                found.append(logits_of_steps(engine))

        on_thread_ranks(size, body)
    return found


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("llama", {}, 2e-5),
        pytest.param("llama", {"dtype": torch.bfloat16}, 0.03, marks=pytest.mark.slow),
        ("llama", {"weights": "fp8"}, 2e-4),
        pytest.param("gpt2", {}, 2e-5, marks=pytest.mark.slow),
    ],
)
def test_canonical_ranks_are_bit_identical_on_one_device_and_two(name, options, tolerance, device_process, exported):
    found = device_process(run_canonical, exported(name, **options))
    check(found, tolerance)
    _, first, *others = found
    assert len(others) == 2
    assert all(logits == first for logits in others)


SAMPLED = [
    {},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.5, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.02},
]


def run_generation(_, path, package, options, size, group="tp"):
    """Returns the tokens of each request on the CPU and on devices, and the bytes copied from devices to the CPU
    while they decoded."""
    from host_devices import library, on_thread_ranks
    from language_runs import make_ids

    import accord

    loaded = library(path)
    prompts = [make_ids(count, count).tolist() for count in (5, 30)]

    def answers(model):
        streams = [
            model.submit(prompt, max_new_tokens=6, seed=seed, **each)
            for prompt in prompts
            for seed, each in enumerate(options)
        ]
        return [[event.token for event in stream if event.token is not None] for stream in streams]

    with accord.load(package) as engine:
        model = accord.LanguageModel.create(engine)
        expected = answers(model)
        model.stop()

    given = []

    def body(comm, rank):
        with accord.load(package, {group: comm}, device=f"cuda:{rank}") as engine:
            model = accord.LanguageModel.create(engine)
            if rank != 0:
                model.follow()
                return
            before = loaded.accord_test_copied_to_host()
            given.append(answers(model))
            given.append(loaded.accord_test_copied_to_host() - before)
            model.stop()

    on_thread_ranks(size, body)
    return expected, *given


@pytest.mark.parametrize("size", [1, 2])
def test_ranks_with_a_device_each_generate_the_tokens_of_the_cpu_and_copy_only_tokens(size, device_process, exported):
    expected, given, copied = device_process(run_generation, exported("llama"), SAMPLED, size)
    assert [len(tokens) for tokens in given] == [6] * 2 * len(SAMPLED)
    assert given == expected
    tokens = 4 * sum(len(tokens) for tokens in given)
    faults = copied - tokens  # runs report their faults, 48 bytes each
    assert faults % 48 == 0 and 0 < faults < size * 4 * VOCABULARY


def test_stages_with_a_device_each_generate_the_tokens_of_the_cpu(device_process, exported):
    expected, given, _ = device_process(run_generation, exported("llama"), SAMPLED, 2, "pp")
    assert given == expected


def test_logits_are_copied_only_for_rows_that_the_cpu_samples(device_process, exported):
    options = [{}, {"repetition_penalty": 1.3}, {"temperature": 1, "logprobs": 2}, {"biases": {5: 3.0}}]
    expected, given, copied = device_process(run_generation, exported("llama"), options, 1)
    assert given == expected
    rows = 2 * 3 * 6 * 4 * VOCABULARY
    assert rows <= copied < 2 * rows


class ImageBlock(torch.nn.Module):
    """The building blocks of diffusion models, ViT and Whisper: patches, group norms, a depthwise and a grouped
    convolution, upsampling, attention over positions, and a one-dimensional convolution."""

    def __init__(self, dtype) -> None:
        super().__init__()
        nn = torch.nn
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.norm = nn.GroupNorm(8, 32)
        self.wide = nn.Conv2d(32, 64, 3, padding=1)
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.grouped = nn.Conv2d(64, 32, 1, groups=2)
        self.enlarge = nn.Upsample(scale_factor=2)
        self.last = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.length = nn.Conv1d(32, 16, 3, stride=2, padding=1)
        self.to(dtype)

    def forward(self, x):
        h = self.patches(x.to(self.length.weight.dtype))
        h = h + self.grouped(self.depthwise(torch.nn.functional.silu(self.wide(self.norm(h)))))
        h = self.last(self.enlarge(h)).flatten(2).transpose(1, 2)
        heads = [layer(h).unflatten(2, (4, 8)).transpose(1, 2) for layer in (self.q, self.k, self.v)]
        h = h + self.out(torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return self.length(h.transpose(1, 2)).float()


def run_image(_, path, package, image, sizes):
    """Returns the output on the CPU, and on groups of devices of each size (their ranks must agree)."""
    from host_devices import library, on_thread_ranks

    import accord

    library(path)
    with accord.load(package, device="cpu") as engine:
        found = [np.from_dlpack(engine.run(image)[0]).copy()]
    for size in sizes:
        given = {}

        def body(comm, rank, given=given):
            with accord.load(package, {"tp": comm}, device=f"cuda:{rank}") as engine:
                for _ in range(2):  # the second run is a captured graph
                    given[rank] = np.from_dlpack(engine.run(image)[0]).copy()

        on_thread_ranks(size, body)
        assert all((values == given[0]).all() for values in given.values())
        found.append(given[0])
    return found


@pytest.mark.parametrize("weights", [None, "int8"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.03), (torch.float16, 4e-3)])
def test_image_models_match_the_cpu_and_pytorch(dtype, tolerance, weights, device_process, tmp_path):
    torch.manual_seed(0)
    model = ImageBlock(dtype).eval()
    image = torch.randn(2, 3, 24, 16)
    rules = {name: accord.Column(unit=8) for name in "qkv"} | {"out": accord.Row(unit=8)}
    package = accord.export(model, (image,), path=tmp_path / "image.accord", sharding=rules, weights=weights)
    cpu, *devices = device_process(run_image, str(package), image.numpy(), [1, 2, 4])
    # The ranks' parts are quantized in their own units.
    tolerance = tolerance if weights is None else max(tolerance, 1e-3)
    for given in devices:
        np.testing.assert_allclose(given, cpu, rtol=0, atol=tolerance * np.abs(cpu).max())
    if weights is None:
        with torch.no_grad():
            right = model.float()(image).numpy()
        np.testing.assert_allclose(devices[0], right, rtol=0, atol=2 * tolerance * np.abs(right).max())


def run_inputs(_, path, package):
    """Returns the outputs for an input on the CPU and for one on the engine's device, the DLPack stream that had to
    be ready for the latter, and the error for an input on another device."""
    from host_devices import OnDevice, library

    import accord

    loaded = library(path)
    ids = np.arange(6, dtype=np.int64).reshape(2, 3)
    with accord.load(package, device="cuda:0") as engine:
        array = OnDevice(loaded, 0, ids)
        expected, given = (np.from_dlpack(engine.run(x)[0]).copy() for x in (ids, array))
        try:
            engine.run(OnDevice(loaded, 1, ids))
        except accord.InvalidArgument as error:
            return expected, given, array.requested_streams, str(error)


def test_inputs_may_be_on_the_engines_device(device_process, tmp_path):
    model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 4)).eval()
    package = accord.export(model, (torch.zeros(2, 3, dtype=torch.int64),), path=tmp_path / "table.accord")
    expected, given, streams, refused = device_process(run_inputs, str(package))
    np.testing.assert_array_equal(given, expected)
    assert streams == [1]
    assert "its memory is on cuda:1, but the engine is on cuda:0" in refused


def make_invalid_calls(_, path, package):
    import pytest
    from host_devices import library

    import accord

    library(path)
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", ""):
        with pytest.raises(accord.InvalidArgument, match="does not exist; expected cpu, cuda, cuda:0"):
            accord.load(package, device=name)
    with pytest.raises(accord.InvalidArgument, match="cuda:99 does not exist"):
        accord.load(package, device="cuda:99")
    with pytest.raises(accord.Unsupported, match="cannot be combined with canonical_ranks"):
        accord.load(package, device="cuda", canonical_ranks=2, overlap_rows=64)
    with accord.load(package, device="cuda") as engine:
        context = engine.create_context()
        with pytest.raises(accord.Unsupported, match="float32, bfloat16 or int8, not float16"):
            context.create_cache(8, dtype="float16")


def test_invalid_arguments_are_named(device_process, exported):
    device_process(make_invalid_calls, exported("gpt2"))
