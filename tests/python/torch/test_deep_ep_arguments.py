"""The arguments of DeepEP's calls: exactly DeepEP's, scales as DeepEP computes them, and a call that is rejected on
one rank leaves the buffer usable."""
# ruff: noqa: F821 (names that ranks.py provides)

import inspect

import pytest
from ranks import TORCH_PROGRAM

pytest.importorskip("torch")

from accord.moe import deep_ep

EVENTS = "previous_event async_finish allocate_on_comm_stream"
SIGNATURES = {  # DeepEP's own signatures
    "__init__": "group num_nvl_bytes num_rdma_bytes low_latency_mode num_qps_per_rank allow_nvlink_for_low_latency_mode "
    "allow_mnnvl explicitly_destroy enable_shrink comm use_fabric",
    "get_dispatch_layout": f"topk_idx num_experts {EVENTS}",
    "dispatch": "x handle num_tokens_per_rank num_tokens_per_rdma_rank is_token_in_rank num_tokens_per_expert topk_idx "
    f"topk_weights expert_alignment num_worst_tokens config {EVENTS}",
    "combine": f"x handle topk_weights bias config {EVENTS}",
    "low_latency_dispatch": "x topk_idx num_max_dispatch_tokens_per_rank num_experts "
    "cumulative_local_expert_recv_stats dispatch_wait_recv_cost_stats use_fp8 round_scale use_ue8m0 async_finish "
    "return_recv_hook",
    "low_latency_combine": "x topk_idx topk_weights handle use_logfmt zero_copy async_finish return_recv_hook out "
    "combine_wait_recv_cost_stats",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_names_and_order_of_deep_ep(name):
    assert list(inspect.signature(getattr(deep_ep.Buffer, name)).parameters) == ["self", *SIGNATURES[name].split()]


def call_wrongly_on_one_rank(group):
    """Returns {mistake of rank 1: error on this rank}. After each mistake, the next correct call delivers every row
    to the right ranks."""
    from accord.moe import deep_ep

    rank, buffer = dist.get_rank(), deep_ep.Buffer(group)
    ids = torch.tensor([[0, 1], [2, 3], [0, 3], [1, 2]])
    x = torch.randn(4, 128).bfloat16()
    weights = torch.full((4, 2), 0.5)
    layout = buffer.get_dispatch_layout(ids, 4)
    known = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}

    def latency(x=x, ids=ids, most=8, **more):
        return buffer.low_latency_dispatch(x, ids, most, 4, **{"use_fp8": False} | more)

    def dispatch(x=x, **more):
        return buffer.dispatch(x, **known | {"topk_idx": ids, "topk_weights": weights} | more)

    def good():
        packed, _, handle, _, _ = latency()
        total, _, _ = buffer.low_latency_combine(packed, ids, weights, handle)
        assert torch.equal(total, x)
        rows, _, _, _, handle, _ = dispatch()
        total, _, _ = buffer.combine(rows, handle)
        assert torch.equal(total, x * layout[3].sum(1, keepdim=True))
        return packed, handle

    packed, handle = good()
    made = latency()[2]
    many = torch.zeros(40, 2, dtype=torch.int64)
    elsewhere = deep_ep.Buffer(group)
    foreign = elsewhere.dispatch(x, **known, topk_idx=ids)[4]

    def combine(x, handle=handle, **more):
        return buffer.combine(x, handle, **more)

    def finish(packed=packed, **more):
        given = {"topk_idx": ids, "topk_weights": weights, "handle": made}
        return buffer.low_latency_combine(packed, **given | more)

    rows = dispatch(x)[0]
    cases = {
        "too many": (lambda: latency(torch.randn(40, 128).bfloat16(), many), latency),
        "another hidden": (lambda: latency(x[:, :64]), latency),
        "another dtype": (lambda: latency(x.float()), latency),
        "no float": (lambda: latency(x.int()), latency),
        "other ids": (lambda: latency(ids=ids.float()), latency),
        "unknown": (lambda: latency(use_fp9=True), latency),
        "two ends": (lambda: latency(async_finish=True, return_recv_hook=True), latency),
        "waits": (lambda: latency(dispatch_wait_recv_cost_stats=torch.zeros(2, dtype=torch.int64)), latency),
        "ue8m0 alone": (lambda: latency(use_fp8=True, use_ue8m0=True), lambda: latency(use_fp8=True)),
        "no tensor": (lambda: dispatch([1, 2]), dispatch),
        "hidden of dispatch": (lambda: dispatch(x[:, :64]), dispatch),
        "tokens of dispatch": (lambda: dispatch(x[:3]), dispatch),
        "misspelt": (lambda: dispatch(expert_aligment=4), dispatch),
        "missing": (lambda: buffer.combine(rows), lambda: combine(rows)),
        "foreign handle": (lambda: combine(rows, foreign), lambda: combine(rows)),
        "hidden of combine": (lambda: combine(rows[:, :64]), lambda: combine(rows)),
        "float8 sums": (lambda: combine(rows.to(torch.float8_e4m3fn)), lambda: combine(rows)),
        "logfmt": (lambda: finish(use_logfmt=True), finish),
        "another call": (lambda: latency(), lambda: combine(rows)),
        "most is a fraction": (lambda: latency(most=8.0), latency),
        "no ids": (lambda: latency(ids=None), latency),
        "no memory": (lambda: latency(x.to("meta")), latency),
        "sparse": (lambda: latency(x.to_sparse(), use_fp8=True), lambda: latency(use_fp8=True)),
        "round_scale": (lambda: latency(use_fp8=True, round_scale=True), lambda: latency(use_fp8=True)),
        "alignment of 0": (lambda: dispatch(expert_alignment=0), dispatch),
        "layout": (lambda: dispatch(is_token_in_rank=layout[3].int()), dispatch),
        "wide layout": (lambda: dispatch(is_token_in_rank=torch.ones(4, 3, dtype=torch.bool)), dispatch),
        "experts": (lambda: dispatch(num_tokens_per_expert=layout[2].float()), dispatch),
        "weights alone": (lambda: dispatch(topk_idx=None), dispatch),
        "handle of the other kind": (lambda: dispatch(x, handle=made, topk_idx=None, topk_weights=None), dispatch),
        "handle of the other kind, too": (lambda: finish(handle=handle), finish),
        "weights of combine": (lambda: combine(rows, topk_weights=torch.ones(1, 2)), lambda: combine(rows)),
        "other choices": (lambda: finish(topk_idx=ids.flip(0)), finish),
    }
    errors = {}
    for name, (wrong, right) in cases.items():
        began = time.monotonic()
        try:
            (wrong if rank == 1 else right)()
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
        assert time.monotonic() - began < 10, name
        good()
    return errors


