"""Ranks that are threads of the test process."""

import threading

import accord


def on_threads(size, body, timeout=60, **options):
    """Returns the result of body(comm) on each of `size` ranks, which are threads. Raises the first rank's error."""
    store, values, errors = accord.MemoryStore(), [None] * size, []

    def rank_of(rank):
        try:
            with accord.Communicator.create(store, rank, size, timeout=timeout, **options) as comm:
                values[rank] = body(comm)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank_of, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return values
