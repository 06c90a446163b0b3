"""Causal language models of transformers as engines: exported, sharded over ranks, and continued in batches of
sequences."""

import json
import re
import sys
from pathlib import Path

import accord_command
import numpy as np
import pytest
from language_checks import check_at_each_size, logits_of
from language_runs import LENGTHS, PROMPTS, VOCABULARY, answers, continued, make_ids

import accord

torch = pytest.importorskip("torch")
from tiers import mostly_slow  # noqa: E402
from whole_runs import greedy  # noqa: E402

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

CONTEXT = 256
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GPT2_SIZES = {"n_embd": 96, "n_layer": 2, "n_head": 4, "vocab_size": 1027, "n_positions": CONTEXT}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 96,
}
CONFIGURATIONS = {
    "llama": transformers.LlamaConfig(**SIZES, rope_scaling=LLAMA3_ROPE, tie_word_embeddings=True),
    "mistral": transformers.MistralConfig(**SIZES, sliding_window=9),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "gemma2": transformers.Gemma2Config(**SIZES, head_dim=16, sliding_window=8, query_pre_attn_scalar=16),
    "phi3": transformers.Phi3Config(**SIZES),
    "mixtral": transformers.MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None),
    "qwen2_moe": transformers.Qwen2MoeConfig(**SIZES, **EXPERTS),
    "gpt2": transformers.GPT2Config(**GPT2_SIZES, bos_token_id=0, eos_token_id=1),
}


def make_model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(CONFIGURATIONS[name]).eval()


def run(engine: accord.Engine, ids: np.ndarray) -> torch.Tensor:
    positions = np.arange(len(ids))
    return torch.from_dlpack(engine.run(ids, positions, positions)[0]).clone()


def check(given: list[np.ndarray], model: torch.nn.Module, rtol: float = 1e-4, atol: float = 2e-6) -> None:
    """Compares the logits of continued() with those of the whole sequences."""
    for length, logits in zip(LENGTHS, given, strict=True):
        torch.testing.assert_close(
            torch.from_numpy(logits), logits_of(model, make_ids(length, length)), rtol=rtol, atol=atol
        )


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A function that returns a family's package, exported on first use."""
    folder, paths = tmp_path_factory.mktemp("families"), {}

    def exported(name: str) -> Path:
        if name not in paths:
            paths[name] = accord.export(make_model(name), path=folder / f"{name}.accord", sharding="auto")
        return paths[name]

    return exported


@pytest.mark.parametrize("name", mostly_slow(CONFIGURATIONS, "gpt2", "mixtral"))
def test_the_logits_of_a_family_match_transformers(name, family):
    ids = make_ids(40)
    with accord.load(family(name)) as engine:
        torch.testing.assert_close(run(engine, ids), logits_of(make_model(name), ids), rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", torch.bfloat16),
        pytest.param("mixtral", torch.bfloat16, marks=pytest.mark.slow),
        ("mixtral", torch.float16),
    ],
)
def test_a_narrow_model_is_as_close_to_float32_as_pytorch_is(name, dtype, tmp_path):
    model = make_model(name).to(dtype)
    path = accord.export(model, path=tmp_path / "model.accord")
    ids = make_ids(40)
    pytorch = logits_of(model, ids)
    exact = logits_of(model.float(), ids)
    with accord.load(path) as engine:
        given = run(engine, ids)
    assert given.dtype == dtype
    assert (given - exact).abs().mean() <= 1.1 * (pytorch - exact).abs().mean()


@pytest.fixture(scope="module")
def llama(family) -> Path:
    return family("llama")


def test_continuations_are_bit_identical_in_any_batch(llama):
    with accord.load(llama) as engine:
        given = continued(engine)
        check(given, make_model("llama"))
        for length, logits in zip(LENGTHS, given, strict=True):
            assert np.array_equal(logits, run(engine, make_ids(length, length)).numpy())


@pytest.mark.parametrize(("dtype", "atol"), [("bfloat16", 2e-3), ("int8", 4e-3)])
def test_the_logits_of_a_narrow_cache_are_close(dtype, atol, llama):
    with accord.load(llama) as engine:
        check(continued(engine, dtype), make_model("llama"), rtol=2e-2, atol=atol)


def continue_on_a_rank(comm, tests, path):
    import sys

    sys.path.insert(0, tests)
    from language_runs import continued

    with accord.load(path, {"tp": comm}) as engine:
        return continued(engine)


