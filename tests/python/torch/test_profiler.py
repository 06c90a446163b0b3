"""accord's calls in torch's profiler: each has a named range with shapes that lasts as long as the operation."""
# ruff: noqa: F821 (names that ranks.py provides)


def ranges(group):
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(2, 3)
    dist.all_reduce(tensor)  # outside the profiler
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        dist.all_reduce(tensor)
        dist.all_gather([torch.empty(4) for _ in range(size)], torch.ones(4))
        dist.scatter(torch.empty(5), [torch.ones(5) for _ in range(size)] if rank == 0 else None)
        dist.all_to_all([torch.empty(p + 1) for p in range(size)], [torch.empty(rank + 1) for _ in range(size)])
        group._start_coalescing(torch.device("cpu"))
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        group._end_coalescing(torch.device("cpu")).wait()
        group.allreduce_coalesced([torch.ones(1), torch.ones(2)]).wait()
        if rank == 0:
            time.sleep(0.2)
            dist.send(torch.ones(7), 1)
        else:
            dist.recv(torch.empty(7), 0)
        dist.barrier()
        try:
            dist.all_reduce(torch.zeros(2), dist.ReduceOp.BXOR)
        except RuntimeError as error:
            assert "bxor" in str(error)
    return [
        (event.name, event.input_shapes, event.is_async, event.cpu_time)
        for event in sorted(profiler.events(), key=lambda event: event.time_range.start)
        if event.name.startswith("accord:")
    ]


def test_calls_have_ranges_with_shapes(torch_ranks):
    for rank, found in enumerate(torch_ranks(2).run(ranges)):
        assert [(name, shapes) for name, shapes, _, _ in found] == [
            ("accord:all_reduce", [[2, 3]]),
            ("accord:all_gather", [[4]]),
            ("accord:scatter", [[5], [5]] if rank == 0 else []),
            ("accord:all_to_all_v", [[rank + 1], [rank + 1]]),
            ("accord:coalesced", []),
            ("accord:all_reduce", [[1], [2]]),
            ("accord:send" if rank == 0 else "accord:recv", [[7]]),
            ("accord:barrier", []),
            ("accord:all_reduce", [[2]]),
        ]
        assert all(is_async for _, _, is_async, _ in found)
        if rank == 1:  # rank 1 waited for the message
            assert found[6][3] > 150_000
