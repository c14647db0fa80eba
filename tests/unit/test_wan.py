"""What of `testbed wan` needs no second machine: clocks, who may come, what is believed, what is not checked."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import fields, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from data_format import documented
from hypothesis import given
from hypothesis import strategies as st
from in_process import run_testbed

from testbed.cli import app
from testbed.errors import BadInput, ExitCode
from testbed.judge.fidelity import ClockEvidence, NetworkEvidence, clock_check, network_check, not_taken
from testbed.plan.recovery import Checkpoints, Elastic, Failure, Recovery
from testbed.planning.resolve import load_plan
from testbed.spec import load_topology
from testbed.spec.topology import Direction
from testbed.thresholds import CLOCK_PACE, CLOCK_SHARE
from testbed.train import received
from testbed.train.connections import segments_sent_again
from testbed.wan import admission, remote_workers, torchrun_environment, wan_session
from testbed.wan.admission import Introduction, Invitation
from testbed.wan.believed_paths import MeasuredPath, hints
from testbed.wan.machine_clocks import ClockExchange, ClockOffset, ClockOffsets, between_the_worst
from testbed.wan.path_probe import MOST_BYTES, WORDS, measure_path, serve_path
from testbed.wan.rank_keeper import EndedByTorchrun
from testbed.wan.real_networks import require_a_real_network
from testbed.wan.wan_messages import PathMeasured, PathOpened

ROOT = Path(__file__).parents[2]
SECONDS = st.floats(0.0, 0.2)


def exchanged(at_s: float, offset_s: float, there_s: float, back_s: float) -> ClockExchange:
    """What is seen of two words that take so long with a clock that is so far ahead."""
    return ClockExchange(at_s, offset_s + there_s, offset_s - back_s)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=20), st.floats(-1, 1))
def test_the_offset_is_within_its_uncertainty_whatever_words_take(
    ahead_s: float, words: list[tuple[float, float]], pace: float
) -> None:
    """With a clock that goes slower or faster as well, as far as a clock may."""
    offsets = ClockOffsets()

    def really(at_s: float) -> float:
        return ahead_s + pace * CLOCK_PACE * at_s

    for number, (there_s, back_s) in enumerate(words):
        offsets.add(exchanged(float(number), really(number), there_s, back_s))
    assert offsets.contradictions == 0
    for at_s in (0.0, len(words) / 2, len(words) + 10.0):
        found = offsets.at(at_s)
        assert abs(found.seconds - really(at_s)) <= found.uncertainty_s + 1e-9


def test_the_fastest_word_of_each_way_decides() -> None:
    offsets = ClockOffsets()
    for there_s, back_s in ((0.010, 0.050), (0.040, 0.012), (0.030, 0.030)):
        offsets.add(exchanged(0.0, 5.0, there_s, back_s))
    assert offsets.at(0.0) == pytest.approx(ClockOffset(5.0 - 0.001, 0.011))


def test_a_clock_that_was_set_contradicts_what_was_known_and_is_learned_anew() -> None:
    offsets = ClockOffsets()
    for at_s, ahead_s in ((0.0, 1.0), (1.0, 1.0), (2.0, 3.0), (3.0, 3.0)):
        offsets.add(exchanged(at_s, ahead_s, 1e-3, 1e-3))
    assert offsets.contradictions == 1
    assert offsets.at(3.0).seconds == pytest.approx(3.0)


def test_rounding_contradicts_nothing() -> None:
    """Of a machine that has been up for days, microseconds of drift between exchanges of no time at all."""
    offsets = ClockOffsets()
    for number in range(3):
        offsets.add(exchanged(float(number), 524288.0 + CLOCK_PACE * number, 0.0, 0.0))
    assert offsets.contradictions == 0


def test_two_other_machines_are_as_unsure_as_both_together() -> None:
    assert between_the_worst([]) == 0.0
    assert between_the_worst([ClockOffset(1.0, 3e-3)]) == 3e-3
    assert between_the_worst([ClockOffset(9.0, each) for each in (1e-3, 3e-3, 2e-3)]) == 5e-3


def test_clocks_that_are_known_too_badly_or_were_set_fail_their_check() -> None:
    assert clock_check(ClockEvidence(CLOCK_SHARE.value * 0.99, 0), 1.0).ok
    (reason,) = clock_check(ClockEvidence(CLOCK_SHARE.value * 1.01, 0), 1.0).reasons
    assert "between two machines times are known to" in reason
    (reason,) = clock_check(ClockEvidence(0.0, 2), 1.0).reasons
    assert "2 exchanges contradict others" in reason


def test_what_was_not_asked_is_neither_passed_nor_failed() -> None:
    check = not_taken("links as asked")
    assert not check.ok
    assert not check.reasons
    assert "nobody made these links" in check.not_taken


def test_segments_sent_again_on_a_real_network_are_noted_not_held_against_it() -> None:
    clocks = ClockEvidence(0.0, 0)
    noted = network_check(NetworkEvidence(0, 3, {}, lossless=True, clocks=clocks))
    assert noted.ok
    assert noted.notes == ("TCP sent 3 segments again, on a network that the topology calls lossless",)
    assert network_check(NetworkEvidence(0, 3, {}, lossless=False, clocks=clocks)).notes == ()
    assert not network_check(NetworkEvidence(0, 3, {}, lossless=True)).ok


def test_connections_of_this_process_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert segments_sent_again() == 0


@pytest.mark.parametrize(
    "recovery", [Recovery(Checkpoints(2, 0.1, 1.0), (Failure(1, 0.5),)), Recovery(None, (), Elastic(1.0))]
)
def test_a_plan_whose_workers_fail_needs_a_lab(recovery: Recovery) -> None:
    plan = load_plan(ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml")
    assert require_a_real_network(plan).recovery is None
    with pytest.raises(BadInput, match=r"plan.json: recovery: got '(checkpoints|elastic)', expected none: no worker"):
        require_a_real_network(replace(plan, recovery=recovery))


def test_limits_of_nodes_need_a_lab() -> None:
    """They were left out without a word."""
    files = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    plan = load_plan(*files, settings=["topology.datacenters.paris.cpus=0.5"])
    with pytest.raises(BadInput, match=r"plan.json: network.limits: got 'paris/0, .*', expected none: a machine"):
        require_a_real_network(plan)


# --- what torchrun says --------------------------------------------------------------------------

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("name", sorted(TORCHRUN))
def test_without_torchrun_the_missing_variable_is_named(name: str) -> None:
    left = {key: value for key, value in TORCHRUN.items() if key != name}
    with pytest.raises(BadInput, match=f"environment: {name}: got 'nothing', expected what torchrun sets"):
        torchrun_environment.of_environment(left)


def test_a_rank_that_is_no_number_is_bad_input() -> None:
    with pytest.raises(BadInput, match="environment: RANK: got 'first', expected what torchrun sets"):
        torchrun_environment.of_environment(TORCHRUN | {"RANK": "first"})


@pytest.mark.parametrize(("host", "written"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_the_store_is_that_of_this_start_of_this_job(host: str, written: str) -> None:
    place = torchrun_environment.of_environment(
        TORCHRUN | {"MASTER_ADDR": host, "TORCHELASTIC_RUN_ID": "mine", "TORCHELASTIC_RESTART_COUNT": "2"}
    )
    assert place.store == f"tcp://{written}:29500/testbed/mine/2"
    assert not place.has_store


def test_the_command_without_torchrun_is_bad_input(tmp_path: Path) -> None:
    done = run_testbed("wan", "plan.json", directory=tmp_path)
    assert done.returncode == ExitCode.BAD_INPUT
    assert done.stderr.startswith("error: environment: RANK: got 'nothing'")


@pytest.mark.parametrize(
    ("words", "text", "world_size", "said"),
    [
        ((), None, 4, "plan.json: file: got 'No such file or directory'"),
        ((), "name: no-plan", 4, "plan.json: file: got 'Expecting value"),
        (("--event", "link paris--warsaw rate 50 % at 1"), "", 4, "plan.json: events: got '2 of them'"),
        (("--adapt", "ski-rental"), "", 4, "plan.json: adaptation: got 'ski-rental', expected none"),
        ((), "", 3, "environment: WORLD_SIZE: got 3, expected 4"),
    ],
)
def test_a_rank_says_what_it_finds_itself_without_waiting_for_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    text: str | None,
    world_size: int,
    said: str,
) -> None:
    pair = "two-dc-longhaul", "tiny-gpt-pp4", "--iterations=3", "--schedule=1f1b"
    if text == "":
        assert run_testbed("plan", *pair, *words, "-o", "plan.json", directory=tmp_path).returncode == ExitCode.OK
    elif text is not None:
        (tmp_path / "plan.json").write_text(text)
    for name, value in (TORCHRUN | {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torchrun_environment, "answers", lambda *_: False)
    done = run_testbed("wan", "plan.json", directory=tmp_path)
    assert done.returncode == ExitCode.BAD_INPUT
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: rank 1 ({socket.gethostname()}): {said}"), line


def test_this_machine_is_reached_by_the_interface_with_its_address() -> None:
    assert torchrun_environment.local_address("127.0.0.1", 1, None) == ("lo", "127.0.0.1")
    assert torchrun_environment.local_address("10.0.0.1", 1, "lo") == ("lo", "127.0.0.1")
    with pytest.raises(BadInput, match="--interface: got 'none0', expected one with an IPv4 address"):
        torchrun_environment.local_address("127.0.0.1", 1, "none0")


# --- who may come --------------------------------------------------------------------------------

FIRST = Introduction(0, "a", "1", "2", "0" * 64, 2, "lo", "127.0.0.1", 2, "m", "m c", "cubic")
SECOND = replace(FIRST, rank=1, host="b")


def test_ranks_that_are_alike_may_come() -> None:
    admission.require_alike([FIRST, SECOND])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"trouble": "its disk is full"}, r"^rank 1 \(b\): its disk is full$"),
        ({"plan": "f" * 64}, r"^rank 1 \(b\): plan.json: got 'ffffffffffff', expected 000000000000, as rank 0 \(a\)"),
        ({"version": "0"}, r"^rank 1 \(b\): testbed: got '0', expected 1, as rank 0 \(a\)"),
        ({"torch": "9"}, r"^rank 1 \(b\): torch: got '9', expected 2, as rank 0 \(a\)"),
        ({"n_ranks": 3}, "^environment: WORLD_SIZE: got 2, expected 3, a process for every rank of the plan"),
    ],
)
def test_a_rank_that_differs_is_named(changed: Mapping[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        admission.require_alike([FIRST, replace(SECOND, **changed)])  # type: ignore[arg-type]


def test_a_rank_says_which_plan_it_has_and_of_how_many_ranks() -> None:
    """What all ranks then hear is tried with real torchruns in tests/lab/test_wan_sites.py."""
    from testbed.wan.wan_session import rank_of  # here, as it imports torch

    place = torchrun_environment.of_environment(TORCHRUN | {"MASTER_ADDR": "127.0.0.1"})
    files = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"
    one, other = (
        rank_of(place, load_plan(*files, settings=[f"iterations={number}"]), None).introduction for number in (3, 4)
    )
    come = [replace(one, rank=rank) for rank in range(4)]
    admission.require_alike(come)
    with pytest.raises(BadInput, match=r"^rank 3 \(.*\): plan.json: got .* the same on every machine$"):
        admission.require_alike([*come[:3], replace(other, rank=3)])
    with pytest.raises(BadInput, match=r"^environment: WORLD_SIZE: got 2, expected 4"):
        admission.require_alike(come[:2])


def test_a_machine_that_others_would_not_reach_is_named() -> None:
    away = replace(SECOND, machine="another", address="10.0.0.2")
    with pytest.raises(BadInput, match=r"^rank 0 \(a\): address: got '127.0.0.1', expected one that other machines"):
        admission.require_alike([FIRST, away])
    admission.require_alike([replace(FIRST, address="10.0.0.1"), away])


class KeptStore(dict[str, bytes]):
    """torchrun's store as far as ranks use it, within one process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def test_who_has_not_the_key_is_hung_up_and_the_others_connect() -> None:
    store = KeptStore()
    inviting = threading.Thread(target=lambda: found.extend(admission.invite(store, [FIRST, SECOND])))
    found: list[admission.RankConnections] = []
    inviting.start()
    invitation = admission.answer(store)
    with socket.create_connection((invitation.address, invitation.port), timeout=30) as stranger:
        stranger.sendall(bytes(37))  # as long as a key with a rank
        assert stranger.recv(1) == b""
    lines = [line for rank in (1, 0) for line in admission.connect(invitation, rank)]
    inviting.join(30)
    assert not inviting.is_alive()
    for place, one in enumerate(reversed(found)):
        lines[2 * place].send("keeper")
        lines[2 * place + 1].send("worker")
        assert (one.keeper.recv(), one.worker.recv()) == ("keeper", "worker")
    for line in (*lines, *(line for one in found for line in (one.keeper, one.worker))):
        line.close()


