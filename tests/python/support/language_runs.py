"""Sequences that an engine's context continues in batches of all kinds. Runs in the test process and on ranks, which
have no torch."""

from __future__ import annotations

import ctypes

import numpy as np

import accord

VOCABULARY = 320
LENGTHS = (70, 17, 33)
BLOCKS, BLOCK_TOKENS = 64, 16


def make_ids(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count)


class Batches:
    """Runs sequences through one context. Each sequence has its own cache blocks, in random order."""

    def __init__(self, engine: accord.Engine, dtype: str) -> None:
        self.context = engine.create_context()
        self.context.create_cache(BLOCKS, block_tokens=BLOCK_TOKENS, dtype=dtype)
        self.sequences = [make_ids(length, length) for length in LENGTHS]
        free = list(np.random.default_rng(0).permutation(BLOCKS))
        self.blocks = [[int(free.pop()) for _ in range(-(-length // BLOCK_TOKENS))] for length in LENGTHS]
        self.logits: list[list[np.ndarray]] = [[] for _ in LENGTHS]

    def step(self, *parts: tuple[int, int]) -> None:
        """Computes the next `count` tokens of sequence `index`, for each part (index, count)."""
        rows, ids, positions = [], [], []
        for index, count in parts:
            done = sum(map(len, self.logits[index]))
            rows.append((count, done, self.blocks[index]))
            ids.append(self.sequences[index][done : done + count])
            positions.append(np.arange(done, done + count))
        tokens = np.concatenate(ids)
        given = self.context.run_sequences(rows, tokens, np.concatenate(positions), np.arange(len(tokens)))
        ends = np.cumsum([count for _, count in parts])[:-1]
        for (index, _), some in zip(parts, np.split(np.array(given[0]), ends), strict=True):
            self.logits[index].append(some)


def continued(engine: accord.Engine, dtype: str = "float32") -> list[np.ndarray]:
    """Returns the logits of the sequences, computed in pieces and in batches of all kinds."""
    batches = Batches(engine, dtype)
    batches.step((0, 10), (1, 5))
    batches.step((2, 33), (0, 1), (1, 1))
    for _ in range(11):
        batches.step((0, 1), (1, 1))
    batches.step((0, 48))
    return [np.concatenate(pieces) for pieces in batches.logits]


PROMPTS = [make_ids(count, count).tolist() for count in (5, 40, 17, 100)]


def answers(model: accord.LanguageModel, **options) -> list[list[int]]:
    """Submits all prompts at once and returns the tokens generated for each."""
    streams = [model.submit(prompt, max_new_tokens=12, **options) for prompt in PROMPTS]
    return [[event.token for event in stream if event.token is not None] for stream in streams]


def bits(output) -> bytes:
    """Returns the bytes of an engine's output of any dtype, including dtypes that NumPy lacks."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = output.__dlpack__()
    data = ctypes.cast(get_pointer(capsule, b"dltensor"), ctypes.POINTER(ctypes.c_void_p))[0]
    return ctypes.string_at(data, int(np.prod(output.shape)) * (2 if "16" in output.dtype else 4))


def bits_of_logits(engine: accord.Engine) -> bytes:
    """Returns the logits of a sequence as bytes. Its tokens arrive in two pieces and then one by one: prefill and
    decoding."""
    context = engine.create_context()
    context.create_cache(BLOCKS, block_tokens=BLOCK_TOKENS)
    ids, found, begin = make_ids(24), b"", 0
    for count in (13, 8, 1, 1, 1):
        at = np.arange(begin, begin + count)
        found += bits(context.run_sequences([(count, begin, [2, 0])], ids[at], at, np.arange(count))[0])
        begin += count
    return found


def logits_of_steps(engine: accord.Engine, cache: str = "float32") -> list[tuple[str, bytes]]:
    """Returns (dtype, bytes) of the logits of a prompt and of each token that follows it, in the model's dtype."""
    context = engine.create_context()
    context.create_cache(8, block_tokens=BLOCK_TOKENS, dtype=cache)
    ids, begin, logits = make_ids(24), 0, []
    for count in (19, 1, 1, 1, 1, 1):
        at = np.arange(begin, begin + count)
        output = context.run_sequences([(count, begin, [2, 0])], ids[at], at, np.arange(count))[0]
        logits.append((output.dtype, bits(output)))
        begin += count
    return logits


STEPS = 64


def decoded(engine: accord.Engine) -> tuple[np.ndarray, np.ndarray]:
    """Computes a prompt, then STEPS greedy tokens one at a time. Returns all ids, and the logits of all but the last
    id."""
    context = engine.create_context()
    context.create_cache(8, block_tokens=BLOCK_TOKENS)
    blocks = [5, 0, 7, 2, 6, 1, 3, 4]
    ids, logits = make_ids(17), []
    for _ in range(STEPS + 1):
        done = sum(map(len, logits))
        rows = np.arange(done, len(ids))
        given = context.run_sequences([(len(rows), done, blocks)], ids[done:], rows, rows - done)
        logits.append(np.array(given[0]))
        ids = np.append(ids, logits[-1][-1].argmax())
    return ids, np.concatenate(logits)


def decoded_at_each_size(comm, paths: list[str]) -> list[dict[int, tuple[np.ndarray, np.ndarray]]]:
    """Returns the results of decoded() for each package, on groups of 1, 2 and 4 of the 4 ranks."""
    groups = {size: comm.split(comm.rank // size) for size in (1, 2, 4)}
    results = []
    for path in paths:
        results.append({})
        for size, group in groups.items():
            with accord.load(path, {"tp": group}) as engine:
                results[-1][size] = decoded(engine)
    return results
