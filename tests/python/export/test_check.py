"""A language model is exported only if an engine computes its rows as the model does. Otherwise it is rejected, and
the error names the module at fault."""

import math

import pytest

import accord

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tiers import mostly_slow  # noqa: E402
from whole_runs import greedy  # noqa: E402

VOCABULARY, CONTEXT = 160, 96
OF_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 64,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_position_embeddings": CONTEXT,
    "is_decoder": True,
    "init_std": 0.5,
    "pad_token_id": 1,
    "eos_token_id": 2,
}
OF_ROBERTA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": CONTEXT + 2,
    "is_decoder": True,
    "initializer_range": 0.3,
    "pad_token_id": 1,
}
# Their positions count rows, in learned or sinusoidal tables, or start after the padding id.
DECODERS = {
    **dict.fromkeys(("Bart", "Marian", "Blenderbot"), OF_BART),
    **dict.fromkeys(("Camembert", "XLMRobertaXL"), OF_ROBERTA),
}


@pytest.mark.parametrize("name", mostly_slow(DECODERS, "Bart", "Camembert"))
def test_decoding_with_custom_positions_matches_whole_runs(name, tmp_path):
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**DECODERS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    path = accord.export(model, path=tmp_path / "m.accord")
    made = model.state_dict().keys()
    # The export has left the model unchanged.
    assert made == getattr(transformers, f"{name}ForCausalLM")(config).state_dict().keys()
    with accord.load(path) as engine:
        language_model = accord.LanguageModel.create(engine)
        assert language_model.max_context == CONTEXT
        streams = [
            language_model.submit(prompt, max_new_tokens=7, stop_tokens=[]) for prompt in ([5, 6, 7, 8], [9] * 20)
        ]
        for prompt, stream in zip(([5, 6, 7, 8], [9] * 20), streams, strict=True):
            assert [event.token for event in stream if event.token is not None] == greedy(model, prompt, 7)


class Scaled(transformers.GPT2LMHeadModel):
    """A user's own class, with another name than the classes of transformers."""

    def forward(self, *arguments, **named):
        made = super().forward(*arguments, **named)
        made.logits = made.logits.tanh() * torch.linspace(-1, 1, VOCABULARY)
        return made


def test_a_subclass_of_a_language_model_is_a_language_model(tmp_path):
    torch.manual_seed(1)
    model = Scaled(transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY)).eval()
    with accord.load(accord.export(model, path=tmp_path / "m.accord")) as engine:
        language_model = accord.LanguageModel.create(engine)
        stream = language_model.submit([5, 6, 7], max_new_tokens=7, stop_tokens=[])
        assert [event.token for event in stream if event.token is not None] == greedy(model, [5, 6, 7], 7)


class Wrapped(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module):
        super().__init__()
        self.inner = inner


class RunningMean(Wrapped):
    def forward(self, x):
        return self.inner(x + 0.01 * x.cumsum(1) / torch.ones_like(x).cumsum(1))


class CausalConvolution(Wrapped):
    def __init__(self, inner):
        super().__init__(inner)
        self.convolution = torch.nn.Conv1d(64, 64, 3, padding=2, groups=64)

    def forward(self, x):
        return self.inner(self.convolution(x.mT)[..., : x.shape[1]].mT)


class DilatedConvolution(Wrapped):
    """Reads a row 16 rows earlier, which no short sequence has."""

    def __init__(self, inner):
        super().__init__(inner)
        self.convolution = torch.nn.Conv1d(64, 64, 3, padding="same", dilation=16)

    def forward(self, x):
        return self.inner(self.convolution(x.mT).mT)


class Delay(Wrapped):
    def forward(self, x):
        return self.inner(x + torch.cat([torch.zeros(1, 12, 64), x], 1)[:, : x.shape[1]])


class ConvolutionOfChannels(Wrapped):
    def __init__(self, inner):
        super().__init__(inner)
        self.pointwise, self.channels = torch.nn.Conv1d(64, 64, 1), torch.nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x):
        y = self.pointwise(x.mT).mT
        return self.inner(self.channels(y.transpose(0, 1)).transpose(0, 1))


class Mean(Wrapped):
    def forward(self, x):
        return self.inner(x + x.mean(1, keepdim=True))


class LogScaled(Wrapped):
    """Scales no row that a test of a few rows sees."""

    def forward(self, x):
        at = torch.arange(1, x.shape[1] + 1).float().clamp(min=512)
        return self.inner(x) * (at.log() / math.log(512))[None, :, None]


class Divided(Wrapped):
    def forward(self, x):
        return self.inner(x) / x.shape[1]


class Counted(Wrapped):
    def forward(self, position_ids):
        return self.inner(torch.arange(position_ids.shape[-1]))[None]


class ShortWhenExported(Wrapped):
    LAST = 50

    def forward(self, position_ids):
        return self.inner(position_ids.clamp(max=self.LAST) if torch.compiler.is_exporting() else position_ids)


class VeryShortWhenExported(ShortWhenExported):
    LAST = 3