def test_nobody_waits_for_others_once_one_is_in_trouble() -> None:
    store = KeptStore()
    store.add = lambda key, amount: amount  # type: ignore[attr-defined]
    store.get = store.__getitem__  # type: ignore[assignment]
    admission.give_up(store, 3, replace(SECOND, trouble="its disk is full"))
    with pytest.raises(BadInput, match=r"^rank 1 \(b\): its disk is full$"):
        admission.introductions(store, 3)
    store.add = lambda key, amount: 3  # type: ignore[attr-defined]
    admission.give_up(store, 3, replace(FIRST, trouble="it has no plan"))
    assert admission.answer(store) == Invitation(error="rank 0 (a): it has no plan", code=2)


def test_a_refusal_is_what_an_answer_has() -> None:
    store = KeptStore(answer=json.dumps({"error": "another plan", "code": 2}).encode())
    store.add = lambda key, amount: amount  # type: ignore[attr-defined]
    assert admission.answer(store) == Invitation(error="another plan", code=2)


# --- what is believed ----------------------------------------------------------------------------


def test_a_path_is_measured_by_words_and_by_data() -> None:
    measuring: list[threading.Thread] = []
    measured: list[PathMeasured] = []

    def other_end(place: PathOpened) -> None:
        measuring.append(threading.Thread(target=lambda: measured.append(measure_path(place.address, place.port))))
        measuring[0].start()

    served = serve_path("127.0.0.1", other_end)
    measuring[0].join(30)
    assert served.received_bytes <= MOST_BYTES + 2**20
    assert 0 < served.half_bytes <= served.received_bytes
    assert served.half_s > 0
    assert len(measured[0].round_trips_s) == WORDS
    assert measured[0].sent_bytes == served.received_bytes


