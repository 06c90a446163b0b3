"""Several threads read and check weights: the values are the same, the error is the same each time, and nothing is
left behind."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from accord_command import wait_until

import accord

torch = pytest.importorskip("torch")
LAYERS, SIZE = 6, 1024  # 4 MiB each: a piece for a thread


@pytest.fixture(scope="module")
def model_and_package(tmp_path_factory):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(SIZE, SIZE) for _ in range(LAYERS))).eval()
    path = tmp_path_factory.mktemp("load") / "m.accord"
    accord.export(model, (torch.ones(2, SIZE),), path=path)
    return model, path


def weights_of(path):
    return path / "weights-00001.safetensors"


def flip(path, offset):
    with open(weights_of(path), "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("threads", [1, 3])
def test_weights_read_by_several_threads_match_pytorch(model_and_package, threads):
    model, path = model_and_package
    x = np.random.default_rng(1).standard_normal((2, SIZE), np.float32)
    with accord.load(path, threads=threads) as engine, torch.no_grad():
        np.testing.assert_allclose(np.array(engine.run(x)[0]), model(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)


def test_the_first_damaged_granule_in_the_file_is_named_whichever_thread_finds_one(model_and_package):
    _, path = model_and_package
    tensors = json.loads((path / "manifest.json").read_text())["tensors"]
    matrices = sorted((each for each in tensors if len(each["shape"]) == 2), key=lambda each: each["offset"])
    early, late = matrices[1], matrices[4]
    granule = early["granule_bytes"]
    # Past the middle of the first tensor, so that the thread that reads the other one finds its damage earlier.
    places = [early["offset"] + 3 * granule - 1, early["offset"] + 4 * granule - 1, late["offset"]]
    threads = len(list(Path("/proc/self/task").iterdir()))
    for offset in places:
        flip(path, offset)
    try:
        for _ in range(8):
            with pytest.raises(accord.Corrupt) as error:
                accord.load(path)
            assert re.search(rf'tensor "{re.escape(early["name"])}": granule 2 \(bytes', str(error.value))
    finally:
        for offset in places:
            flip(path, offset)
    # A thread that has been joined is listed for a moment longer.
    wait_until(lambda: len(list(Path("/proc/self/task").iterdir())) == threads, "the threads end")
    assert str(path) not in Path("/proc/self/maps").read_text()
