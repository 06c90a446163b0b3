"""The benchmark `sim`: what follows from measured and predicted times."""

import sys

import pytest
from accord_command import ROOT

sys.path.insert(0, str(ROOT))

from bench.sim import __main__ as driver
from bench.sim.accuracy import Point, median_error, pairs_in_order


def point(algorithm: str, measured: float, predicted: float, size: int = 64, setting: str = "2 ranks") -> Point:
    return Point(setting, "all_reduce", algorithm, size, measured, predicted)


def test_the_error_is_relative_to_the_measured_time():
    points = [point("a", 2.0, 3.0), point("b", 4.0, 4.4), point("c", 1.0, 0.8)]
    assert [one.error() for one in points] == pytest.approx([0.5, 0.1, 0.2])
    assert median_error(points) == pytest.approx(0.2)


def test_pairs_count_if_their_times_differ_clearly_and_they_serve_the_same_call():
    assert pairs_in_order([point("a", 1.0, 5.0), point("b", 1.09, 4.0)]) == (0, 0)  # as fast as each other
    assert pairs_in_order([point("a", 1.0, 4.0), point("b", 1.2, 5.0)]) == (1, 1)
    assert pairs_in_order([point("a", 1.2, 4.0), point("b", 1.0, 5.0)]) == (0, 1)
    assert pairs_in_order([point("a", 1.0, 4.0), point("b", 1.2, 4.0)]) == (0, 1)  # predicted to be equal
    assert pairs_in_order([point("a", 1.0, 4.0), point("b", 9.0, 5.0, size=128)]) == (0, 0)
    assert pairs_in_order([point("a", 1.0, 4.0), point("b", 9.0, 5.0, setting="4 ranks")]) == (0, 0)
    assert pairs_in_order([point("a", 1, 1), point("b", 2, 3), point("c", 3, 2)]) == (2, 3)


def test_the_summary_has_a_line_for_each_setting_and_limits_for_all():
    points = [point("a", 1.0, 1.1), point("b", 2.0, 2.6), point("a", 1.0, 1.2, setting="4 ranks")]
    lines = {line["case"]: (line["accord"], line["limit"]) for line in driver.summary(points)}
    assert lines["2 ranks: median error"] == (pytest.approx(20), None)
    assert lines["4 ranks: pairs in wrong order, of 0"] == (0, None)
    assert lines["all: median error"] == (pytest.approx(20), 10)
    assert lines["all: pairs in wrong order, of 1"] == (0, 5)


def test_sizes_of_parts_stay_within_the_largest_message():
    assert driver.sizes_of("all_reduce", 4, [8, 64 << 20]) == [8, 64 << 20]
    assert driver.sizes_of("all_gather", 4, [8, 16 << 20, 64 << 20]) == [8, 16 << 20]
    assert driver.sizes_of("barrier", 4, [8, 64]) == [0]


def test_charts_have_a_measured_and_a_predicted_line_of_each_algorithm(tmp_path):
    points = [point("a", 1e-6, 2e-6), point("a", 4e-6, 5e-6, size=128)]
    charts = driver.charts_of(points)
    assert list(charts) == ["2 ranks: all_reduce"]
    assert charts["2 ranks: all_reduce"]["a"] == [(64, pytest.approx(1)), (128, pytest.approx(4))]
    assert charts["2 ranks: all_reduce"]["predicted a"] == [(64, pytest.approx(2)), (128, pytest.approx(5))]
    driver.plot.draw("sim", "measured and predicted", charts, tmp_path / "sim.svg")
    assert "predicted a: 128 B, 5.000 us" in (tmp_path / "sim.svg").read_text()


@pytest.mark.parametrize(
    ("signals", "kept", "repeated", "unsteady"),
    [
        ([50, 55], 1, 0, 0),
        ([50, 200, 210], 2, 1, 0),  # the cores have moved apart, and stay there
        ([50, 200, 50, 200, 50], 4, 1, 1),
    ],
)
def test_a_size_is_measured_again_if_signals_have_changed(monkeypatch, signals, kept, repeated, unsteady):
    setting = driver.Setting("2 ranks", "accord", 2, machine=None, calibration=["calibrate"])
    left, attempts = iter(signals), iter(range(1, 9))
    monkeypatch.setattr(driver.Setting, "calibrate", lambda _: float(next(left)))
    monkeypatch.setattr(driver, "points_of", lambda *_: [point("a", next(attempts), 1.0)])
    driver.measure(setting, "all_reduce", 64, ["a"], options=None)
    assert [one.measured for one in setting.points] == [kept]
    assert (setting.repeated, setting.unsteady) == (repeated, unsteady)
    assert next(left, None) is None
