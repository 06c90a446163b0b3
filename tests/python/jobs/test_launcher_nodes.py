"""`accord run` on several nodes: one launcher per node, all on this machine."""

import json
import os
import re
import signal
import socket

import pytest
from accord_command import end, is_running, next_line, python_file, start_accord, wait_until


@pytest.fixture
def endpoint() -> str:
    """An unused HOST:PORT."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def nodes(endpoint):
    """A function that starts one launcher per list of arguments. All launchers are ended after the test."""
    started = []

    def start(*argument_lists, common=()):
        for arguments in argument_lists:
            options = ["--nnodes", len(argument_lists), "--rdzv-endpoint", endpoint, *common, *arguments]
            started.append(start_accord("run", *options))
        return started

    yield start
    end(*started)


def finish(processes, seconds=60):
    """Returns (exit code, output, error) of each process."""
    results = []
    for process in processes:
        output, error = process.communicate(timeout=seconds)
        results.append((process.returncode, output, error))
    return results


def program_of(tmp_path, text):
    return ["--", "python3", "-u", str(python_file(tmp_path, text))]


def test_ranks_are_numbered_across_nodes_of_different_sizes(nodes, tmp_path):
    program = program_of(tmp_path, "import json, os; print(json.dumps(dict(os.environ)))")
    results = finish(nodes(["--node-rank", 0, "-n", 1, *program], ["--node-rank", 1, "-n", 2, *program]))
    assert [code for code, _, _ in results] == [0, 0]
    ranks = [
        {json.loads(line[4:])["RANK"]: json.loads(line[4:]) for line in output.splitlines()} for _, output, _ in results
    ]
    assert [sorted(found) for found in ranks] == [["0"], ["1", "2"]]
    everyone = ranks[0] | ranks[1]
    for name, values in {
        "WORLD_SIZE": ["3", "3", "3"],
        "LOCAL_RANK": ["0", "0", "1"],
        "LOCAL_WORLD_SIZE": ["1", "2", "2"],
        "GROUP_RANK": ["0", "1", "1"],
    }.items():
        assert [everyone[str(rank)][name] for rank in range(3)] == values
    assert len({(found["MASTER_ADDR"], found["MASTER_PORT"]) for found in everyone.values()}) == 1


def test_launchers_without_a_node_rank_are_numbered_automatically(nodes):
    results = finish(nodes(*[["sh", "-c", "echo $GROUP_RANK $RANK"]] * 3))
    assert [code for code, _, _ in results] == [0, 0, 0], results
    assert sorted(output for _, output, _ in results) == [f"[{node}] {node} {node}\n" for node in range(3)]


def test_rank_0_hosts_the_master_port_if_the_launcher_does_not_host_the_store(nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    program = program_of(
        tmp_path,
        """
import os, socket
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    with socket.create_server((os.environ["MASTER_ADDR"], port)) as server:
        server.accept()[0].sendall(b"from rank 0")
else:
    while True:
        try:
            print(socket.create_connection((os.environ["MASTER_ADDR"], port)).recv(100).decode())
            break
        except ConnectionRefusedError:
            pass
""",
    )
    results = finish(nodes(["--node-rank", 0, *program], ["--node-rank", 1, *program]))
    assert results[1][:2] == (0, "[1] from rank 0\n")


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_on_one_node_ends_all_with_the_same_report_and_code(nodes, tmp_path, failing):
    program = program_of(
        tmp_path,
        f"""
import os, sys, time
print("ready", flush=True)
if os.environ["RANK"] == "{failing}":
    while not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.01)
    sys.exit(9)