LINK = ("paris--warsaw",)
THERE = MeasuredPath("paris", "warsaw", 0, 1, 20e-3, 19e-3, 1e9, 10**8, 20e-3, 10e-3, 1e9, LINK, LINK)
BACK = replace(THERE, source="warsaw", target="paris")


def as_written(hint: str, directory: Path) -> list[Direction]:
    """The directions of a topology that has the link of a hint."""
    (link,) = yaml.safe_load(hint.partition(": ")[2])
    network = {"name": "measured", "datacenters": {"paris": {"nodes": 1}, "warsaw": {"nodes": 1}}, "links": [link]}
    file = directory / "measured.yaml"
    file.write_text(yaml.safe_dump(network))
    return load_topology(file).directions()


def test_a_topology_that_is_right_needs_no_hint() -> None:
    assert hints([THERE, BACK]) == []
    assert hints([replace(THERE, round_trip_s=20.3e-3, rate_bps=0.95e9), BACK]) == []


@pytest.mark.parametrize("rates", [(0.4e9, 0.41e9), (0.4e9, 0.8e9)], ids=["alike", "one way slower"])
@pytest.mark.parametrize("believed_s", [10e-3, 2e-3], ids=["alike", "one way longer"])
def test_a_hint_can_be_put_into_a_topology(tmp_path: Path, rates: tuple[float, float], believed_s: float) -> None:
    """What is missing of the round trip may be on either way; rates are each way's own."""
    believed = (believed_s, 20e-3 - believed_s)
    measured = [
        replace(one, round_trip_s=30e-3, rate_bps=rate, believed_delay_s=delay_s)
        for one, rate, delay_s in zip((THERE, BACK), rates, believed, strict=True)
    ]
    (hint,) = hints(measured)
    there, back = as_written(hint, tmp_path)
    assert (there.delay_s, back.delay_s) == pytest.approx([each + 5e-3 for each in believed])
    wanted = (min(rates), min(rates)) if rates[1] < 0.5e9 else rates
    assert (there.rate_bps, back.rate_bps) == pytest.approx(wanted)


