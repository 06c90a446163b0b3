"""accord.moe.deep_ep: DeepEP's calls compared with their definitions, and Megatron's dispatcher, which uses them."""
# ruff: noqa: F821 (names that ranks.py provides)

import importlib.util

import pytest
from accord_command import SUPPORT
from ranks import TORCH_PROGRAM


def exchange(group):
    """Compares dispatch and combine of a Buffer, first without and then with a handle, with a gather of everything."""
    from accord.moe import deep_ep

    rank, size = dist.get_rank(), dist.get_world_size()
    experts, top_k, hidden, local = 4 * size, 3, 40, 4
    counts = [5, 0, 9, 4][:size]
    all_idx, all_x, all_w = [], [], []
    for r in range(size):
        generator = torch.Generator().manual_seed(r)
        choices = [torch.randperm(experts, generator=generator)[:top_k] for _ in range(counts[r])]
        idx = torch.stack(choices) if choices else torch.empty(0, top_k, dtype=torch.int64)
        idx[torch.rand(idx.shape, generator=generator) < 0.2] = -1
        all_idx.append(idx)
        all_x.append(torch.randint(-8, 8, (counts[r], hidden), generator=generator).to(torch.bfloat16))
        all_w.append(torch.rand(counts[r], top_k, generator=generator))
    idx, x, w = all_idx[rank], all_x[rank], all_w[rank]

    buffer = deep_ep.Buffer(group, int(1e9), 0, low_latency_mode=False, num_qps_per_rank=12)
    per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(idx, experts)
    assert per_rdma_rank is None
    for e in range(experts):
        assert per_expert[e] == (idx == e).sum()
    for r in range(size):
        is_sent = ((idx // local == r) & (idx >= 0)).any(1)
        assert torch.equal(in_rank[:, r], is_sent)
        assert per_rank[r] == is_sent.sum()
    recv_x, recv_idx, recv_w, listed, handle, event = buffer.dispatch(
        x,
        topk_idx=idx,
        topk_weights=w,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        expert_alignment=4,
        previous_event=event,
    )
    event.current_stream_wait()
    mine = [
        (s, t)
        for s in range(size)
        for t in range(counts[s])
        if ((all_idx[s][t] // local == rank) & (all_idx[s][t] >= 0)).any()
    ]
    assert recv_x.dtype == torch.bfloat16
    assert len(recv_x) == len(mine)
    expected_counts = [0] * local
    for row, (s, t) in enumerate(mine):
        assert torch.equal(recv_x[row], all_x[s][t])
        for k in range(top_k):
            e = int(all_idx[s][t][k])
            here = e >= 0 and e // local == rank
            assert recv_idx[row, k] == (e % local if here else -1)
            assert recv_w[row, k] == (all_w[s][t][k] if here else 0)
            if here:
                expected_counts[e % local] += 1
    assert listed == [-(-count // 4) * 4 for count in expected_counts]

    # Each rank returns the rows that it received, so the sum counts a token's ranks. Weights return to their origin.
    combined, combined_w, _ = buffer.combine(recv_x, handle, topk_weights=recv_w)
    assert torch.equal(combined, x * in_rank.sum(1, keepdim=True))
    assert torch.equal(combined_w, torch.where(idx >= 0, w, 0))
    again = buffer.dispatch(x * 2, handle=handle)
    assert torch.equal(again[0], recv_x * 2)
    assert again[1:5] == (None, None, None, None)
    worst = sum(counts) + 3
    padded, padded_idx, _, empty, _, _ = buffer.dispatch(
        x,
        topk_idx=idx,
        topk_weights=w,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        num_worst_tokens=worst,
    )
    assert padded.shape == (worst, hidden)
    assert empty == []
    assert torch.equal(padded[: len(mine)], recv_x)
    assert (padded_idx[len(mine) :] == -1).all()
    # Rows in 8 bits with their scales.
    eight, scales = x.to(torch.float8_e4m3fn), torch.rand(counts[rank], 1)
    (recv_eight, recv_scales), *_ = buffer.dispatch(
        (eight, scales),
        topk_idx=idx,
        num_tokens_per_rank=per_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
    )
    assert torch.equal(recv_eight.float(), recv_x.to(torch.float8_e4m3fn).float())
    assert recv_scales.shape == (len(mine), 1)
    # Without ids, the layout says how many rows each expert receives.
    plain = buffer.dispatch(
        x, num_tokens_per_rank=per_rank, is_token_in_rank=in_rank, num_tokens_per_expert=per_expert, expert_alignment=4
    )
    assert torch.equal(plain[0], recv_x)
    assert plain[1:4] == (None, None, listed)
    buffer.destroy()


@pytest.mark.parametrize(("size", "backend"), [(1, "accord"), (2, "gloo"), (4, "accord")])
def test_rows_are_sent_once_to_each_rank_and_returned(torch_ranks, size, backend):
    torch_ranks(size).run(exchange, backend=backend)


def low_latency(group):
    from accord.moe import deep_ep

    rank, size = dist.get_rank(), dist.get_world_size()
    experts, top_k, hidden, most = 3 * size, 2, 200, 6
    tokens = 6 - 2 * rank
    generator = torch.Generator().manual_seed(rank)
    idx = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(tokens)])
    idx[0, 1] = -1
    weights = torch.rand(tokens, top_k, generator=generator)
    x = torch.randn(tokens, hidden, generator=generator).to(torch.bfloat16)
    buffer = deep_ep.Buffer(group, 0, buffer_bytes := 1 << 20, low_latency_mode=True)
    assert buffer.num_rdma_bytes == buffer_bytes
    stats = torch.zeros(3, dtype=torch.int32)
    for use_fp8 in (False, True):
        packed, count, handle, _, hook = buffer.low_latency_dispatch(
            x, idx, most, experts, cumulative_local_expert_recv_stats=stats, use_fp8=use_fp8, return_recv_hook=True
        )
        hook()
        if use_fp8:
            eight, scales = packed
            assert eight.dtype == torch.float8_e4m3fn
            assert scales.shape == (3, size * most, 2)
            by_block = scales.repeat_interleave(128, -1)[..., :hidden]
            packed = (eight.float() * by_block).to(torch.bfloat16)
        assert packed.shape == (3, size * most, hidden)
        for expert in range(3):
            assert (packed[expert, int(count[expert]) :] == 0).all()
        # Expert e doubles its rows and adds e.
        made = packed.float() * 2 + (torch.arange(3).view(3, 1, 1) + 3 * rank)
        out = torch.empty_like(x)
        combined, _, hook = buffer.low_latency_combine(made.to(torch.bfloat16), idx, weights, handle, out=out)
        hook()
        assert combined is out
        chosen = torch.where(idx >= 0, weights, 0).unsqueeze(-1)
        expected = (chosen * (x.float() * 2).unsqueeze(1) + chosen * idx.unsqueeze(-1)).sum(1)
        tolerance = 0.15 if use_fp8 else 0.03
        assert (combined.float() - expected).abs().max() < tolerance * (1 + expected.abs().max())
    return stats.tolist()


def test_low_latency_calls_return_rows_by_expert(torch_ranks):
    stats = torch_ranks(2).run(low_latency)
    assert sum(map(sum, stats)) == 2 * (6 * 2 - 1 + 4 * 2 - 1)


def make_invalid_calls(group):
    import accord
    from accord.moe import deep_ep

    buffer = deep_ep.Buffer(group)
    errors = []
    for call in (
        lambda: buffer.get_dispatch_layout(torch.zeros(1, 1, dtype=torch.int64), 5),
        lambda: buffer.dispatch(torch.zeros(1, 4)),
        lambda: buffer.dispatch(torch.zeros(1, 4), handle=(None, None), topk_idx=torch.zeros(1, 1)),
    ):
        try:
            call()
        except accord.InvalidArgument as error:
            errors.append(str(error))
    return errors


def too_many_on_one_rank(group):
    """Returns the errors that each rank gets when rank 0 has too many tokens. A group with room for them exists from
    an earlier call."""
    from accord.moe import deep_ep

    buffer, errors = deep_ep.Buffer(group), []
    many, few = torch.zeros(40, 1, dtype=torch.int64), torch.zeros(3, 1, dtype=torch.int64)
    buffer.low_latency_dispatch(torch.randn(40, 8), many, 64, 4, use_fp8=False)
    idx = many if dist.get_rank() == 0 else few
    layout = buffer.get_dispatch_layout(idx, 4)
    given = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}
    for call in (
        lambda: buffer.low_latency_dispatch(torch.randn(len(idx), 8), idx, 16, 4, use_fp8=False),
        lambda: buffer.dispatch(torch.randn(len(idx), 8), **given, topk_idx=idx, num_worst_tokens=2),
    ):
        try:
            call()
        except accord.InvalidArgument as error:
            errors.append(str(error))
    return errors


def test_too_many_tokens_on_one_rank_are_an_error_on_all(torch_ranks):
    for errors in torch_ranks(2).run(too_many_on_one_rank):
        assert errors == [
            "rank 0 has 40 tokens, num_max_dispatch_tokens_per_rank is 16",
            "num_worst_tokens is 2, but up to 43 rows arrive on a rank",
        ]


def test_invalid_arguments_are_rejected(torch_ranks):
    for errors in torch_ranks(2).run(make_invalid_calls):
        assert errors == [
            "5 experts cannot be divided evenly among 2 ranks",
            "dispatch requires the results of get_dispatch_layout, or the handle of an earlier dispatch",
            "dispatch with a handle takes neither topk_idx nor topk_weights: its layout is known",
        ]


def through_megatron(group, folder):
    """Compares an unmodified MoE layer of megatron-core with the DeepEP dispatcher and with its all-gather
    dispatcher: outputs and gradients."""
    from accord.moe import deep_ep

    deep_ep.install()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    import megatron_runs
    from megatron.core.transformer.moe import fused_a2a

    expected, found = megatron_runs.experts("allgather", 2), megatron_runs.experts("flex", 2)
    assert type(fused_a2a._buffer) is deep_ep.Buffer
    assert all(value.abs().max() > 1e-3 for value in expected)
    return max((a - b).abs().max().item() for a, b in zip(expected, found, strict=True))


@pytest.mark.skipif(importlib.util.find_spec("megatron") is None, reason="needs the package megatron-core")
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["accord", "gloo"])
def test_the_flex_dispatcher_of_megatron_runs_over_it(fresh_ranks, backend):
    ranks = fresh_ranks(2, program=TORCH_PROGRAM)
    assert max(ranks.run(through_megatron, SUPPORT, backend=backend, deadline=120)) < 1e-6
