"""Tests of a repository that trains across datacenters, with the fixtures that an installed testbed adds to pytest."""

import pytest

FILES = ("topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml")


def test_zero_bubble_is_faster_than_1f1b(testbed_predict):
    found = testbed_predict(*FILES, schedules=["1f1b", "zb-h1"])
    assert found["zb-h1"].predicted_s < found["1f1b"].predicted_s


@pytest.mark.parametrize("delay_ms", [5, 20, 50])
def test_geopipe_hides_the_link(testbed_predict, delay_ms):
    link = f"topology.links=[{{between: [paris, warsaw], delay: {delay_ms} ms, rate: 10 Gbit/s}}]"
    found = testbed_predict(*FILES, schedules=["1f1b", "geopipe"], settings=[link, "memory=32"])
    assert found["geopipe"].predicted_s < found["1f1b"].predicted_s


@pytest.mark.testbed_needs("virtual-clock")
def test_what_is_measured_is_what_was_predicted(testbed_run):
    training = testbed_run(*FILES, schedules=["1f1b", "zb-h1"], iterations=2)
    assert training.trusted
    assert all(abs(one.error) < 0.001 for one in training.schedules.values())


@pytest.mark.testbed_needs("lab")
def test_warsaw_is_reached_from_paris(testbed_lab):
    lab = testbed_lab(FILES[0])
    assert lab.run("paris/0", "ping", "-c", "1", lab.address("warsaw/0")).returncode == 0


def test_the_plan_takes_what_it_took(testbed_baseline):
    testbed_baseline("small-longhaul", predict_only=True)
