"""Long prompts in two halves, so that the sums of one half over the ranks overlap with the computation of the other
half."""

import json

import numpy as np
import pytest
from accord_command import SUPPORT

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8}
SIZES |= {"vocab_size": 320, "max_position_embeddings": 256}


def llama() -> torch.nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=4))


def gpt2() -> torch.nn.Module:
    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 8, "vocab_size": 320, "n_positions": 256}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False)
        self.config = self.bert.config

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.bert(ids).last_hidden_state


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    made = {"llama": llama(), "llama bfloat16": llama().bfloat16(), "gpt2": gpt2()}
    paths = {
        name: str(accord.export(model.eval(), path=folder / f"{name}.accord", sharding="auto"))
        for name, model in made.items()
    }
    ids, sizes = torch.ones(2, 9, dtype=torch.int64), {0: torch.export.Dim("batch", max=16)}
    encoder = folder / "encoder.accord"
    accord.export(Encoder().eval(), (ids,), path=encoder, sharding="auto", dynamic_shapes=(sizes,))
    return paths | {"encoder": str(encoder)}


def runs_of_ranks(comm, tests, paths, overlap_rows, canonical_ranks):
    """Returns, for each package, the outputs of runs of several sizes as bytes, and the collectives' steps of two
    runs."""
    import sys

    sys.path.insert(0, tests)
    from language_runs import VOCABULARY, bits

    found = {}
    for name, path in paths.items():
        options = {"overlap_rows": overlap_rows, "canonical_ranks": canonical_ranks}
        with accord.load(path, {"tp": comm}, **options) as engine:
            context, outputs = engine.create_context(), []
            ids = np.random.default_rng(3).integers(0, VOCABULARY, (16, 9))
            if name == "encoder":
                outputs += [bits(context.run(ids[:rows])[0]) for rows in (16, 1, 7)]
            else:
                context.create_cache(32)
                for begin, count in ((0, 101), (101, 1), (102, 30), (132, 12)):  # pieces of one sequence
                    at = np.arange(begin, begin + count)
                    rows = [(count, begin, list(range(16)))]
                    outputs.append(bits(context.run_sequences(rows, ids.flat[at], at, np.arange(count))[0]))
                several = [(20, 0, [16, 17]), (5, 0, [18]), (30, 0, [19, 20])]
                at = np.concatenate([np.arange(count) for count, _, _ in several])
                outputs.append(bits(context.run_sequences(several, ids.flat[at], at, np.arange(len(at)))[0]))
            found[name] = outputs
    return found


@pytest.mark.parametrize(("size", "canonical_ranks"), [(2, 0), (4, 0), (2, 4)])
def test_halves_are_bit_identical_to_the_whole(ranks, packages, size, canonical_ranks):
    given = [SUPPORT, packages]
    expected = ranks(size).run(runs_of_ranks, *given, 0, canonical_ranks)
    found = ranks(size).run(runs_of_ranks, *given, 16, canonical_ranks)
    assert all(one == expected[0] for one in expected + found)


def traces_of_ranks(comm, path, overlap_rows):
    """Returns the traces of a prompt of 64 tokens and of one of 15."""
    found = []
    with accord.load(path, {"tp": comm}, overlap_rows=overlap_rows) as engine:
        for count in (64, 15):
            context, at = engine.create_context(), np.arange(count)
            context.start_trace()
            context.run(at % 300, at, at)
            found.append(context.trace())
    return found


def test_only_long_prompts_are_split(ranks, packages):
    """Each sum of a long prompt is started twice and waited for twice, and its norm is computed twice."""

    def sums(text: str) -> int:
        events = json.loads(text)["traceEvents"]
        return sum(event.get("name", "").startswith("accord.all_reduce") for event in events) // 2

    layers, whole = SIZES["num_hidden_layers"], ranks(2).run(traces_of_ranks, packages["llama"], 0)[0]
    divided = ranks(2).run(traces_of_ranks, packages["llama"], 16)[0]
    assert sums(divided[1]) == sums(whole[1]) == sums(whole[0])
    assert sums(divided[0]) == sums(whole[0]) + 5 * 2 * layers


def test_a_negative_overlap_rows_is_rejected(packages):
    with pytest.raises(accord.InvalidArgument, match="overlap_rows is -1"):
        accord.load(packages["llama"], overlap_rows=-1)


def loads(comm, path):
    try:
        accord.load(path, {"tp": comm}, overlap_rows=16 * comm.rank)
    except accord.Mismatch:
        return "refused"


def test_ranks_must_agree(ranks, packages):
    assert ranks(2).run(loads, packages["llama"]) == ["refused", "refused"]
