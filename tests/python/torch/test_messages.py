"""torch.distributed's messages over accord: tags, and batches of messages."""
# ruff: noqa: F821 (names that ranks.py provides)


def tags(group):
    peer = 1 - dist.get_rank()
    found = []
    for count in (1, 400_000):
        sent = [dist.isend(torch.full((count,), 10.0 * dist.get_rank() + tag), peer, tag=tag) for tag in range(4)]
        for tag in (2, 0, 3, 1):
            arrived = torch.empty(count)
            dist.recv(arrived, peer, tag=tag)
            found.append(set(arrived.tolist()))
        for work in sent:
            work.wait()
    arrived = [torch.empty(2), torch.empty(2)]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, arrived[1], peer, tag=1),
            dist.P2POp(dist.isend, torch.full((2,), 7.0), peer, tag=0),
            dist.P2POp(dist.irecv, arrived[0], peer, tag=0),
            dist.P2POp(dist.isend, torch.full((2,), 8.0), peer, tag=1),
        ]
    )
    for work in works:
        work.wait()
    return found, [t.tolist() for t in arrived]


def test_each_message_goes_to_the_receive_of_its_tag(torch_ranks):
    for rank, (found, arrived) in enumerate(torch_ranks(2).run(tags)):
        assert found == [{10.0 * (1 - rank) + tag} for tag in (2, 0, 3, 1)] * 2
        assert arrived == [[7.0, 7.0], [8.0, 8.0]]


def receive_from_any_source(group):
    """Rank 0 receives from any sender: one message per rank and tag. Messages of one tag match receives in their
    order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        for tag in (3, 4):
            dist.send(torch.tensor([float(rank), tag]), 0, tag=tag)
        dist.barrier()
        dist.send(torch.zeros(1), 0)
        return None
    late = dist.irecv(torch.empty(1))  # not matched until later, which must not delay other tags
    later = [torch.empty(2) for _ in range(1, size)]
    works = [dist.irecv(tensor, tag=4) for tensor in later]
    arrived, sources = torch.empty(2, 2)[:, 0], []
    for _ in range(1, size):
        sources.append((dist.recv(arrived, tag=3), arrived.tolist()))
    for tensor, work in zip(later, works, strict=True):
        assert work.wait() and work.is_completed()
        sources.append((work._source_rank(), tensor.tolist()))
    assert not late.is_completed()
    dist.barrier()
    late.get_future().wait()
    for _ in range(2, size):
        dist.recv(torch.empty(1))
    return sorted(sources)


def test_receives_from_any_source_report_the_source(torch_ranks):
    found = torch_ranks(3).run(receive_from_any_source)[0]
    assert found == [(rank, [float(rank), tag]) for rank in (1, 2) for tag in (3.0, 4.0)]


def receive_without_senders(group):
    if dist.get_rank() == 1:
        return None  # and closes its group
    work = dist.irecv(torch.empty(1))
    try:
        work.wait()
    except RuntimeError as error:
        return type(error).__name__, [name for name in ("is_success", "is_completed") if getattr(work, name)()]


def test_a_receive_from_any_source_fails_when_all_others_have_left(torch_ranks):
    assert torch_ranks(2).run(receive_without_senders)[0] == ("PeerLost", ["is_completed"])