def test_ranks_share_a_model_by_its_own_rules(ranks, llama):
    first, second = ranks(2).run(continue_on_a_rank, accord_command.SUPPORT, str(llama))
    assert [logits.tobytes() for logits in first] == [logits.tobytes() for logits in second]
    check(first, make_model("llama"))


def test_key_heads_are_copied_where_there_are_more_ranks(ranks, tmp_path):
    # Two key heads, each with three query heads, over four ranks: the ranks have 2, 1, 2 and 1 query heads.
    torch.manual_seed(0)
    sizes = SIZES | {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    path = accord.export(model, path=tmp_path / "m.accord", sharding="auto")
    first, *others = ranks(4).run(continue_on_a_rank, accord_command.SUPPORT, str(path))
    for other in others:
        assert [logits.tobytes() for logits in first] == [logits.tobytes() for logits in other]
    check(first, model)
    with pytest.raises(accord.InvalidArgument, match="units"):
        accord.Engine.load(path, {"tp": (0, 3)})


def test_every_family_gives_equal_results_on_1_2_and_4_ranks(ranks, family):
    check_at_each_size(ranks, [str(family(name)) for name in CONFIGURATIONS], list(map(make_model, CONFIGURATIONS)))


def test_units_of_experts_may_stay_together(ranks, tmp_path):
    model = make_model("mixtral")  # twelve units of 16, in four blocks
    sharding = {"*.experts": accord.Row(unit=16, together=3)}
    check_at_each_size(ranks, [str(accord.export(model, path=tmp_path / "m.accord", sharding=sharding))], [model])


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([(3, 0, [0])], "the batch has 3 rows, but its inputs have 4"),
        ([(4, 0, [64])], "uses block 64, but the cache has 64 blocks"),
        ([(4, 13, [5])], "has 17 tokens, but blocks for 16"),
        ([(4, 0, [1]), (0, 0, [2])], "has 0 rows"),
        ([(4, -1, [1])], "after -1 tokens"),
    ],
)
def test_sequences_that_do_not_fit_are_rejected(llama, sequences, message):
    ids, at = make_ids(4), np.arange(4)
    with accord.load(llama) as engine:
        context = engine.create_context()
        with pytest.raises(accord.WrongState, match="create_cache"):
            context.run_sequences(sequences, ids, at, at)
        context.create_cache(64)
        with pytest.raises(accord.InvalidArgument, match=message):
            context.run_sequences(sequences, ids, at, at)


def request_an_invalid_id(comm, path, ids):
    with accord.load(path, {"tp": comm}) as engine:
        try:
            engine.run(ids, np.arange(len(ids)), np.arange(len(ids)))
        except accord.InvalidArgument as error:
            return str(error)


def test_all_ranks_report_an_id_outside_the_vocabulary(ranks, llama):
    first, second = ranks(2).run(request_an_invalid_id, str(llama), np.array([3, VOCABULARY, 5]))
    assert first == second
    assert str(VOCABULARY) in first


def test_a_model_that_is_not_a_language_model_needs_inputs(tmp_path):
    with pytest.raises(accord.ExportError, match="Linear is not a language model of transformers"):
        accord.export(torch.nn.Linear(2, 2).eval(), path=tmp_path / "m.accord")


def test_ranks_do_not_share_layers_whose_names_are_unknown(tmp_path):
    config = transformers.MptConfig(d_model=32, n_heads=2, n_layers=1, vocab_size=VOCABULARY, max_seq_len=64)
    model = transformers.MptForCausalLM(config).eval()
    with pytest.warns(UserWarning, match="knows no rules for MptForCausalLM.*give the rules by name patterns"):
        path = accord.export(model, path=tmp_path / "m.accord", sharding="auto")
    facts = accord.inspect(path)
    assert (facts["groups"], facts["sharded_bytes"]) == (["tp"], 0)


