"""Processes forked from a server that has already imported their modules. Importing torch takes 1.5 s of CPU time.

A forked process differs from a newly started one in two ways: its parent, and its seed for string hashes, which all
processes of one server share. Ranks are therefore forked from two servers in turn.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO

# Imports {imports}, then forks a process for each request. The forked process continues after this text with its own
# sys.argv[1], standard input and output, working directory and environment. The server reports each exit code.
_SERVER = """
import os, pickle, select, signal, socket, sys
{imports}
control = socket.socket(fileno=int(sys.argv[1]))
woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(wakes)
while True:
    ready = select.select([control, woken], [], [])[0]
    if woken in ready:
        os.read(woken, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            control.send(pickle.dumps((pid, os.waitstatus_to_exitcode(status))))
    if control in ready:
        request, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not request:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(pickle.dumps((pid, None)))
signal.set_wakeup_fd(-1)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
control.close()
os.close(woken)
os.close(wakes)
for number, descriptor in enumerate(descriptors[:2]):
    os.dup2(descriptor, number)
    os.close(descriptor)
os.dup2(1, 2)
os.environ.clear()
folder, environment = pickle.loads(request)
os.chdir(folder)
os.environ.update(environment)
sys.argv[1:] = [str(descriptors[2])]
if "numpy" in sys.modules:
    sys.modules["numpy"].random.seed()
del control, woken, wakes, ready, request, descriptors, descriptor, number, pid, folder, environment
"""


class ForkedProcess:
    """The part of subprocess.Popen that tests use."""

    def __init__(self, server: ForkServer, pid: int, stdin: IO[bytes]) -> None:
        self._server = server
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired([f"forked process {self.pid}"], timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    def __init__(self, imports: str, program: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._exits: dict[int, int] = {}
        self._environment = dict(os.environ)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER.format(imports=imports) + program, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def can_start(self, environment: dict[str, str]) -> bool:
        """Returns whether a process may receive this environment after its imports with no difference in behaviour."""
        ours, wanted = set(self._environment.items()), set(environment.items())
        different = {name for name, _ in ours ^ wanted}
        return all(name.startswith(("ACCORD_", "PYTEST_")) and name != "ACCORD_ROUTE" for name in different)

    def start(self, environment: dict[str, str], output: int, outcomes: int) -> ForkedProcess:
        """Forks a process that writes to `output` and gets the descriptor `outcomes` as its argument."""
        theirs, ours = os.pipe()
        with self._lock:
            socket.send_fds(self._control, [pickle.dumps((os.getcwd(), environment))], [theirs, output, outcomes])
            os.close(theirs)
            while (message := self._read(None))[1] is not None:
                pass
            self._exits.pop(message[0], None)
        return ForkedProcess(self, message[0], os.fdopen(ours, "wb"))

    def exit_code(self, pid: int, timeout: float | None) -> int | None:
        """Waits for a process to exit. Returns None if it has not exited within `timeout` seconds (None: waits
        indefinitely)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if pid in self._exits:
                    return self._exits[pid]
                left = 0.05 if deadline is None else min(0.05, max(0.0, deadline - time.monotonic()))
                arrived = self._read(left) != (0, 0)
            if not arrived and deadline is not None and time.monotonic() >= deadline:
                return None

    def _read(self, timeout: float | None) -> tuple[int, int | None]:
        """Returns the next message: a process id with its exit code, or with None if the process has just started.
        Returns (0, 0) if no message arrives in time."""
        if not select.select([self._control], [], [], timeout)[0]:
            return 0, 0
        message = self._control.recv(1 << 16)
        if not message:
            raise RuntimeError(f"the process that ranks are forked from has ended: {self._process.wait()}")
        pid, code = pickle.loads(message)
        if code is not None:
            self._exits[pid] = code
        return pid, code