def test_a_call_rejected_on_one_rank_is_rejected_on_all_and_the_buffer_stays_usable(torch_ranks):
    first, second = torch_ranks(2).run(call_wrongly_on_one_rank, deadline=120)
    texts = {
        "too many": "rank 1 has 40 tokens, num_max_dispatch_tokens_per_rank is 8",
        "another hidden": "low_latency_dispatch: hidden is 128 on rank 0 and 64 on rank 1",
        "another dtype": "dtype is bfloat16 on rank 0 and float32 on rank 1",
        "no float": "x is int32, it has to be one of float64, float32, float16, bfloat16",
        "other ids": "topk_idx is float32, it has to be int64 or int32",
        "unknown": 'low_latency_dispatch() has no argument "use_fp9"; did you mean "use_fp8"?',
        "two ends": "async_finish and return_recv_hook exclude each other",
        "waits": "dispatch_wait_recv_cost_stats: waits are not counted here",
        "ue8m0 alone": "use_ue8m0 requires round_scale=True",
        "no tensor": "x is list, it has to be a tensor",
        "hidden of dispatch": "dispatch: hidden is 128 on rank 0 and 64 on rank 1",
        "tokens of dispatch": "x has 3 rows, it has to have 4",
        "misspelt": 'did you mean "expert_alignment"?',
        "missing": "missing a required argument: 'handle'",
        "foreign handle": "the handle was not returned by a dispatch of this buffer",
        "hidden of combine": "combine: hidden is 128 on rank 0 and 64 on rank 1",
        "float8 sums": "x is float8_e4m3fn, it has to be one of float64, float32, float16, bfloat16",
        "logfmt": "use_logfmt: rows are sent as they are",
        "another call": "rank 1 called low_latency_dispatch, rank 0 called combine",
        "most is a fraction": "num_max_dispatch_tokens_per_rank is 8.0, expected an integer",
        "no ids": "topk_idx is NoneType, it has to be a tensor",
        "no memory": "x is strided on meta, it has to be a dense tensor on cpu",
        "sparse": "x is sparse_coo on cpu, it has to be a dense tensor on cpu",
        "round_scale": "round_scale is False on rank 0 and True on rank 1",
        "alignment of 0": "expert_alignment is 0, it has to be 1 or more",
        "layout": "is_token_in_rank is [4, 2] int32, it has to be [tokens, 2] bool",
        "wide layout": "is_token_in_rank is [4, 3] bool, it has to be [tokens, 2] bool",
        "experts": "num_tokens_per_expert is [4] float32, it has to be [experts] int32",
        "weights alone": "topk_weights requires topk_idx",
        "handle of the other kind": "the handle is one of low_latency_dispatch, it has to be one of dispatch",
        "handle of the other kind, too": "the handle is one of dispatch, it has to be one of low_latency_dispatch",
        "weights of combine": "topk_weights is [1, 2], it has to be [",
        "other choices": "topk_idx differs from that of the dispatch",
    }
    assert list(first) == list(second) == list(texts)
    for name, text in texts.items():
        assert text in first[name] and text in second[name], (name, first[name], second[name])
    for name in ("unknown", "misspelt", "missing"):
        assert second[name].startswith("TypeError") and "rank 1: TypeError" in first[name]
    for name in ("waits", "logfmt"):
        assert second[name].startswith("Unsupported")


