"""Masks in Python: transformers with the same restriction generates the same tokens."""

import gc
import threading
import weakref

import pytest
from text_model import CONTEXT, torch, transformers

import accord

PROMPT = [0, 40, 41, 42]


@pytest.fixture(scope="module")
def model(text_model):
    with accord.load(text_model.path) as engine:
        made = accord.LanguageModel.create(engine, cache_tokens=4 * CONTEXT)
        yield made
        made.stop()


def bits(tokens) -> bytes:
    """Returns the mask of these tokens, without words that are zero at its end."""
    made = bytearray(max(tokens, default=-1) // 8 + 1)
    for token in tokens:
        made[token // 8] |= 1 << token % 8
    return bytes(made)


def allowed_after(generated) -> set[int]:
    last = generated[-1] if generated else 5
    return {token for token in range(3, 300) if (token * 7 + last) % 5 < 2}


class _Restriction(transformers.LogitsProcessor):
    def __call__(self, ids, scores):
        allowed = torch.tensor(sorted(allowed_after(ids[0, len(PROMPT) :].tolist())))
        return torch.full_like(scores, -torch.inf).index_copy(1, allowed, scores[:, allowed])


def tokens_of(events) -> list[int]:
    return [event.token for event in events if event.token is not None]


def test_tokens_are_the_best_ones_that_the_mask_allows(model, text_model):
    threads = set()

    def mask(sample, generated):
        assert (sample, generated.format, generated.readonly) == (0, "i", True)
        threads.add(threading.get_ident())
        return bits(allowed_after(generated))

    made = tokens_of(model.submit(PROMPT, mask=mask, max_new_tokens=40, stop_tokens=[]))
    with torch.no_grad():
        expected = text_model.model.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.int64),
            max_new_tokens=40,
            do_sample=False,
            pad_token_id=0,
            logits_processor=[_Restriction()],
        )
    assert made == expected[0, len(PROMPT) :].tolist()
    assert made != tokens_of(model.submit(PROMPT, max_new_tokens=40, stop_tokens=[]))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_samples_have_their_own_tokens_and_resumed_ones_continue(model):
    seen = {}

    def mask(sample, generated):
        before = seen.setdefault(sample, [])
        assert list(generated[: len(before)]) == before
        seen[sample] = list(generated)
        return bits(allowed_after(generated))

    options = {"temperature": 1.5, "seed": 4, "samples": 3, "max_new_tokens": 16, "stop_tokens": []}
    made = {0: [], 1: [], 2: []}
    for event in model.submit(PROMPT, mask=mask, **options):
        made[event.sample].append(event.token)
    assert len(set(map(tuple, made.values()))) == 3
    for tokens in made.values():
        assert all(token in allowed_after(tokens[:i]) for i, token in enumerate(tokens))
    seen.clear()
    options |= {"samples": 1, "first_sample": 2, "generated": 6, "max_new_tokens": 10}
    assert tokens_of(model.submit(PROMPT + made[2][:6], mask=mask, **options)) == made[2][6:]
    assert list(seen) == [2]


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (lambda sample, generated: 1 // 0, "the mask failed: ZeroDivisionError"),
        (lambda sample, generated: [1], "the mask failed: it returned a list, not bytes"),
        (lambda sample: b"", "the mask failed: TypeError"),
        (lambda sample, generated: b"", "no token is allowed"),
    ],
)
def test_a_mask_that_fails_ends_the_sample_with_the_reason(model, mask, reason):
    (event,) = model.submit(PROMPT, mask=mask, max_new_tokens=5)
    assert event.finish == "error"
    assert reason in str(event.error)


def test_a_mask_must_be_callable_and_none_is_no_mask(model):
    with pytest.raises(TypeError, match="mask: expected a callable or None, got 3"):
        model.submit(PROMPT, mask=3)
    options = {"max_new_tokens": 8, "stop_tokens": []}
    assert tokens_of(model.submit(PROMPT, mask=None, **options)) == tokens_of(model.submit(PROMPT, **options))


def test_masks_are_released_after_their_request(model):
    class Mask:
        def __call__(self, sample, generated):
            return b"\xff" * 40

    mask = Mask()
    gone = threading.Event()
    weakref.finalize(mask, gone.set)
    list(model.submit(PROMPT, mask=mask, max_new_tokens=4))
    del mask
    gc.collect()
    assert gone.wait(30)
