"""Engines of a group whose ranks change: the package is loaded again for the ranks that are there, and answers go on."""

import numpy as np
import pytest
from accord_command import wait_until
from elastic_job import ElasticJob

import accord

torch = pytest.importorskip("torch")

PROGRAM = """
import os, sys
from contextlib import contextmanager
import numpy, accord
from elastic_loop import go_on

end, package, folder = sys.argv[1:]
request = 0

@contextmanager
def begin(elastic, comm):
    global request
    with accord.load(package, {"tp": comm}, canonical_ranks=4) as engine:
        counts = numpy.array([request])
        comm.all_reduce(counts, "max")
        request = int(counts[0])

        def answer_one():
            global request
            (answer,) = engine.run(numpy.full((2, 64), request % 7, numpy.float32))
            numpy.save(f"{folder}/part {os.getpid()}.npy", numpy.array(answer))  # every rank has it
            os.rename(f"{folder}/part {os.getpid()}.npy", f"{folder}/{request}.npy")
            request += 1

        yield answer_one

go_on(end, begin)
"""


def test_requests_are_answered_by_the_ranks_that_are_left(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)).eval()
    package = accord.export(
        model,
        (torch.zeros(2, 64),),
        path=tmp_path / "mlp.accord",
        sharding={"0": accord.Column(unit=16), "2": accord.Row(unit=16)},
        progress=lambda done, total: None,
    )
    answers = tmp_path / "answers"
    answers.mkdir()

    def count():
        return len(list(answers.glob("[0-9]*.npy")))

    def await_more():
        before = count()
        wait_until(lambda: count() > before + 20, "more answers")

    with ElasticJob(tmp_path, PROGRAM, package, answers) as job:
        job.start("--elastic", "1:4", "--max-restarts", 0)
        number = job.await_size(4)
        for killed, size in (((3, 1), 2), ((0,), 1)):
            await_more()
            for rank in killed:
                job.kill(number, rank)
            number = job.await_size(size, number)
        await_more()
        assert job.finish() == [0]
    with torch.no_grad():
        expected = [model(torch.full((2, 64), float(value))).numpy() for value in range(7)]
    found = {int(path.name.split(".")[0]): np.load(path) for path in answers.glob("[0-9]*.npy")}
    assert sorted(found) == list(range(len(found)))
    first = {}
    for request, answer in found.items():
        np.testing.assert_allclose(answer, expected[request % 7], rtol=0, atol=2e-6)
        np.testing.assert_array_equal(answer, first.setdefault(request % 7, answer))
