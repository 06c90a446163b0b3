"""Tensors that wrap other tensors, or nothing, in plain calls: the same results as over gloo, or an immediate error
that names them."""
# ruff: noqa: F821 (names that ranks.py provides)

import pytest
from ranks import torch_is


def pending_everywhere(group):
    """Uses results of functional collectives as input and output of every call, in lists, and in a communicator's
    calls."""
    import torch.distributed._functional_collectives as functional

    rank, found = dist.get_rank(), {}

    def pending(count=2):
        """Returns a pending result, called on all ranks. Each element is 0 + 1."""
        return functional.all_reduce(torch.full((count,), float(rank)), "sum", group)

    def note(name, *tensors):
        found[name] = [tensor.tolist() for tensor in tensors]

    for is_async in (False, True):

        def call(name, function, *arguments, outputs, is_async=is_async, **keywords):
            work = function(*arguments, async_op=is_async, **keywords)
            if is_async:
                work.wait()
            note(f"{name} {is_async}", *outputs)

        one = pending()
        call("all_reduce", dist.all_reduce, one, outputs=[one])
        one = (torch.zeros(2), pending())[rank == 0]
        call("broadcast", dist.broadcast, one, 0, outputs=[one])
        parts, one = [pending(), torch.zeros(2)], pending()
        call("all_gather", dist.all_gather, parts, one, outputs=parts)
        into = pending(count=4)
        call("all_gather_into_tensor", dist.all_gather_into_tensor, into, pending(), outputs=[into])
        into = pending()
        call("reduce_scatter", dist.reduce_scatter, into, [pending(), torch.ones(2)], outputs=[into])
        call("reduce_scatter_tensor", dist.reduce_scatter_tensor, into, pending(count=4), outputs=[into])
        call("all_to_all_single", dist.all_to_all_single, into, pending(), outputs=[into])
        if not torch.__version__.startswith("2.11."):  # gloo lacks it in 2.11
            parts = [pending(count=1), pending(count=1)]
            call("all_to_all", dist.all_to_all, parts, [pending(count=1) for _ in range(2)], outputs=parts)
        parts = [pending(), pending()]
        call("gather", dist.gather, pending(), parts if rank == 0 else None, 0, outputs=parts)
        inputs = [pending(), pending()]
        call("scatter", dist.scatter, into, inputs if rank == 0 else None, 0, outputs=[into])
    into, one = torch.zeros(2), pending()
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, one, 1 - rank), dist.P2POp(dist.irecv, into, 1 - rank)])
    for work in works:
        work.wait()
    note("batch_isend_irecv", into)
    into, one = pending(), pending()
    if rank == 0:
        dist.isend(one, 1).wait()
    else:
        dist.recv(into, None)
    note("isend", into)
    if dist.get_backend() == "accord":
        import accord.torch

        comm, one, into = accord.torch.communicator(), pending(), torch.zeros(2)
        comm.all_reduce(one)
        comm.all_reduce_async(pending(), out=into).wait()
        assert one.tolist() == into.tolist() == [2.0, 2.0]
    return found


def test_the_result_of_a_functional_collective_behaves_like_any_tensor(torch_ranks):
    over_gloo = torch_ranks(2).run(pending_everywhere, backend="gloo")
    assert len(over_gloo[0]) == (20 if torch_is("2.11") else 22)
    assert torch_ranks(2).run(pending_everywhere) == over_gloo