@pytest.fixture(scope="module")
def right_answers() -> list[list[int]]:
    model = make_model("llama")
    return [greedy(model, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options", [{}, {"max_rows": 7, "max_sequences": 3, "block_tokens": 32}, {"cache_tokens": 160}]
)
def test_concurrent_requests_get_the_answers_of_separate_ones(llama, right_answers, options):
    with accord.load(llama) as engine:
        model = accord.LanguageModel.create(engine, **options)
        assert (model.max_context, model.vocabulary, model.stop_tokens) == (CONTEXT, VOCABULARY, [1])
        assert answers(model) == right_answers
        model.stop()


def answer_on_a_rank(comm, tests, path, seed):
    import sys

    sys.path.insert(0, tests)
    from language_runs import answers

    with accord.load(path, {"tp": comm}) as engine:
        model = accord.LanguageModel.create(engine)
        if comm.rank > 0:
            return model.follow()
        best, drawn = answers(model), answers(model, temperature=1.0, top_p=0.9, seed=seed)
        model.stop()
        return best, drawn


def test_ranks_answer_together(ranks, llama, right_answers):
    (best, drawn), follower = ranks(2).run(answer_on_a_rank, accord_command.SUPPORT, str(llama), 5)
    assert follower is None
    assert best == right_answers
    with accord.load(llama) as engine:
        alone = accord.LanguageModel.create(engine)
        assert answers(alone, temperature=1.0, top_p=0.9, seed=5) == drawn
        assert answers(alone, temperature=1.0, top_p=0.9, seed=6) != drawn


def test_a_request_reports_its_finish_reason(llama, right_answers):
    with accord.load(llama) as engine:
        model = accord.LanguageModel.create(engine)
        stop = right_answers[1][3]
        *_, last = model.submit(PROMPTS[1], stop_tokens=[stop], logprobs=2)
        assert (last.finish, last.token, last.error) == ("stop_token", stop, None)
        assert last.top[0] == (stop, last.logprob)
        *_, last = model.submit(PROMPTS[1], max_new_tokens=3)
        assert (last.finish, last.index) == ("length", 2)
        stream = model.submit(PROMPTS[1], max_new_tokens=200)
        next(stream)
        stream.cancel()
        *_, last = stream
        assert last.finish == "cancelled"


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt"),
        ([VOCABULARY], {}, f"token {VOCABULARY}"),
        ([1], {"temprature": 1.0}, 'did you mean "temperature"'),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1] * CONTEXT, {}, "context|room"),
    ],
)
def test_an_invalid_request_is_rejected(llama, prompt, options, message):
    with accord.load(llama) as engine:
        model = accord.LanguageModel.create(engine)
        with pytest.raises(accord.InvalidArgument, match=message):
            model.submit(prompt, **options)


def test_an_engine_that_is_not_a_language_model_is_rejected(tmp_path):
    path = accord.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), path=tmp_path / "m.accord")
    with accord.load(path) as engine, pytest.raises(accord.Unsupported, match="not a language model"):
        accord.LanguageModel.create(engine)


IN_STAGES = """
import accord
comm = accord.Communicator.from_environment()
{}
if comm.rank > 0:
    model.follow()
else:
    print([event.token for event in model.submit([1, 17, 23], max_new_tokens=8)])
    model.stop()
"""


def test_the_guide_runs(tmp_path, monkeypatch):
    guide = (Path(__file__).parents[3] / "docs/language-models.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    exporting, answering, stages = (
        next(snippet for snippet in snippets if which in snippet) for which in ("accord.export(", "submit(", '"pp"')
    )
    monkeypatch.chdir(tmp_path)
    make_model("llama").save_pretrained("my-llama")
    exec(exporting, {})
    result = accord_command.accord("run", "-n", "2", sys.executable, "-c", answering)
    assert result.returncode == 0, result.stderr
    lists = re.findall(r"\[(\d[\d, ]+)\]$", result.stdout, re.MULTILINE)
    assert [len(tokens.split(",")) for tokens in lists] == [8, 8]
    result = accord_command.accord("run", "-n", "4", sys.executable, "-c", IN_STAGES.format(stages))
    assert result.returncode == 0, result.stderr
    assert lists[0] in result.stdout


def test_the_package_includes_the_tokenizer_and_the_chat_format(tmp_path):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    template = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    path = accord.export(make_model("llama"), path=tmp_path / "model.accord", tokenizer=tmp_path)
    with accord.load(path) as engine:
        model = accord.LanguageModel.create(engine)
        assert accord.Tokenizer.parse(model.tokenizer_json).encode("ab") == [2]
    assert accord.verify(path) == []
    chat = accord.ChatFormat.load(path / "chat_format.json")
    assert chat.render([{"role": "user", "content": "hi"}]).startswith("<user>hi</>")
    (path / "chat_format.json").write_text("{}")
    with pytest.raises(accord.Corrupt, match="chat_format.json"):
        accord.load(path)
    with pytest.raises(accord.ExportError, match="there is no such tokenizer"):
        accord.export(make_model("llama"), path=tmp_path / "other.accord", tokenizer=tmp_path / "none.json")