def few_tokens_and_numbers(group):
    """Covers ranks without tokens, integers of other types, rows with infinite blocks, and a destroyed buffer."""
    import numpy

    from accord import WrongState
    from accord.moe import deep_ep

    rank, buffer = dist.get_rank(), deep_ep.Buffer(group)
    arrived = []
    for with_tokens in ([], [0], [1]):
        own = 3 if rank in with_tokens else 0
        x, ids = torch.full((own, 130), 2.0), torch.tensor([[0, 1]] * 3)[:own]
        for number in (int, numpy.int32, torch.tensor):
            (rows, scales), counts, *_ = buffer.low_latency_dispatch(x, ids, number(4), number(2))
        assert rows.shape == (1, 8, 130) and scales.shape == (1, 8, 2)
        found = rows[0, :, 0].float() * scales[0, :, 0]
        assert torch.allclose(found, torch.tensor([2.0] * counts + [0.0] * (8 - counts)))
        layout = buffer.get_dispatch_layout(ids, numpy.int64(2))
        known = {"num_tokens_per_rank": layout[0], "num_tokens_per_expert": layout[2], "is_token_in_rank": layout[3]}
        plain, *_ = buffer.dispatch(x, **known, topk_idx=ids, expert_alignment=numpy.int64(1))
        arrived.append((int(counts), len(plain)))
    x = torch.ones(1, 256)
    x[0, 3] = float("inf")
    given = {"use_fp8": True, "round_scale": True}
    (_, scales), *_ = buffer.low_latency_dispatch(x, torch.tensor([[rank]]), 1, 2, **given)
    assert scales[0, 0].tolist() == [float("inf"), 2.0**-8]
    buffer.destroy()
    try:
        buffer.low_latency_dispatch(x, torch.tensor([[rank]]), 1, 2)
    except WrongState as error:
        return arrived, str(error)


