"""Messages of torch.distributed over accord: tags, and batches of them."""
# ruff: noqa: F821 (what ranks.py gives to functions)


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