def test_a_hint_leaves_delays_that_are_right(tmp_path: Path) -> None:
    measured = [replace(THERE, rate_bps=0.4e9, believed_delay_s=1e-3), replace(BACK, believed_delay_s=19e-3)]
    (hint,) = hints(measured)
    there, back = as_written(hint, tmp_path)
    assert (there.delay_s, back.delay_s) == pytest.approx((1e-3, 19e-3))
    assert (there.rate_bps, back.rate_bps) == pytest.approx((0.4e9, 1e9))


def test_a_hint_names_no_delay_below_none(tmp_path: Path) -> None:
    short = [replace(THERE, believed_delay_s=1e-3), replace(BACK, believed_delay_s=19e-3)]
    (hint,) = hints([replace(one, round_trip_s=6e-3) for one in short])
    there, back = as_written(hint, tmp_path)
    assert (there.delay_s, back.delay_s) == pytest.approx((0.0, 6e-3))


def test_a_hint_keeps_the_name_of_a_link(tmp_path: Path) -> None:
    named = [replace(one, links=("fibre",), links_back=("fibre",), rate_bps=0.4e9) for one in (THERE, BACK)]
    (hint,) = hints(named)
    assert {direction.link for direction in as_written(hint, tmp_path)} == {"fibre"}


def test_of_a_path_over_several_links_only_their_sum_is_known() -> None:
    two = ("berlin--paris", "berlin--warsaw")
    far = [replace(THERE, round_trip_s=40e-3, links=two, links_back=two[::-1])]
    (hint,) = hints([*far, replace(BACK, round_trip_s=40e-3, links=two[::-1], links_back=two)])
    assert hint == (
        "between paris, warsaw the topology has berlin--paris, berlin--warsaw; measured 40 ms there and back over all "
        "of them, and 1 Gbit/s and 1 Gbit/s"
    )
    (hint,) = hints([replace(THERE, rate_bps=0.4e9, links_back=two[::-1]), replace(BACK, links=two[::-1])])
    assert "the topology has paris--warsaw there, and back berlin--paris, berlin--warsaw; measured 20 ms" in hint


