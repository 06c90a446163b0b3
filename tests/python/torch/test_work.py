"""Works whose only reference is held by C++."""
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