def test_ranks_without_tokens_take_part_and_integers_may_be_of_any_kind(torch_ranks):
    for arrived, error in torch_ranks(2).run(few_tokens_and_numbers):
        assert arrived == [(0, 0), (3, 3), (3, 3)]
        assert error == "low_latency_dispatch: the buffer was destroyed; create another one"


def test_a_config_has_the_names_of_deep_ep():
    config = deep_ep.Config(num_sms=8, num_max_nvl_chunked_send_tokens=4)
    assert (config.num_sms, config.num_max_rdma_chunked_recv_tokens) == (8, 256)


def scales_of_powers(group):
    """Returns what arrives with use_fp8 from rows whose blocks have known largest elements. 520 columns are four
    blocks and a part of one."""
    from accord.moe import deep_ep

    buffer = deep_ep.Buffer(group)
    # Largest elements: a power of two times 448, just above that, within range, tiny, and zero.
    largest = torch.tensor([448.0 * 4, 448.0 * 4 + 8, 3.0, 1e-7, 0.0])
    x = torch.rand(1, 520, generator=torch.Generator().manual_seed(1)) * 0.99
    x[0, ::128] = 1
    x *= largest.repeat_interleave(128)[:520]
    ids, given = torch.tensor([[dist.get_rank()]]), {"use_fp8": True, "round_scale": True}
    (rows, scales), *_ = buffer.low_latency_dispatch(x, ids, 2, 2, **given)
    (same, words), *_ = buffer.low_latency_dispatch(x, ids, 2, 2, **given, use_ue8m0=True)
    (_, plain), *_ = buffer.low_latency_dispatch(x, ids, 2, 2, use_fp8=True)
    assert torch.equal(same.float(), rows.float())
    assert words.dtype == torch.int32
    return largest, x, rows[0, 0].float(), scales[0, 0], words[0, 0], plain[0, 0], list(words.shape)


def test_scales_are_powers_of_two_on_request(torch_ranks):
    import math

    for largest, x, rows, scales, words, plain, shape in torch_ranks(2).run(scales_of_powers):
        bounds = [max(float(value), 1e-4) for value in largest]
        expected = [2.0 ** math.ceil(math.log2(bound / 448)) for bound in bounds]
        assert scales.tolist() == expected
        assert expected[:2] == [4.0, 8.0]
        assert plain.tolist() == pytest.approx([bound / 448 for bound in bounds], rel=1e-6)
        exponents = [127 + int(math.log2(scale)) for scale in expected]
        found = [word >> 8 * byte & 0xFF for word in words.tolist() for byte in range(4)]
        assert found == [*exponents, 0, 0, 0]
        assert shape == [1, 4, 2]
        for column in range(0, 520, 37):  # float8_e4m3fn has 3 bits after the leading one
            value, scale = float(x[0, column]), expected[column // 128]
            assert abs(float(rows[column]) * scale - value) <= max(abs(value) / 16, scale / 512)


def construct_wrongly(group):
    """Calls constructors with arguments that are wrong on rank 1."""
    from accord.moe import deep_ep

    errors = []
    for wrong in ({"num_qp_per_rank": 3}, {"enable_shrink": True}):
        try:
            deep_ep.Buffer(group, **(wrong if dist.get_rank() == 1 else {}))
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    deep_ep.Buffer(group)
    return errors


def test_invalid_constructor_arguments_on_one_rank_are_an_error_on_all(torch_ranks):
    first, second = torch_ranks(2).run(construct_wrongly)
    assert second[0] == 'TypeError: Buffer() has no argument "num_qp_per_rank"; did you mean "num_qps_per_rank"?'
    assert second[1].startswith("Unsupported: enable_shrink")
    assert all("rank 1" in text for text in first) and 'did you mean "num_qps_per_rank"' in first[0]


def one_rank_is_missing(group, call):
    import datetime

    from accord.moe import deep_ep

    buffer = None if call == "Buffer" else deep_ep.Buffer(group)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["over"], datetime.timedelta(seconds=30))
        return None
    began = time.monotonic()
    try:
        if call == "Buffer":
            deep_ep.Buffer(group)
        else:
            buffer.low_latency_dispatch(torch.randn(1, 8), torch.tensor([[0]]), 2, 2)
    except accord.Timeout as error:
        return list(error.ranks), time.monotonic() - began
    finally:
        store.set("over", "")


