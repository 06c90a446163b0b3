"""A small Llama that has learned a few sentences, with a tokenizer and a chat template, as transformers sees it and
as an engine package.

It has learned them so that it answers in whole characters, some of which consist of several tokens, and ends its
answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import accord

tokenizers = pytest.importorskip("tokenizers")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Ça va? Les élèves étudient à Köln.",
    "日本語の文章です。",
    "One 😀 two 👍🏽 three",
]
CONVERSATIONS = [
    [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
    for text, answer in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTEXT = 256


@dataclass(frozen=True)
class TextModel:
    path: Path  # the package
    model: torch.nn.Module
    tokenizer: transformers.PreTrainedTokenizerFast

    def continued(self, prompt: str | list[dict[str, str]], count: int) -> str:
        """Returns the text that transformers generates after a text or a conversation."""
        return self.tokenizer.decode(self.tokens(prompt, count), skip_special_tokens=True)

    def tokens(self, prompt: str | list[dict[str, str]], count: int) -> list[int]:
        text = prompt
        if not isinstance(prompt, str):
            text = self.tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        ids = self.tokenizer(text, return_tensors="pt", add_special_tokens=isinstance(prompt, str)).input_ids
        mask = torch.ones_like(ids)
        with torch.no_grad():
            made = self.model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0)
        return made[0, ids.shape[1] :].tolist()


def make_tokenizer(folder: Path, texts: list[str], template: str) -> transformers.PreTrainedTokenizerFast:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    special = ["<s>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    bpe.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, bos_token="<s>", eos_token="<|im_end|>"
    )


def _learn(
    model: torch.nn.Module, tokenizer: transformers.PreTrainedTokenizerFast, lessons: list[str], rounds: int
) -> None:
    """Trains the model until it knows the lessons by heart."""
    batches = [tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids for text in lessons]
    torch.set_num_threads(1)  # the model is small, and tests share the processors
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(rounds):
        loss = sum(model(input_ids=ids, labels=ids).loss for ids in batches)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def make_text_model(folder: Path) -> TextModel:
    """Creates the model and exports it to a package in `folder`."""
    tokenizer = make_tokenizer(folder, TEXTS, TEMPLATE)
    lessons = [tokenizer.bos_token + text + tokenizer.eos_token for text in TEXTS]
    lessons += [tokenizer.apply_chat_template(conversation, tokenize=False) for conversation in CONVERSATIONS]
    return trained_model(folder, tokenizer, lessons)


def trained_model(
    folder: Path, tokenizer: transformers.PreTrainedTokenizerFast, lessons: list[str], rounds: int = 60
) -> TextModel:
    """Creates a model that knows the lessons by heart, and exports it with the tokenizer in `folder`."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    _learn(model, tokenizer, lessons, rounds)
    model.eval()
    path = accord.export(model, path=folder / "model.accord", sharding="auto", tokenizer=folder)
    return TextModel(path, model, tokenizer)