time.sleep(1000)
""",
    )
    launchers = nodes(*[["--node-rank", node, "--grace", 100, *program] for node in range(3)])
    for launcher in launchers:
        assert "ready" in next_line(launcher.stdout)
    (tmp_path / "go").write_text("")
    results = finish(launchers)  # long before the grace period ends
    assert [code for code, _, _ in results] == [9, 9, 9]
    reports = {re.search(r"rank .* exited with code 9", error)[0] for _, _, error in results}
    assert len(reports) == 1
    assert reports.pop().startswith(f"rank {failing} (node {failing}, ")


@pytest.mark.parametrize("dying", [0, 1])
def test_a_killed_launcher_ends_the_ranks_of_the_others(nodes, dying):
    script = ["--", "sh", "-c", "echo $$; exec sleep 1000"]
    launchers = nodes(*[["--node-rank", node, *script] for node in range(2)])
    ranks = [int(next_line(launcher.stdout).split()[1]) for launcher in launchers]
    launchers[dying].send_signal(signal.SIGKILL)
    results = finish(launchers)
    assert results[1 - dying][0] == 1
    assert f"the launcher of node {dying}" in results[1 - dying][2]
    for rank in ranks:
        wait_until(lambda rank=rank: not is_running(rank), "all ranks have ended")


def test_a_signal_to_one_launcher_ends_the_job_everywhere(nodes):
    launchers = nodes(*[["--node-rank", node, "--", "sh", "-c", "echo ready; exec sleep 1000"] for node in range(2)])
    for launcher in launchers:
        next_line(launcher.stdout)
    launchers[1].send_signal(signal.SIGTERM)
    results = finish(launchers)
    assert [code for code, _, _ in results] == [128 + signal.SIGTERM] * 2
    assert "another launcher received SIGTERM" in results[0][2]


def test_a_restart_starts_the_ranks_of_all_nodes_with_a_new_port(nodes):
    script = 'echo $TORCHELASTIC_RESTART_COUNT $MASTER_PORT; test "$RANK$TORCHELASTIC_RESTART_COUNT" != 10 || exit 3; sleep 0.2'
    results = finish(
        nodes(*[["--node-rank", node, "--", "sh", "-c", script] for node in range(2)], common=["--max-restarts", 2])
    )
    assert [code for code, _, _ in results] == [0, 0]
    starts = [[line.split()[1:] for line in output.splitlines()] for _, output, _ in results]
    assert starts[0] == starts[1]
    assert [count for count, _ in starts[0]] == ["0", "1"]
    assert starts[0][0][1] != starts[0][1][1]


def test_node_zero_names_the_missing_nodes(endpoint):
    options = ["--nnodes", 3, "--node-rank", 0, "--rdzv-endpoint", endpoint, "--rdzv-timeout", 0.5]
    launcher = start_accord("run", *options, "true")
    code, _, error = finish([launcher])[0]
    assert code == 1
    assert f"2 of 3 launchers (--node-rank 1, 2) did not arrive at tcp://{endpoint}" in error


def test_a_launcher_without_a_node_zero_reports_it(endpoint):
    options = ["--nnodes", 2, "--node-rank", 1, "--rdzv-endpoint", endpoint, "--rdzv-timeout", 0.5]
    code, _, error = finish([start_accord("run", *options, "true")])[0]
    assert code == 1
    assert f"the launcher of node 0 did not answer at tcp://{endpoint}" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nnodes", 3, "--node-rank", 1], "another launcher arrived with --node-rank 1"),
        (["--nnodes", 4, "--node-rank", 2], "--nnodes 3, but this launcher with 4"),
        (["--nnodes", 3, "--node-rank", 2, "--rdzv-id", "other"], 'the launcher belongs to "other"'),
    ],
)
def test_a_launcher_of_another_job_is_rejected_without_disturbing_the_job(endpoint, options, message):
    def start(*arguments):
        return start_accord("run", "--rdzv-endpoint", endpoint, *arguments)

    launchers = [start("--nnodes", 3, "--node-rank", 0, "sh", "-c", "echo $WORLD_SIZE")]
    try:
        launchers.append(start("--nnodes", 3, "--node-rank", 1, "sh", "-c", "echo $WORLD_SIZE"))
        assert next_line(launchers[0].stderr) == "accord run: node 1 has arrived (2 of 3)\n"
        code, _, error = finish([start(*options, "true")])[0]
        assert code == 1
        assert message in error
        launchers.append(start("--nnodes", 3, "--node-rank", 2, "sh", "-c", "echo $WORLD_SIZE"))
        assert [(code, output) for code, output, _ in finish(launchers)] == [(0, f"[{node}] 3\n") for node in range(3)]
    finally:
        end(*launchers)


def test_strangers_at_the_endpoint_do_not_disturb_the_job(endpoint):
    host, port = endpoint.split(":")
    first = start_accord("run", "--nnodes", 2, "--node-rank", 0, "--rdzv-endpoint", endpoint, "true")
    try:
        strangers = []
        for text in (b"GET / HTTP/1.1\r\n\r\n", b'{"type":"failed"}\n', b"\n", os.urandom(200_000), b""):

            def connect():
                try:
                    return socket.create_connection((host, int(port)))
                except ConnectionRefusedError:
                    return None

            stranger = wait_until(connect, "node 0 serves its endpoint")
            strangers.append(stranger)
            stranger.settimeout(10)
            try:
                stranger.sendall(text)
            except ConnectionError:
                continue
        second = start_accord("run", "--nnodes", 2, "--node-rank", 1, "--rdzv-endpoint", endpoint, "true")
        assert [code for code, _, _ in finish([first, second])] == [0, 0]
        for stranger in strangers:
            stranger.close()
    finally:
        end(first)
