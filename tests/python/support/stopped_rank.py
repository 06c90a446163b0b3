"""Uses the window of a rank that is stopped. ranks.py sends the function as its source text."""


def use_window_of_a_stopped_rank(comm, interrupt_after):
    """Rank 1 stops itself. Rank 0 puts, signals and gets until each of these fails: by Ctrl-C after `interrupt_after`
    seconds, or, if that is None, by its timeout. Rank 0 returns the errors (kind, ranks, text), the seconds, the MiB
    that it grew by, and its state. Rank 1 returns the first byte of its window."""
    import resource
    import signal
    import threading
    from pathlib import Path

    window = comm.window(1 << 20)
    pids = np.empty(2, np.int64)  # noqa: F821
    comm.all_gather(np.array([os.getpid()]), pids)  # noqa: F821
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # noqa: F821
        window.wait(0)
        comm.barrier()
        return int(np.asarray(window.local)[0])  # noqa: F821
    while Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)  # noqa: F821
    piece, errors = np.full(1 << 20, 7, np.uint8), []  # noqa: F821
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # noqa: F821

    def put_much():
        for _ in range(1024):
            window.put(piece, 1)

    def signal_much():
        for _ in range(1_000_000):
            window.signal(1)

    for attempt in (put_much, signal_much, lambda: window.get(piece.copy(), 1)):
        if interrupt_after is not None:
            threading.Timer(interrupt_after, os.kill, (os.getpid(), signal.SIGINT)).start()  # noqa: F821
        try:
            attempt()
        except (KeyboardInterrupt, accord.Timeout) as error:  # noqa: F821
            errors.append((type(error).__name__, getattr(error, "ranks", ()), str(error)))
    seconds = time.monotonic() - start  # noqa: F821
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    os.kill(int(pids[1]), signal.SIGCONT)  # noqa: F821
    window.signal(1)
    comm.barrier(timeout=30)
    return errors, seconds, grown, comm.state
