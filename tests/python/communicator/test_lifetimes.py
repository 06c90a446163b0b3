"""An object keeps working after the last reference to its creator is dropped."""

from __future__ import annotations

import gc

import numpy as np

import accord


def on_a_rank(comm):
    """Uses objects whose group, or whatever else created them, has no reference left."""
    import gc

    from accord.mesh import Mesh, MeshPlan
    from accord.moe import ExpertGroup

    def values():
        return np.full(4, comm.rank + 1, np.float32)

    def check_sums(group) -> None:
        gc.collect()
        x = values()
        group.all_reduce(x)
        assert x.tolist() == [3.0] * 4

    def ended(x, work) -> None:
        gc.collect()
        work.wait()
        assert x.tolist() == [3.0] * 4

    def batch(x):
        made = comm.split(0).batch()
        made.all_reduce(x)
        return made

    peer = 1 - comm.rank
    x, y, z = values(), values(), values()
    ended(x, comm.split(0).all_reduce_async(x))
    ended(y, batch(y).prepare().start())
    batch(z).run()
    assert z.tolist() == [3.0] * 4
    check_sums(comm.split(0).split(0))
    check_sums(Mesh.create(MeshPlan("tp=2", world_size=2), comm.split(0)).group("tp"))

    local = np.asarray(comm.split(0).window(4096).local)
    array = np.from_dlpack(comm.split(0).window(4096).empty(4))
    window = comm.split(0).window(4096)
    theirs = np.asarray(window.peer(peer))
    gc.collect()
    window.put(values(), peer)
    window.signal(peer)
    window.wait(peer)
    del window
    gc.collect()
    local[:], array[:] = 7, 8
    assert (local[5], array.tolist()) == (7, [8.0] * 4)
    comm.barrier()
    assert theirs[:16].view(np.float32).tolist() == values().tolist()  # the data that this rank put there

    def experts():
        return ExpertGroup(comm.split(0), experts=4, top_k=1, hidden=2, max_tokens_per_rank=4, dtype="float32")

    group = experts()
    handle = group.handle()
    group.prepare(handle, np.arange(4)[:, None])
    del group
    gc.collect()
    assert handle.recv_rows == 4
    check_sums(experts().communicator)


def test_objects_outlive_their_creators(ranks):
    ranks(2).run(on_a_rank)


def test_the_entries_of_a_plan_outlive_it():
    from accord.mesh import MeshPlan

    family = MeshPlan("tp=2", world_size=4).families[0]
    gc.collect()
    assert (family.name, family.groups, family.group_size) == ("dp_cp", 2, 2)


def test_outputs_contexts_and_descriptions_outlive_an_engine(text_model):
    ids = np.array(text_model.tokenizer("The quick").input_ids)
    positions = np.arange(len(ids))

    def engine():
        return accord.load(text_model.path)

    with engine() as kept:
        expected = np.array(kept.run(ids, positions, positions)[0])
    output = np.from_dlpack(engine().run(ids, positions, positions)[0])
    context = engine().create_context()
    report, inputs = engine().load_report, engine().inputs
    gc.collect()
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(np.array(context.run(ids, positions, positions)[0]), expected)
    assert report.seconds > 0
    assert len(inputs) == 3