ROWS = "makes what depends on other rows, or on how many there are"
OTHER = "the exported program gives other logits than the model, .*"
FAULTS = {
    **dict.fromkeys((RunningMean, CausalConvolution, DilatedConvolution, Delay, Mean, Divided), ("h.1.mlp.c_fc", ROWS)),
    LogScaled: ("h.1.attn.c_attn", ROWS),
    Counted: ("wpe", ROWS),
    VeryShortWhenExported: ("wpe", OTHER + "positions from 0; the first module that differs is"),
    ShortWhenExported: ("wpe", OTHER + f"positions from {CONTEXT - 8}; the first module that differs is"),
}


def gpt2(place: str | None = None, kind: type[Wrapped] | None = None) -> torch.nn.Module:
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": CONTEXT}
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    if place is not None:
        parent, _, name = place.rpartition(".")
        parent = model.transformer.get_submodule(parent)
        setattr(parent, name, kind(getattr(parent, name)))
    return model.eval()


@pytest.mark.parametrize(
    "kind",
    mostly_slow(FAULTS, CausalConvolution, LogScaled, Counted, VeryShortWhenExported),
    ids=lambda kind: kind.__name__,
)
def test_a_model_whose_rows_would_differ_is_rejected_with_its_module(kind, tmp_path):
    place, message = FAULTS[kind]
    with pytest.raises(accord.ExportError, match=message) as refused:
        accord.export(gpt2(place, kind), path=tmp_path / "m.accord")
    assert f'"transformer.{place}' in str(refused.value)
    assert "check=False" in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_the_check_can_be_skipped(tmp_path):
    model = gpt2("wpe", Counted)
    ids = torch.tensor([5, 6, 7, 8])
    with accord.load(accord.export(model, path=tmp_path / "m.accord", check=False)) as engine:
        given = torch.from_dlpack(engine.run(ids, torch.arange(4), torch.arange(4))[0]).clone()
    # A single whole prompt gives the right logits.
    torch.testing.assert_close(given, model(ids[None]).logits[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", mostly_slow([torch.bfloat16, torch.float16], torch.float16))
def test_rounding_is_not_an_error(dtype, tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 12, "vocab_size": VOCABULARY, "num_local_experts": 8, "initializer_range": 0.3}
    torch.manual_seed(1)
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes)).eval().to(dtype)
    accord.export(model, path=tmp_path / "m.accord")


def test_convolutions_of_single_rows_are_not_an_error(tmp_path):
    accord.export(gpt2("h.1.mlp.c_fc", ConvolutionOfChannels), path=tmp_path / "m.accord")


def dilated(**arguments):
    return transformers.masking_utils.create_causal_mask(
        **arguments, and_mask_function=lambda batch, head, at, before: (at - before) % 20 < 15
    )


def with_first_rows(**arguments):
    return transformers.masking_utils.create_sliding_window_causal_mask(
        **arguments, or_mask_function=lambda batch, head, at, before: (before < 4) & (before <= at)
    )


def of_no_order(**arguments):
    return transformers.masking_utils.create_causal_mask(
        **arguments, or_mask_function=lambda batch, head, at, before: before >= 0
    )


# Llama's layers pass no window; Mistral's pass one of 16.
MASKS = {
    "gaps": ("Llama", dilated, r"hides token 0 from token 15"),
    "sinks": ("Mistral", with_first_rows, "shows token 0 to token 16"),
    "no order": ("Llama", of_no_order, "shows token 1 to token 0"),
}


@pytest.mark.parametrize("name", mostly_slow(MASKS, "gaps", "no order"))
def test_a_mask_that_engines_do_not_support_is_rejected(name, tmp_path, monkeypatch):
    family, make, message = MASKS[name]
    make = getattr(transformers.masking_utils, make) if isinstance(make, str) else make
    model = with_mask(family, make, monkeypatch)
    with pytest.raises(accord.ExportError, match=f'in module "model.layers.0.self_attn" the mask {message}') as refused:
        accord.export(model, path=tmp_path / "m.accord")
    assert "Export the model with example_inputs (whole sequences)" in str(refused.value)


@pytest.mark.parametrize(
    ("family", "make"),
    [
        ("Llama", "create_sliding_window_causal_mask"),
        ("Mistral", "create_causal_mask"),
        ("Llama", "create_chunked_causal_mask"),
    ],
    ids=["a window that no layer has", "a layer's window that the mask lacks", "chunks"],
)
def test_masks_decide_what_a_token_sees(family, make, tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = with_mask(family, getattr(transformers.masking_utils, make), monkeypatch)
    ids = torch.arange(CONTEXT) % 32
    with accord.load(accord.export(model, path=tmp_path / "m.accord")) as engine:
        given = torch.from_dlpack(engine.run(ids, torch.arange(CONTEXT), torch.arange(CONTEXT))[0]).clone()
    torch.testing.assert_close(given, model(ids[None]).logits[0], rtol=1e-4, atol=1e-5)


def with_mask(family, make, monkeypatch):
    """Returns a small model whose masks `make` makes."""
    import transformers.models.llama.modeling_llama as llama
    import transformers.models.mistral.modeling_mistral as mistral

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 1, "vocab_size": 32, "max_position_embeddings": CONTEXT, "sliding_window": 16}
    config = getattr(transformers, f"{family}Config")(**sizes, attention_chunk_size=16)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    monkeypatch.setattr(llama, "create_causal_mask", make)
    monkeypatch.setattr(mistral, "create_sliding_window_causal_mask", make)
    return model
