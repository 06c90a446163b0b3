"""The programs of examples/compile, started as a user starts them: every rank matches PyTorch."""

import re
import subprocess

import pytest
from accord_command import ACCORD, ROOT, end, on_ranks, program_environment
from hosts import Hosts, why_not

pytest.importorskip("transformers")

# name, ranks, lines per rank that compare with PyTorch
EXAMPLES = [
    ("mlp_tensor_parallel", 2, 2),
    ("rotary_attention", 2, 2),
    ("llama_tensor_parallel", 2, 2),
    ("qwen_tensor_parallel", 2, 2),
    ("llama_export", 2, 2),
    ("llama_in_data_parallel", 4, 1),
    ("gpt2_data_parallel", 2, 1),
    ("split_prompts", 2, 1),
    ("encoder_decoder", 2, 2),
    ("save_and_load", 2, 2),
]

# name, ranks on each of two hosts
OVER_HOSTS = [("llama_over_hosts", 2), ("llama_tensor_parallel", 1)]
NO_HOSTS = why_not()


def differences(text: str) -> list[tuple[int, float]]:
    """Returns (rank, difference from PyTorch) of each line that reports one."""
    reported = re.findall(r"rank (\d): .* differs from PyTorch by ([\d.e+-]+)", text)
    return [(int(rank), float(difference)) for rank, difference in reported]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ranks", "lines"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_example(name, ranks, lines, tmp_path):
    text = on_ranks(ranks, ROOT / f"examples/compile/{name}.py", tmp_path)
    if name == "save_and_load":  # loads the package that the first run saved
        text += on_ranks(ranks, ROOT / f"examples/compile/{name}.py", tmp_path)
    reported = differences(text)
    assert sorted(rank for rank, _ in reported) == sorted(list(range(ranks)) * lines)
    assert all(difference < 1e-5 for _, difference in reported)
    if "compilation_report(" in (ROOT / f"examples/compile/{name}.py").read_text():
        assert "all_reduce over 'world': engine" in text
        assert "0 in PyTorch" in text


@pytest.fixture
def two_hosts():
    hosts = Hosts(2)
    yield hosts
    hosts.close()


@pytest.mark.slow
@pytest.mark.skipif(NO_HOSTS is not None, reason=str(NO_HOSTS))
@pytest.mark.parametrize(("name", "ranks"), OVER_HOSTS, ids=[name for name, _ in OVER_HOSTS])
def test_example_over_hosts(two_hosts, name, ranks, tmp_path):
    """Starts a launcher on each host. gloo, whose group the program starts from, uses the network interface named
    here."""
    program = [str(ROOT / f"examples/compile/{name}.py"), str(tmp_path)]
    endpoint = ["--nnodes", "2", "--rdzv-endpoint", "10.83.0.1:29400"]
    launchers = [
        subprocess.Popen(
            [
                *two_hosts.prefix(host),
                str(ACCORD),
                "run",
                *endpoint,
                "--node-rank",
                str(host),
                "-n",
                str(ranks),
                *program,
            ],
            env=program_environment(GLOO_SOCKET_IFNAME="eth0"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host in range(2)
    ]
    try:
        texts = [launcher.communicate(timeout=240)[0] for launcher in launchers]
    finally:
        end(*launchers)
    assert [launcher.returncode for launcher in launchers] == [0, 0], "".join(texts)
    reported = [differences(text) for text in texts]
    assert [sorted({rank for rank, _ in on_host}) for on_host in reported] == [
        list(range(host * ranks, (host + 1) * ranks)) for host in range(2)
    ]
    assert all(difference < 1e-5 for on_host in reported for _, difference in on_host)
    if name == "llama_over_hosts":
        assert "greedy text of 4 ranks equal to PyTorch's: True" in texts[0]


def test_every_example_runs():
    files = {path.stem for path in (ROOT / "examples/compile").glob("*.py")} - {"small_models"}
    assert files == {name for name, *_ in EXAMPLES + OVER_HOSTS}
