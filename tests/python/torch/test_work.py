"""Works whose only reference is held by C++, and calls that fail before they have a work."""
# ruff: noqa: F821 (names that ranks.py provides)


def uneven_inputs(group):
    """DDP.join passes the Work of its own collective to C++, which waits for it in the backward pass."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join(divide_by_initial_world_size=False):
        for step in range(1 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(torch.full((4, 3), 1.0 + step + dist.get_rank())).square().sum().backward()
            optimizer.step()
    return [parameter.tolist() for parameter in model.module.parameters()]


def test_ddp_join_matches_gloo(torch_ranks):
    ours = torch_ranks(2).run(uneven_inputs, deadline=30)
    assert ours == torch_ranks(2).run(uneven_inputs, backend="gloo")


def drop_works(group):
    import gc
    import weakref

    from accord.torch.work import Work

    works = [weakref.ref(dist.all_reduce(torch.ones(4), async_op=True)) for _ in range(40)]
    gc.collect()
    alive = sum(work() is not None for work in works)
    waited = dist.all_reduce(torch.ones(4), async_op=True)
    waited.wait()
    waited = weakref.ref(waited)
    return alive, Work._kept.maxlen, waited() is None


def test_few_unawaited_works_are_kept_and_awaited_ones_are_freed(torch_ranks):
    for alive, most, freed in torch_ranks(2).run(drop_works):
        assert alive == most and freed


def start_after_a_failure(group):
    import accord.torch

    rank, size = dist.get_rank(), dist.get_world_size()
    peer, one, fired, seen = 1 - rank, torch.ones(1), [], []
    failed, closed = dist.new_group(), dist.new_group()
    closed.shutdown()

    def failure(call, *arguments, **keywords):
        try:
            call(*arguments, **keywords)
        except accord.Error as error:
            seen.append(type(error).__name__)

    failure(dist.all_reduce, torch.ones(2 + rank), group=failed)
    failed.register_abort_hook(0, lambda: fired.append(len(seen)))
    for group in (failed, closed):
        failure(dist.all_reduce, one, group=group, async_op=True)
        failure(dist.all_gather_into_tensor, torch.empty(size), one, group=group, async_op=True)
        failure(dist.isend, one, peer, group)
        failure(dist.irecv, one, peer, group)
        failure(dist.irecv, one, group=group)
        failure(dist.batch_isend_irecv, [dist.P2POp(dist.isend, one, peer, group)])
    return seen, fired


def test_a_call_of_a_group_that_has_failed_or_is_closed_raises_before_it_is_waited_for(torch_ranks):
    for seen, fired in torch_ranks(2).run(start_after_a_failure):
        assert seen == ["Mismatch"] * 7 + ["Closed"] * 6
        assert fired == [1]
