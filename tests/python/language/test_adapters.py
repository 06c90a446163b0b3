"""Requests choose adapters (LoRA), and answers equal those of PEFT: in one batch, on several ranks, with reuse."""

import copy
import json

import pytest
from accord_command import accord as run_accord

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from adapter_models import ADAPTERS, ALL, adapted, greedy_answer, save_adapter  # noqa: E402
from c_language_model import Library, request  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from served_requests import served  # noqa: E402
from small_llama import make_small_llama  # noqa: E402
from text_model import TEXTS  # noqa: E402

import accord  # noqa: E402

TOKENS = 12
PROMPTS = {"attention": [5, 9, 7, 3, 11], "all": [5, 9, 7, 3, 11], "patterns": [8, 4, 2], "head": [6, 2, 8, 1]}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    path = tmp_path_factory.mktemp("base") / "llama.accord"
    return accord.export(make_small_llama(), path=path, sharding="auto")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    numbered = enumerate(ADAPTERS.items())
    return {name: save_adapter(make_small_llama, root / name, seed, **options) for seed, (name, options) in numbered}


@pytest.fixture(scope="module")
def package(base, folders):
    return accord.export_adapters(base, folders, path=base.parent / "adapters.accord")


@pytest.fixture(scope="module")
def expected(folders):
    """The answer to each adapter's prompt, and to the same prompt without an adapter."""
    answers = {
        name: greedy_answer(adapted(make_small_llama(), folder), PROMPTS[name], TOKENS)
        for name, folder in folders.items()
    }
    plain = {name: greedy_answer(make_small_llama(), prompt, TOKENS) for name, prompt in PROMPTS.items()}
    assert all(answers[name] != plain[name] for name in answers)
    assert answers["attention"] != answers["all"]  # the same prompt
    return answers, plain


def requests_of(names, **options):
    return [(PROMPTS[name], None, {"max_new_tokens": TOKENS, "adapter": name, **options}) for name in names]


@pytest.mark.parametrize("ranks", [1, 2])
def test_requests_with_different_adapters_are_computed_together(ranks, package, expected):
    answers, plain = expected
    requests = requests_of(PROMPTS) + requests_of(PROMPTS, adapter=None)
    found = served(package, ranks, requests)
    assert found == [[answers[name]] for name in PROMPTS] + [[plain[name]] for name in PROMPTS]


@pytest.mark.parametrize("group", ["pp", "cp"])
def test_ranks_divide_layers_or_tokens(group, package, expected):
    answers, plain = expected
    found = served(package, 2, requests_of(PROMPTS) + requests_of(["all"], adapter=None), group=group)
    assert found == [[answers[name]] for name in PROMPTS] + [[plain["all"]]]


def test_prompts_are_computed_in_chunks(package, expected):
    answers, _ = expected
    found = served(package, 1, requests_of(PROMPTS), max_rows=3, max_sequences=3)
    assert found == [[answers[name]] for name in PROMPTS]


def test_samples_and_resumed_answers_keep_their_adapter(package, expected):
    answers, _ = expected
    answer = answers["all"]
    requests = requests_of(["all"], samples=2)
    resumed = (PROMPTS["all"] + answer[:4], None, {"max_new_tokens": TOKENS - 4, "generated": 4, "adapter": "all"})
    assert served(package, 1, [*requests, resumed]) == [[answer] * 2, [answer[4:]]]


def test_equal_prompts_share_the_cache_only_with_the_same_adapter(package):
    prompt = list(range(1, 41))
    names = ["attention", "attention", "all", None, None]
    with accord.Communicator.alone() as comm, accord.load(package, {"tp": comm}) as engine:
        model = accord.LanguageModel.create(engine)
        reused, answers = [], []
        for name in names:
            answers.append([event.token for event in model.submit(prompt, max_new_tokens=4, adapter=name)])
            reused.append(model.stats.reused_tokens - sum(reused))
        model.stop()
    assert reused == [0, 32, 0, 0, 32]  # whole blocks of 16 tokens
    assert answers[0] == answers[1]
    assert answers[3] == answers[4] == greedy_answer(make_small_llama(), prompt, 4)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_adapters_are_added_to_quantized_weights(weights, folders, tmp_path):
    """With and without an adapter, logits differ from those of float weights by the same rounding of the weights."""
    base = accord.export(make_small_llama(), path=tmp_path / "base.accord", sharding="auto", weights=weights)
    package = accord.export_adapters(base, {"all": folders["all"]}, path=tmp_path / "adapters.accord")
    prompt = PROMPTS["all"]
    found = logits_of(package, prompt, [0, 1])
    with torch.no_grad():
        plain = make_small_llama()(input_ids=torch.tensor([prompt])).logits[0]
        reference = adapted(make_small_llama(), folders["all"])(input_ids=torch.tensor([prompt])).logits[0]
    change = (reference - plain).norm()
    rounding = (found[0] - plain).norm()
    assert rounding < 0.3 * change
    assert (found[1] - reference).norm() < 3 * rounding


