"""A running `accord serve`, for tests that use it as clients do."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from accord_command import accord as run_accord
from accord_command import end, process_state, program_environment, start_accord, wait_until

import accord


class ServedModel:
    def __init__(self, package: Path, *options: object, ranks: int = 1, **environment: str):
        self.process = start_accord(
            *("serve", package, "--port", 0, "--ranks", ranks, *options),
            env=program_environment(**environment),
            stdout=subprocess.DEVNULL,
        )
        self.log: list[dict] = []
        self.other_lines: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        listening = wait_until(lambda: self.events("listening") or self.process.poll() is not None, "the server starts")
        assert listening is not True, self.other_lines
        self.url = self.events("listening")[0]["url"]
        self.names = self.events("listening")[0]["models"]
        self.name = self.names[0]

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.other_lines.append(line)

    def events(self, name: str) -> list[dict]:
        return [line for line in list(self.log) if line["event"] == name]

    def wait_ready(self, times: int = 1) -> ServedModel:
        """Waits until the ranks have become ready so many times."""
        wait_until(lambda: len(self.events("ready")) >= times, f"the ranks are ready for the {times}. time")
        return self

    def rank_process(self, rank: int, package: Path | None = None) -> int:
        """Returns the process id of a running rank."""
        found = wait_until(lambda: self.rank_processes(package).get(rank), f"rank {rank} runs")
        return found

    def rank_processes(self, package: Path | None = None) -> dict[int, int]:
        """Returns the process ids of the running ranks of this server, by rank. A server of several models needs the
        package of one of them."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (folder / "cmdline").read_bytes().split(b"\0")
                if b"accord.serve.worker" not in command or b"--no-python" in command:
                    continue
                if package is not None and json.loads(command[-2])["package"] != str(package):
                    continue
                variables = dict(
                    entry.split("=", 1) for entry in (folder / "environ").read_text().split("\0") if "=" in entry
                )
                if self._descends(int(folder.name)) and process_state(int(folder.name)) not in "ZX":
                    found[int(variables["RANK"])] = int(folder.name)
        return found

    def _descends(self, process: int) -> bool:
        while process > 1:
            if process == self.process.pid:
                return True
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        return False

    def accepts(self) -> bool:
        """Returns whether the server accepts connections."""
        address = urllib.parse.urlsplit(self.url)
        try:
            socket.create_connection((address.hostname, address.port), timeout=60).close()
        except OSError:
            return False
        return True

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, seconds: float = 30) -> int:
        """Ends the server as a supervisor does; returns its exit code."""
        self.process.terminate()
        code = self.process.wait(seconds)
        self.wait_log_end()
        return code

    def end(self) -> None:
        """Ends the server, however it is."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        self.process.kill()
        self.wait_log_end()
        end(self.process)

    def wait_log_end(self) -> None:
        """Waits until the log of a server that has ended has been read."""
        self._reader.join(30)


@contextlib.contextmanager
def served(package: Path, *options: object, **more) -> Iterator[ServedModel]:
    """Serves a package while the block runs; the ranks are ready. The options may begin with more packages."""
    server = ServedModel(package, *options, **more)
    try:
        yield server.wait_ready(len(server.names))
    finally:
        server.end()


def serve_fails(*words: object, code: int = 1, before: Path | None = None) -> str:
    """Runs a server that cannot start; returns its only line of errors. `before`: a folder before others in the path of
    Python's modules."""
    environment = program_environment()
    if before is not None:
        environment["PYTHONPATH"] = f"{before}{os.pathsep}{environment['PYTHONPATH']}"
    result = run_accord("serve", *words, timeout=60, env=environment)
    assert result.returncode == code, result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith(("{", "see "))]
    assert len(lines) == 1, result.stderr
    return lines[0]


def make_endless(text_model, folder: Path, stop_token: int | None = None) -> Path:
    """Exports a model that never ends a text by itself, so that a generation takes as long as a test wants. With a stop
    token, that holds for texts whose grammar does not allow it."""
    from text_model import transformers

    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=len(text_model.tokenizer),
        max_position_embeddings=1 << 14,
        eos_token_id=stop_token,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    return accord.export(model, path=folder / "endless.accord", sharding="auto", tokenizer=text_model.path.parent)