def kinds_of_tensors(group):
    """Passes other tensors without their own memory. Nothing may remain of messages that two ranks send each
    other."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.utils._pytree import tree_map_only

    class Pair(torch.Tensor):
        @staticmethod
        def __new__(cls, a, b):
            return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype, device=a.device)

        def __init__(self, a, b):
            self.a, self.b = a, b

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            first, second = (tree_map_only(Pair, lambda t, name=name: getattr(t, name), args) for name in "ab")
            given = func(*first, **(kwargs or {}))
            func(*second, **(kwargs or {}))
            return given

    class Stubborn(Pair):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError("Stubborn does nothing")

    class Idle(Pair):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            return None

    pair = Pair(torch.ones(2), torch.full((2,), 5.0))
    work = dist.all_reduce(pair, async_op=True)
    work.wait()
    sums = [pair.a.tolist(), pair.b.tolist(), work.is_completed()]
    functional = torch._to_functional_tensor(torch.ones(2))
    dist.all_reduce(functional)
    sums.append(torch._from_functional_tensor(functional).tolist())
    freed = torch.ones(2)
    freed.untyped_storage().resize_(0)
    mesh = DeviceMesh.from_group(group, "cpu")
    refused = {
        "Stubborn": Stubborn(torch.ones(2), torch.ones(2)),
        "Idle": Idle(torch.ones(2), torch.ones(2)),
        "DTensor": DTensor.from_local(torch.ones(2), mesh, [Replicate()]),
        "FakeTensor": FakeTensorMode().from_tensor(torch.ones(2)),
        "meta": torch.ones(2, device="meta"),
        "Tensor": freed,
    }
    errors = {}
    for name, tensor in refused.items():
        errors[name] = []
        for call in (
            lambda t: dist.all_reduce(t),
            lambda t: dist.all_reduce(t, async_op=True),
            lambda t: dist.isend(t, 1 - dist.get_rank()),
            lambda t: dist.irecv(t, 1 - dist.get_rank()),
            lambda t: dist.all_gather([torch.zeros(2), t], torch.ones(2)),
            lambda t: (
                accord.torch.communicator().send_async(t, 1 - dist.get_rank()) if t.is_cpu else dist.broadcast(t, 0)
            ),
        ):
            try:
                call(tensor)
                errors[name].append("")
            except TypeError as error:
                errors[name].append(str(error))
    for wrong in (
        lambda: dist.isend(torch.ones(2), 1 - dist.get_rank(), tag=-1),
        lambda: group.send([torch.ones(2)], 9),
    ):
        try:
            wrong()
            errors["arguments"] = "taken"
        except RuntimeError as error:
            errors.setdefault("arguments", type(error).__name__)
    values = torch.ones(2)
    dist.all_reduce(values)
    return sums, errors, values.tolist()


def test_other_tensors_without_memory_are_unwrapped_by_torch_or_rejected_immediately(torch_ranks):
    for sums, errors, values in torch_ranks(2).run(kinds_of_tensors):
        assert sums == [[2.0, 2.0], [10.0, 10.0], True, [2.0, 2.0]]
        assert errors.pop("arguments") == "InvalidArgument"
        for name, texts in errors.items():
            assert all(name in text for text in texts) and len(texts) == 6, (name, texts)
        assert all("to_local()" in text for text in errors["DTensor"][:5])
        assert values == [2.0, 2.0]


def failed(group):
    """Makes a plain call with the result of a functional collective that failed, over another group."""
    import torch.distributed._functional_collectives as functional

    other = dist.new_group([0, 1])
    result = functional.all_reduce(torch.ones(2 + dist.get_rank()), "sum", other)
    try:
        dist.all_reduce(result)
    except RuntimeError as error:
        return type(error).__name__
    return "taken"


def test_a_failed_functional_collective_raises_in_the_call_that_uses_its_result(torch_ranks):
    assert torch_ranks(2).run(failed) == ["Mismatch", "Mismatch"]


def transformed(group):
    seen = []

    def call(x):
        dist.all_reduce(x)
        seen.append(1)
        return (x * x).sum()

    gradient = torch.func.grad(call)(torch.ones(2))
    return gradient.tolist(), len(seen)


def test_a_call_inside_a_transformed_function(torch_ranks):
    pytest.importorskip("torch.func")
    assert torch_ranks(2).run(transformed) == torch_ranks(2).run(transformed, backend="gloo")
