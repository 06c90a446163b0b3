"""Activation recompute around experts: the gradients are bit-identical to those without it, in the orders of
pipelines and with each library's method."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util

import pytest
from accord_command import SUPPORT
from ranks import TORCH_PROGRAM


def over_microbatches(group):
    """Compares four microbatches through two layers, each recomputed in its backward pass, with the same without
    recompute."""
    import functools

    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    import accord.torch
    from accord import moe

    layers, microbatches, rank = 2, 4, dist.get_rank()
    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=4, top_k=2, hidden=8, max_tokens_per_rank=6, alignment=2
    )

    class Layer(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            torch.manual_seed(number)
            self.router = torch.nn.Linear(8, 4).bfloat16()
            self.inner = torch.nn.Linear(8, 8).bfloat16()

        def forward(self, x, handle):
            top = torch.softmax(self.router(x).float(), -1).topk(2, -1)
            experts.prepare(handle, top.indices)
            rows, weights = moe.dispatch(experts, handle, x, top.values)
            made = torch.tanh(self.inner(rows)) * weights[:, None].bfloat16()
            return x + moe.combine(experts, handle, made)

    stack = [Layer(number) for number in range(layers)]
    generator = torch.Generator().manual_seed(rank)
    # Ranks have different numbers of tokens, and a microbatch of this rank may have none.
    given = [torch.randn((m + 2 * rank) % 5, 8, generator=generator).bfloat16() for m in range(microbatches)]

    def gradients(run, order, handles):
        """order: 0, 1, ... where the forward passes begin, and ~0, ~1, ... for their backward passes."""
        for layer in stack:
            layer.zero_grad()
        inputs = [x.clone().requires_grad_() for x in given]
        outputs = {}
        for step in order:
            if step < 0:
                outputs.pop(~step).float().square().sum().backward()
                continue
            x = inputs[step]
            for number, layer in enumerate(stack):
                x = run(layer, x, handles[number][step])
            outputs[step] = x
        return [x.grad for x in inputs] + [p.grad for layer in stack for p in layer.parameters()]

    def saves_all(_, op, *arguments, **keywords):
        return CheckpointPolicy.MUST_SAVE

    def saves_products(_, op, *arguments, **keywords):
        is_product = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    def wrapped(layer, x, handle):  # torchtitan's method
        return checkpoint_wrapper(layer, checkpoint_impl=CheckpointImpl.NO_REENTRANT)(x, handle)

    def selective(policy):
        contexts = functools.partial(create_selective_checkpoint_contexts, policy)
        return lambda layer, *arguments: checkpoint(layer, *arguments, use_reentrant=False, context_fn=contexts)

    ways = {
        "reentrant": lambda layer, *arguments: checkpoint(layer, *arguments, use_reentrant=True),
        "other": lambda layer, *arguments: checkpoint(layer, *arguments, use_reentrant=False),
        "wrapper": wrapped,
        "selective": selective(saves_products),
        "all saved": selective(saves_all),
    }
    own = [[experts.handle() for _ in range(microbatches)] for _ in range(layers)]
    of_layer = [[experts.handle()] * microbatches for _ in range(layers)]
    one = [[experts.handle()] * microbatches] * layers
    orders = {
        "one after the other": [0, ~0, 1, ~1, 2, ~2, 3, ~3],
        "1F1B": [0, 1, ~0, 2, ~1, 3, ~2, ~3],
        "GPipe": [0, 1, 2, 3, ~3, ~2, ~1, ~0],
    }
    compared = 0
    for order in orders.values():
        expected = gradients(lambda layer, *arguments: layer(*arguments), order, own)
        assert any(grad.abs().max() > 1e-3 for grad in expected if grad.numel())
        for way, run in ways.items():
            for handles in (own, of_layer, one):
                found = gradients(run, order, handles)
                compared += 1
                for a, b in zip(expected, found, strict=True):
                    assert torch.equal(a, b), (way, order, handles is own)
    return compared


def test_gradients_match_those_without_recompute(torch_ranks):
    assert torch_ranks(2).run(over_microbatches, deadline=120) == [45, 45]


def maps_by_name(group):
    """Returns the generation and fingerprint of maps as they change, which must agree on all ranks."""
    import accord.torch
    from accord import moe

    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=4, top_k=1, hidden=2, max_tokens_per_rank=3, dtype="float32"
    )
    handle, seen = experts.handle(), []
    first = torch.tensor([[0], [3]]) if dist.get_rank() == 0 else torch.tensor([[1]])
    # Only rank 1's ids change: to other ids, to none, to an id out of range, and to tokens without a choice.
    for changed in ([[1]], [[1]], [[2]], [[1]], [[-1]], [[9]], [[1], [-1]], [[1]]):
        experts.prepare(handle, first if dist.get_rank() == 0 else torch.tensor(changed))
        seen.append((handle.generation, handle.fingerprint))
    try:
        experts.prepare(handle, torch.zeros(4 if dist.get_rank() == 1 else 1, 1, dtype=torch.int64))
    except accord.InvalidArgument:
        experts.prepare(handle, first)
    seen.append((handle.generation, handle.fingerprint))
    return seen


def test_preparing_a_map_again_for_equal_ids_on_all_ranks_gives_the_same_map(torch_ranks):
    first, second = torch_ranks(2).run(maps_by_name)
    assert first == second
    generations, fingerprints = zip(*first, strict=True)
    assert generations == (1, 1, 2, 3, 4, 4, 5, 6, 6)
    names = {fingerprint: chr(ord("a") + i) for i, fingerprint in enumerate(dict.fromkeys(fingerprints))}
    assert "".join(names[fingerprint] for fingerprint in fingerprints) == "aabaccdaa"


def other_ids(group):
    """Runs backward passes after rank 1 has prepared the handle for other ids, and again with the ids of the forward
    pass."""
    import accord.torch
    from accord import moe

    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=2, top_k=1, hidden=2, max_tokens_per_rank=2, dtype="float32"
    )
    handle, ids = experts.handle(), torch.tensor([[0], [1]])
    x = torch.ones(2, 2, requires_grad=True)
    experts.prepare(handle, ids)
    rows, _ = moe.dispatch(experts, handle, x)
    calls = {"dispatch": rows.sum(), "combine": moe.combine(experts, handle, rows.detach().requires_grad_()).sum()}
    experts.prepare(handle, ids.flip(0) if dist.get_rank() == 1 else ids)
    texts = []
    for late in calls.values():
        try:
            late.backward(retain_graph=True)
        except accord.WrongState as error:
            texts.append(str(error))
    experts.prepare(handle, ids)
    for late in calls.values():
        late.backward()
    assert torch.equal(x.grad, torch.ones(2, 2))
    return texts


def test_a_handle_prepared_for_other_ids_is_rejected_on_all_ranks_until_its_map_is_restored(torch_ranks):
    for texts in torch_ranks(2).run(other_ids):
        assert len(texts) == 2
        assert all("was prepared again for other ids after the forward" in text for text in texts)


def by_megatron(group, folder):
    """Returns the differences that megatron-core's recompute makes: with a MoE layer through accord's DeepEP and
    through its all-gather, and around accord's calls."""
    import accord.torch
    from accord import moe
    from accord.moe import deep_ep

    deep_ep.install()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import megatron_runs

    def difference(expected, found):
        assert all(grad.abs().max() > 1e-3 for grad in expected)
        return max((a - b).abs().max().item() for a, b in zip(expected, found, strict=True))

    found = {}
    for dispatcher in ("flex", "allgather"):
        expected = megatron_runs.experts(dispatcher, 2)
        for way in ("moe", "full"):
            found[dispatcher, way] = difference(expected, megatron_runs.experts(dispatcher, 2, recompute=way))
    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=4, top_k=2, hidden=8, max_tokens_per_rank=5, dtype="float32"
    )
    plain, full, plain_sin, without_output = megatron_runs.recomputed_calls(experts, moe.dispatch, moe.combine)
    found["calls", "full"] = difference(plain, full)
    found["calls", "without output"] = difference(plain_sin, without_output)
    return found


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the package megatron-core")
def test_megatron_cores_recompute_gives_the_same_gradients(fresh_ranks):
    ranks = fresh_ranks(2, program=TORCH_PROGRAM)
    for found in ranks.run(by_megatron, SUPPORT, deadline=120):
        assert len(found) == 6 and set(found.values()) == {0}, found
