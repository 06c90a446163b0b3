"""Tensors, gradient buckets and FSDP's buffers in memory that ranks share through windows."""
# ruff: noqa: F821 (names that ranks.py provides)


def tensors_in_the_window(group):
    import accord.torch

    rank = dist.get_rank()
    roomy = dist.new_group(pg_options=accord.torch.Options(window_bytes=1 << 20))
    x = accord.torch.empty(3, 5, dtype=torch.bfloat16, group=roomy)
    x.fill_(rank + 1)
    dist.all_reduce(x, group=roomy)
    y = accord.torch.empty((dist.get_world_size() * 4,), group=roomy)
    part = y[rank * 4 : rank * 4 + 4]
    part.fill_(rank)
    dist.all_gather_into_tensor(y, part, group=roomy)
    errors = []
    for attempt in (
        lambda: accord.torch.empty(1 << 20, group=roomy),
        lambda: accord.torch.empty(4, group=group),
        lambda: accord.torch.empty(4, dtype=torch.complex32, group=roomy),
        lambda: dist.all_reduce(accord.torch.empty(3000, group=roomy) if rank == 0 else torch.empty(3000), group=roomy),
    ):
        try:
            attempt()
        except Exception as error:
            errors.append((type(error).__name__, isinstance(error, RuntimeError), str(error)))
    return x.float().tolist(), y.tolist(), errors


def test_tensors_in_the_window_behave_like_other_tensors(torch_ranks):
    for x, y, errors in torch_ranks(2).run(tensors_in_the_window):
        assert x == [[3.0] * 5] * 3
        assert y == [0.0] * 4 + [1.0] * 4
        room, none, dtype, mixed = errors
        assert room[0] == "ResourceExhausted" and "free" in room[2]
        assert none[0] == "WrongState" and "window_bytes" in none[2]
        assert "complex32" in dtype[2]
        assert mixed[:2] == ("Mismatch", True) and "window" in mixed[2]


def train(group, how, steps):
    """Returns the parameters after `steps` steps, and the number of gradient bytes that are in windows."""
    from torch.nn.parallel import DistributedDataParallel

    import accord.torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 7))
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=0.01)
    if how != "plain":
        accord.torch.in_window(ddp, overlap=how == "overlap")
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        ddp(torch.randn(8, 20, generator=generator)).square().mean().backward()
        if step == steps - 1:
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
    with open("/proc/self/maps") as file:
        maps = file.read().splitlines()
    shared = [
        tuple(int(end, 16) for end in line.split()[0].split("-"))
        for line in maps
        if "accord" in line and "rw-s" in line
    ]
    inside = sum(p.grad.nbytes for p in model.parameters() if any(a <= p.grad.data_ptr() < b for a, b in shared))
    return [p.detach().tolist() for p in model.parameters()], inside


def test_ddp_in_windows_trains_equally_and_its_gradients_are_in_the_window(torch_ranks):
    plain = torch_ranks(2).run(train, "plain", 6)
    bytes_of_gradients = 4 * (20 * 300 + 300 + 300 * 7 + 7)
    assert plain[0] == plain[1] and plain[0][1] == 0
    for how in ("window", "overlap"):
        for parameters, inside in torch_ranks(2).run(train, how, 6):
            assert parameters == plain[0][0], "halving before or after the sum gives the same bits"
            assert inside == bytes_of_gradients


def refuse(group):
    from torch.nn.parallel import DistributedDataParallel

    import accord.torch

    errors = []
    try:
        accord.torch.in_window(DistributedDataParallel(torch.nn.Linear(2, 2)))
    except ValueError as error:
        errors.append(str(error))

    class Half(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    model = DistributedDataParallel(Half(), gradient_as_bucket_view=True, find_unused_parameters=True)
    accord.torch.in_window(model)
    try:
        model(torch.ones(1, 2)).sum().backward()
    except RuntimeError as error:
        errors.append(str(error))
    return errors


def test_tensors_that_cannot_be_placed_are_rejected(torch_ranks):
    for errors in torch_ranks(2).run(refuse):
        assert len(errors) == 2
        assert "gradient_as_bucket_view=True" in errors[0]
        assert "has no gradient in its bucket" in errors[1]


def shard(group, window_bytes):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    import accord.torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 301), torch.nn.ReLU(), torch.nn.Linear(301, 8))
    options = accord.torch.Options(window_bytes=window_bytes)
    roomy = dist.new_group(pg_options=options)
    mesh = DeviceMesh.from_group(roomy, "cpu")
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if window_bytes:
        model.set_allocate_memory_from_process_group_for_comm(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 20, generator=generator)).square().mean().backward()
        optimizer.step()
    return [p.full_tensor().tolist() for p in model.parameters()]


def test_fsdp_in_windows_trains_equally(torch_ranks):
    plain = torch_ranks(2).run(shard, 0)
    assert plain[0] == plain[1]
    assert torch_ranks(2).run(shard, 8 << 20) == plain


def fail_in_a_step(group):
    """Returns the errors of the steps after the other rank has left, while all_reduces overlap with the backward
    pass."""
    from torch.nn.parallel import DistributedDataParallel

    import accord.torch

    model = DistributedDataParallel(torch.nn.Linear(9, 9), gradient_as_bucket_view=True)
    accord.torch.in_window(model, overlap=True)
    errors = []
    for step in range(4):
        if dist.get_rank() == 1 and step == 2:
            return errors
        try:
            model(torch.ones(1, 9)).sum().backward()
        except RuntimeError as error:
            errors.append((step, str(error)))
    return errors


def test_a_failure_in_a_window_fails_the_step(torch_ranks):
    errors = torch_ranks(2).run(fail_in_a_step)
    assert [step for step, _ in errors[0]] == [2, 3] and "PeerLost" in errors[0][0][1]
