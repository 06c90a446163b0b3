"""Several hosts on one machine: network namespaces connected by a switch (a bridge in its own namespace)."""

from __future__ import annotations

import itertools
import os
import subprocess

_numbers = itertools.count()


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """`count` hosts that exist until close(). Host h has the address 10.83.0.(h + 1)."""

    def __init__(self, count: int) -> None:
        name = f"accord-{os.getpid()}-{next(_numbers)}"
        self._switch = f"{name}-switch"
        self.names = [f"{name}-{host}" for host in range(count)]
        try:
            for namespace in (self._switch, *self.names):
                _ip("netns", "add", namespace)
                _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge0", "up")
            for host, namespace in enumerate(self.names):
                _ip(
                    *("-n", namespace, "link", "add", "eth0", "type", "veth"),
                    *("peer", "name", f"port{host}", "netns", self._switch),
                )
                _ip("-n", self._switch, "link", "set", f"port{host}", "master", "bridge0", "up")
                _ip("-n", namespace, "address", "add", f"10.83.0.{host + 1}/24", "dev", "eth0")
                _ip("-n", namespace, "link", "set", "eth0", "up")
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        for namespace in (self._switch, *self.names):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    def prefix(self, host: int) -> list[str]:
        """Prefix for a command that is to run on that host."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self, host: int) -> None:
        """Disconnects the host from the switch."""
        _ip("-n", self._switch, "link", "set", f"port{host}", "down")

    def slow_down(self, rate: str, burst: str = "64kb") -> None:
        """Limits what each host sends to `rate`, for example "200mbit", except for a burst after a pause."""
        for namespace in self.names:
            command = ["tc", "-n", namespace, "qdisc", "add", "dev", "eth0", "root", "tbf"]
            subprocess.run([*command, "rate", rate, "burst", burst, "latency", "50ms"], check=True, capture_output=True)


def why_not() -> str | None:
    """Returns the reason why this machine or sandbox cannot create such hosts, or None if it can."""
    try:
        Hosts(1).close()
    except OSError as error:
        return f"no network namespaces here: {error}"
    return None