# --- what the documentation says -----------------------------------------------------------------


def test_torchrun_takes_the_commands_that_the_page_has() -> None:
    from torch.distributed.run import get_args_parser

    root: Any = typer.main.get_command(app)
    page = (Path(__file__).parents[2] / "docs/wan.md").read_text(encoding="utf-8")
    lines = [line for block in blocks(page) for line in block.splitlines() if line.startswith("torchrun ")]
    assert len(lines) == 4
    for number, line in enumerate(lines):
        found = get_args_parser().parse_args(shlex.split(line)[1:])
        assert (found.node_rank, found.module, found.training_script) == (number, True, "testbed")
        command, *words = found.training_script_args
        root.commands[command].make_context(command, words)


def blocks(page: str) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_every_key_of_a_path_is_documented() -> None:
    assert {field.name for field in fields(MeasuredPath)} == documented("wan.json: an entry of `paths`")


def test_who_puts_things_in_order_behind_torchruns_word_does_not_wait_for_it_again() -> None:
    """Where the keeper of rank 0 is gone then, that is because torchrun ended it: nothing else is said."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(EndedByTorchrun):
        wan_session._ended_by_torchrun()
    try:
        with pytest.raises(EndedByTorchrun, match="torchrun has ended rank 0"):
            remote_workers.wait_for_torchrun(0)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_end_by_torchrun_is_taken_for_no_bad_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may come while a message is read, where whatever is wrong makes it none; then its sender counts as gone."""
    ours, theirs = Pipe()
    theirs.send(PathMeasured((1.0,), 1))

    def interrupted(unpickler: object, module: str, name: str) -> object:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was not heard")

    monkeypatch.setattr(received._ValuesOnly, "find_class", interrupted)
    before = signal.signal(signal.SIGTERM, wan_session._ended_by_torchrun)
    try:
        with pytest.raises(EndedByTorchrun, match="torchrun has ended rank 0"):
            received.receive(ours)
    finally:
        signal.signal(signal.SIGTERM, before)