@pytest.mark.alone
@pytest.mark.parametrize("call", ["Buffer", "low_latency_dispatch"])
@pytest.mark.parametrize("backend", ["accord", "gloo"])
def test_a_missing_rank_is_waited_for_until_the_timeout_of_the_group(fresh_ranks, backend, call):
    ranks = fresh_ranks(2, program=TORCH_PROGRAM)
    outcomes = ranks.outcomes(one_rank_is_missing, call, backend=backend, timeout=2, deadline=60)
    assert not [outcome.error for outcome in outcomes if outcome.error]
    late, seconds = outcomes[0].value
    assert late == [1]
    assert 1.5 < seconds < 3.5


def calls_of_tensors(group):
    """Calls moe.dispatch and combine with arguments that are wrong on rank 1 only. The next correct calls work."""
    import accord.torch
    from accord import moe

    experts = moe.ExpertGroup(
        accord.torch.communicator(group), experts=2, top_k=1, hidden=4, max_tokens_per_rank=3, dtype="float32"
    )
    handle, ids, x, rank = experts.handle(), torch.tensor([[0], [1]]), torch.ones(2, 4), dist.get_rank()
    other = experts.handle()
    experts.prepare(handle, ids)
    wrong = {
        "hidden": lambda: moe.dispatch(experts, handle, torch.ones(2, 5)),
        "integers": lambda: moe.dispatch(experts, handle, x.int()),
        "complex": lambda: moe.dispatch(experts, handle, x.to(torch.complex64)),
        "wider": lambda: moe.dispatch(experts, handle, x.double()),
        "NumPy": lambda: moe.dispatch(experts, handle, x.numpy()),
        "a list of weights": lambda: moe.dispatch(experts, handle, x, [1.0, 1.0]),
        "sparse": lambda: moe.dispatch(experts, handle, x.to_sparse()),
        "not prepared": lambda: moe.dispatch(experts, other, x),
        "float8 sums": lambda: moe.combine(experts, handle, x.to(torch.float8_e4m3fn)),
        "bool sums": lambda: moe.combine(experts, handle, x.bool()),
        "too many": lambda: experts.prepare(handle, torch.zeros(4, 1, dtype=torch.int64)),
        "ids": lambda: experts.prepare(handle, torch.zeros(1, 1)),
    }
    errors = {}
    for name, call in wrong.items():
        began = time.monotonic()
        try:
            call() if rank == 1 else moe.dispatch(experts, handle, x)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
        assert time.monotonic() - began < 10, name
        experts.prepare(handle, ids)
        rows, _ = moe.dispatch(experts, handle, x)
        assert torch.equal(moe.combine(experts, handle, rows), x)
    return list(wrong), errors


def test_invalid_tensors_on_one_rank_are_reported_to_all(torch_ranks):
    (names, first), (_, second) = torch_ranks(2).run(calls_of_tensors)
    assert list(first) == list(second) == names
    for name in names:
        assert "rank 1" in first[name], (name, first[name])
    assert "float8_e4m3fn" in second["float8 sums"] and "uint8" not in second["float8 sums"]
    assert "bool" in second["bool sums"] and "complex64" in second["complex"]
    assert "int32" in second["integers"] and "float64" in second["wider"]
