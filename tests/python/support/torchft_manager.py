"""torchft's manager over accord's groups, for one rank of a replica."""

from collections.abc import Callable
from datetime import timedelta

from torchft import Manager

from accord.torchft import ProcessGroup

TIMEOUT = timedelta(seconds=20)


def make_manager(
    replica: str,
    lighthouse: str,
    store_port: int,
    *,
    load_state_dict: Callable[[dict], object] | None = None,
    state_dict: Callable[[], dict] | None = None,
    rank: int = 0,
    world_size: int = 1,
    **more: object,
) -> Manager:
    """store_port: of the replica's torch store on this host."""
    return Manager(
        pg=ProcessGroup(timeout=TIMEOUT),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        use_async_quorum=False,
        timeout=TIMEOUT,
        replica_id=replica,
        store_addr="127.0.0.1",
        store_port=store_port,
        rank=rank,
        world_size=world_size,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
        **more,
    )
