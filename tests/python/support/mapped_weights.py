"""How much memory the weights of a package take, on ranks that map its files."""

import accord


def load_on_a_rank(comm, path, groups):
    """Returns the resident bytes of the package's pages, the bytes of those that are copies, the bytes of anonymous
    memory that loading took, and the load report's figures."""
    from pathlib import Path

    def memory() -> tuple[int, int, int]:
        resident = copied = anonymous = 0
        of_package = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                of_package = words[-1].startswith(path)
            elif words[0] == "Anonymous:":
                anonymous += int(words[1]) << 10
            elif of_package and words[0] == "Rss:":
                resident += int(words[1]) << 10
            elif of_package and words[0] in ("Private_Dirty:", "Shared_Dirty:"):
                copied += int(words[1]) << 10
        return resident, copied, anonymous

    groups = dict.fromkeys(groups, comm)
    accord.load(path, groups).close()  # a first load leaves memory behind that is not the weights'
    before = memory()
    with accord.load(path, groups) as engine:
        resident, copied, anonymous = memory()
        report = engine.load_report
        shard = report.shard_bytes + report.replicated_bytes
        return resident, copied, anonymous - before[2], shard, report.weight_bytes_read
