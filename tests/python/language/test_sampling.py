"""Sampling keeps the tokens that transformers' logits processors keep, with the same probabilities."""

import math
import random

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import accord
from accord import _core


def random_options(rng: random.Random, vocabulary: int) -> dict:
    """Returns random options of _sample, each present or absent."""
    options: dict = {"temperature": rng.choice([0.3, 0.7, 1.0, 1.6])}
    if rng.random() < 0.5:
        options["top_k"] = rng.choice([1, 5, 50, vocabulary, 2 * vocabulary])
    if rng.random() < 0.5:
        options["top_p"] = rng.choice([0.0, 0.3, 0.9, 0.99])
    if rng.random() < 0.4:
        options["min_p"] = rng.choice([0.02, 0.2, 1.0])
    if rng.random() < 0.4:
        options["repetition_penalty"] = rng.choice([0.7, 1.3, 2.0])
    if rng.random() < 0.3:
        options["biases"] = {rng.randrange(vocabulary): 5.0}
    return options


def processors_for(options: dict) -> LogitsProcessorList:
    """Returns the processors that transformers' generate() creates for the same options, in its order."""
    processors = LogitsProcessorList()
    if "biases" in options:
        processors.append(SequenceBiasLogitsProcessor([[[token], bias] for token, bias in options["biases"].items()]))
    if "repetition_penalty" in options:
        processors.append(RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    processors.append(TemperatureLogitsWarper(options["temperature"]))
    if "top_k" in options:
        processors.append(TopKLogitsWarper(options["top_k"]))
    if "top_p" in options:
        processors.append(TopPLogitsWarper(options["top_p"]))
    if "min_p" in options:
        processors.append(MinPLogitsWarper(options["min_p"]))
    return processors


@pytest.mark.parametrize("seed", range(60))
def test_the_kept_tokens_match_transformers(seed):
    rng = random.Random(seed)
    vocabulary = rng.choice([32, 1000, 5000])
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocabulary, generator=generator) * rng.choice([0.5, 2.0, 6.0])
    prompt = [rng.randrange(vocabulary) for _ in range(8)]
    generated = [rng.randrange(vocabulary) for _ in range(5)]
    options = random_options(rng, vocabulary)
    scores = processors_for(options)(torch.tensor([prompt + generated]), logits[None].clone())[0]
    expected = torch.softmax(scores.double(), 0)
    token, kept = _core._sample(logits.tolist(), prompt, generated, seed=seed, **options)
    found = torch.zeros(vocabulary, dtype=torch.float64)
    for kept_token, probability in kept.items():
        found[kept_token] = probability
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    # Tokens less than half a billionth as likely as the best one are not kept. No other token is missing.
    missing = (expected > 0) & (found == 0)
    assert expected[missing].max().item() < 1e-9 if missing.any() else True
    assert ((found > 0) & (expected == 0)).sum() == 0
    assert token in kept


def test_the_best_token_matches_greedy_decoding_of_transformers():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4000, generator=generator)
    assert _core._sample(logits.tolist(), [1], []) == (logits.argmax().item(), {logits.argmax().item(): 1.0})


def test_invalid_options_are_rejected():
    with pytest.raises(accord.InvalidArgument, match="temperature=nan"):
        _core._sample([0.0, 1.0], [0], [], temperature=math.nan)
    with pytest.raises(accord.InvalidArgument, match="token 2"):
        _core._sample([0.0, 1.0], [0], [], biases={2: 1.0})
    with pytest.raises(accord.Corrupt, match="token 1 is nan"):
        _core._sample([0.0, math.nan], [0], [])