def logits_of(package, prompt, adapters):
    """Returns the logits of all tokens with each adapter, by its number."""
    with accord.Communicator.alone() as comm, accord.load(package, {"tp": comm}) as engine:
        positions = torch.arange(len(prompt))
        inputs = [(torch.tensor(prompt), positions, positions, torch.full_like(positions, one)) for one in adapters]
        return [torch.from_dlpack(engine.run(*given)[0]).clone() for given in inputs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adapters_have_the_dtype_of_the_model(dtype, folders, tmp_path):
    model = make_small_llama().to(dtype)
    base = accord.export(model, path=tmp_path / "base.accord", sharding="auto")
    package = accord.export_adapters(base, {"all": folders["all"]}, path=tmp_path / "adapters.accord")
    prompt = torch.tensor([PROMPTS["all"]])
    with torch.no_grad():
        exact = adapted(make_small_llama(), folders["all"])(input_ids=prompt).logits[0]
        of_peft = adapted(model, folders["all"])(input_ids=prompt).logits[0]
    (found,) = logits_of(package, PROMPTS["all"], [1])
    assert found.dtype == dtype
    # PEFT keeps the matrices of adapters in float32.
    assert 0 < (found - exact).norm() < 2 * (of_peft - exact).norm()


def test_files_of_the_base_package_are_not_copied(base, package):
    names = {file.name for file in base.iterdir()} - {"graph.json", "manifest.json", "manifest.sha256"}
    assert names
    for name in names:
        assert (base / name).stat().st_ino == (package / name).stat().st_ino
    assert accord.verify(package) == []


def test_inspect_lists_the_adapters(base, package):
    assert accord.inspect(package)["adapters"] == list(ADAPTERS)
    assert accord.inspect(base)["adapters"] == []
    lines = run_accord("engine", "inspect", package).stdout.splitlines()
    assert [line for line in lines if line.startswith("adapter ")] == [f"adapter   {name}" for name in ADAPTERS]


def test_the_model_names_its_adapters(package, base):
    with accord.Communicator.alone() as comm:
        for path, names in ((package, list(ADAPTERS)), (base, [])):
            with accord.load(path, {"tp": comm}) as engine:
                model = accord.LanguageModel.create(engine)
                assert model.adapters == names
                hint = 'did you mean "all"' if names else "none is available"
                with pytest.raises(accord.InvalidArgument, match=f'unknown adapter "al"; {hint}'):
                    model.submit([1, 2], adapter="al")
                model.stop()


def test_a_package_with_adapters_compares_as_its_model(package):
    found = accord.compare(make_small_llama(), package, torch.tensor(PROMPTS["all"]))
    assert found.first_deviation is None
    assert "model.layers.1.mlp.down_proj" in {module.module for module in found.modules}


def test_new_weights_come_from_a_package_with_adapters(package, expected):
    answers, _ = expected
    with accord.Communicator.alone() as comm, accord.load(package, {"tp": comm}) as engine:
        with pytest.raises(accord.Mismatch, match='no tensor "adapters.model.layers.0'):
            engine.load_weights(make_small_llama(seed=1).state_dict())
        engine.load_weights(package)
        model = accord.LanguageModel.create(engine)
        events = list(model.submit(PROMPTS["all"], max_new_tokens=TOKENS, adapter="all"))
        model.stop()
    assert [event.token for event in events] == answers["all"]


def test_canonical_ranks_are_refused(package):
    with pytest.raises(accord.Unsupported, match="has adapters, which exclude canonical_ranks"):
        served(package, 2, [], load={"canonical_ranks": 2})


def changed_copy(folder, target, settings=None, rename=None, change=None):
    """Copies an adapter with other settings, tensors of other names, or changed tensors."""
    target.mkdir()
    document = json.loads((folder / "adapter_config.json").read_text()) | (settings or {})
    (target / "adapter_config.json").write_text(json.dumps(document))
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors = {(rename or (lambda name: name))(name): tensor for name, tensor in tensors.items()}
    save_file((change or (lambda tensors: tensors))(tensors), target / "adapter_model.safetensors")
    return target


REFUSED = {
    "another kind": ({"settings": {"peft_type": "IA3"}}, "peft_type is 'IA3'"),
    "DoRA": ({"settings": {"use_dora": True}}, "engines do not run DoRA"),
    "biases": ({"settings": {"bias": "all"}}, "bias is 'all'"),
    "replaced layers": ({"settings": {"modules_to_save": ["lm_head"]}}, "layers that are replaced as a whole"),
    "changed weights": ({"settings": {"init_lora_weights": "pissa"}}, "init_lora_weights is 'pissa'"),
    "no number": ({"settings": {"lora_alpha": "much"}}, "lora_alpha is 'much'"),
    "a bad pattern": ({"settings": {"alpha_pattern": {"(": 1}}}, "is no regular expression"),
    "an unknown layer": (
        {"rename": lambda name: name.replace("layers.1", "layers.7")},
        'no linear layer "model.layers.7.*did you mean "model.layers.1',
    ),
    "an unknown tensor": ({"rename": lambda name: name.replace("lora_A", "lora_C")}, "is no matrix of an adapter"),
    "a magnitude": (
        {"rename": lambda name: name.replace("lora_A", "lora_magnitude_vector")},
        "is of DoRA; engines run plain LoRA",
    ),
    "a weight of the model": (
        {"rename": lambda name: name.replace("q_proj.lora_A", "q_proj.base_layer")},
        "replaces a weight of the model",
    ),
    "one of two": (
        {"change": lambda tensors: {name: one for name, one in tensors.items() if "lora_A" in name}},
        "only one of lora_A and lora_B",
    ),
    "other ranks": (
        {"change": lambda tensors: {n: one[:2].clone() if "lora_A" in n else one for n, one in tensors.items()}},
        "which do not fit",
    ),
    "other sizes": (
        {"change": lambda tensors: {n: one[:, :9].clone() if "lora_A" in n else one for n, one in tensors.items()}},
        "takes 64 inputs .* but the adapter is for 9",
    ),
    "no number in it": (
        {"change": lambda tensors: {name: one * float("nan") for name, one in tensors.items()}},
        "numbers that are not finite",
    ),
    "nothing": ({"change": lambda tensors: {}}, "has no tensors"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_adapters_are_refused(case, base, folders, tmp_path):
    changes, message = REFUSED[case]
    folder = changed_copy(folders["attention"], tmp_path / "changed", **changes)
    with pytest.raises(accord.ExportError, match=message):
        accord.export_adapters(base, {"sql": folder}, path=tmp_path / "out.accord")
    assert [file.name for file in tmp_path.iterdir()] == ["changed"]


def test_damaged_folders_and_packages_are_refused(base, package, folders, tmp_path):
    good = folders["attention"]
    out = tmp_path / "out.accord"
    with pytest.raises(accord.ExportError, match="adapter_config.json: .*No such file"):
        accord.export_adapters(base, {"sql": tmp_path / "nowhere"}, path=out)
    cut = changed_copy(good, tmp_path / "cut")
    (cut / "adapter_model.safetensors").write_bytes((good / "adapter_model.safetensors").read_bytes()[:100])
    with pytest.raises(accord.ExportError, match=r"cut/adapter_model.safetensors: "):
        accord.export_adapters(base, {"sql": cut}, path=out)
    with pytest.raises(accord.ExportError, match="has adapters already"):
        accord.export_adapters(package, {"sql": good}, path=out)
    with pytest.raises(accord.ExportError, match="there are no adapters"):
        accord.export_adapters(base, {}, path=out)
    with pytest.raises(accord.ExportError, match="cannot be the name of an adapter"):
        accord.export_adapters(base, {"": good}, path=out)
    layer = accord.export(torch.nn.Linear(4, 4).eval(), (torch.ones(2, 4),), path=tmp_path / "layer.accord")
    with pytest.raises(accord.ExportError, match="is not a language model"):
        accord.export_adapters(layer, {"sql": good}, path=out)
    assert not out.exists()


def test_an_adapter_of_all_layers_leaves_no_layer_out(folders):
    """The cases above mean nothing for layers that no adapter changes."""
    changed = {name.split(".")[-3] for name in load_file(folders["all"] / "adapter_model.safetensors")}
    assert changed == set(ALL)


def test_texts_choose_adapters_in_python_in_a_shell_and_in_c(text_model, tmp_path):
    folder = save_adapter(lambda: copy.deepcopy(text_model.model), tmp_path / "adapter", 5, **ADAPTERS["attention"])
    package = accord.export_adapters(text_model.path, {"other": folder}, path=tmp_path / "adapters.accord")
    ids = text_model.tokenizer(TEXTS[0]).input_ids
    answer = greedy_answer(adapted(copy.deepcopy(text_model.model), folder), ids, 8)
    expected = text_model.tokenizer.decode(answer, skip_special_tokens=True)
    plain = text_model.continued(TEXTS[0], 8)
    assert expected != plain
    for name, text in (("other", expected), (None, plain)):
        assert accord.generate(package, TEXTS[0], max_new_tokens=8, adapter=name).text == text
        chosen = ("--adapter", name) if name else ()
        ran = run_accord("engine", "generate", package, "--prompt", TEXTS[0], "--max-new-tokens", 8, "--json", *chosen)
        assert json.loads(ran.stdout)["text"] == text
    library = Library(package)
    try:
        for name, text in ((b"other", expected), (None, plain)):
            given = request(prompt=TEXTS[0].encode(), max_new_tokens=8, adapter=name)
            assert [found for found, _ in library.texts(given)] == [text]
    finally:
        library.close()
