"""The loop of a rank of ElasticJob."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

import accord

Step = Callable[[], object]


def go_on(end: str, begin: Callable[[accord.ElasticGroup, accord.Communicator], AbstractContextManager[Step]]) -> None:
    """Works in one group after another until the file `end` exists.

    begin: surrounds the work in one group; yields a function that does one step on all ranks."""
    with accord.ElasticGroup.from_environment(last_call=60, form_timeout=60, timeout=60) as elastic:
        while (comm := elastic.form()) is not None:
            try:
                with begin(elastic, comm) as step:
                    print(f"round {elastic.round} rank {comm.rank} of {comm.size} process {os.getpid()}", flush=True)
                    while not elastic.others_wait():
                        step()
                        is_over = np.array([os.path.exists(end)])
                        comm.broadcast(is_over, 0)
                        if is_over[0]:
                            comm.barrier()
                            elastic.finish()
                            break
            except (accord.PeerLost, accord.Aborted):
                pass
