"""What is no good input, and what cannot be written: each is one line, at once, with nothing left behind."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from in_process import run_testbed

from testbed.errors import BadInput, RunFailed, shown
from testbed.files import read_bytes, read_json, replacing, saving, write_output
from testbed.plan.routes import shortest
from testbed.planning.resolve import load_plan, network_of
from testbed.spec import load_topology, load_workload
from testbed.spec.yaml_tree import MOST_NODES, parse

ROOT = Path(__file__).parents[2]
LONGHAUL, PP4 = ROOT / "topologies/two-dc-longhaul.yaml", ROOT / "workloads/tiny-gpt-pp4.yaml"


def called(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, `before` it a line of a shell such as a limit."""
    script = f'{before}\nexec "$@"'
    command = ["/bin/sh", "-c", script, "sh", sys.executable, "-m", "testbed", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


# --- YAML ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("Off", "Off"),
        ("12:30:45", "12:30:45"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0o17", 15),
        ("0x1f", 31),
        ("-7", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("~", None),
        ("'017'", "017"),
        ("[a, *b]", None),
        ("{a: &x {n: 1}, b: *x}", {"a": {"n": 1}, "b": {"n": 1}}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    if text == "[a, *b]":
        with pytest.raises(BadInput, match=r"got '\*b', expected an alias of an anchor above it"):
            parse(text, "f")
        return
    assert parse(text, "f") == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 017", "f: a (line 1): got '017', expected a number without 0 in front"),
        ("a: !!int x", "f: a (line 1): got '!!int', expected a value without a tag"),
        ("a: !!timestamp x", "f: a (line 1): got '!!timestamp', expected a value without a tag"),
        ('a: "\\UFFFFFFFF"', "expected valid YAML"),
        ('a: "\\uD800"', "expected"),
        ("a: " + "9" * 5000, "expected a number of at most 18 digits"),
        ("a: 1e999", "f: a (line 1): got '1e999', expected a finite number"),
        ("a: .nan", "f: a (line 1): got '.nan', expected a finite number"),
        ("a: [" + "[" * 5000, "expected at most 32 levels of nesting"),
        ("{" * 5000, "expected a name (text) as key"),
        ("a: &x [*x]", "f: a.0 (line 1): got '*x', expected an alias of an anchor above it"),
        ("1: a", "f: document (line 1): got 1, expected a name (text) as key"),
        ("a: 1\nb: 2\na: 3", "f: a (line 3): got 'the same key twice', expected every key once"),
        ("a: 1\n---\nb: 2", "expected one document"),
    ],
)
def test_what_yaml_must_not_be(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text, "f")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_bomb_of_aliases_is_refused_at_once(tmp_path: Path) -> None:
    names = "abcdefghij"
    lines = ["x: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in itertools.pairwise(names)]
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join(lines))
    assert file.stat().st_size < 504
    began = time.process_time()
    with pytest.raises(BadInput, match=f"at most {MOST_NODES} values, aliases spelt out"):
        load_topology(file)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("key", ["", ".", "microbatches.x", "schedules.9.memory", "schedules.-1", "x" * 5000])
@pytest.mark.parametrize("value", ["1", "[" * 5000, '"\\UFFFFFFFF"', "9" * 6000, "!!int x", "*a"])
def test_a_bad_setting_is_one_line(key: str, value: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_workload(PP4, {key: value})
    assert str(PP4) in str(caught.value)
    assert len(str(caught.value)) < 900


def test_a_setting_reaches_into_lists() -> None:
    workload = load_workload(PP4, {"schedules.0.memory": "16", "schedules.1.memory": "5"})
    assert [choice.memory for choice in workload.schedules[:2]] == [16, 5]
    assert workload.schedules[1].schedule == "1f1b"


# --- what is accepted ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "field", "expected"),
    [
        ({"microbatches": "yes"}, "microbatches", "a whole number"),
        ({"microbatches": "true"}, "microbatches", "a whole number"),
        ({"microbatches": "12:30:45"}, "microbatches", "a whole number"),
        ({"microbatches": "'8'"}, "microbatches", "a whole number"),
        ({"microbatches": "8.0"}, "microbatches", "a whole number"),
        ({"recompute": "yes"}, "recompute", "true or false"),
        ({"pacing.F": "1e300 s"}, "pacing.F", "a time from 0 to 3600 s"),
        ({"pacing.I": "[1 ms, 1 ms, 1 ms, 2]"}, "pacing.I.3", "a time with a unit"),
        ({"memory": "1e300"}, "memory", "microbatches in flight from 1 to 1000000"),
        ({"memory": "[4, 4, 4, 0]"}, "memory.3", "microbatches in flight from 1 to 1000000"),
        ({"message": "1e9 GB"}, "message", "a size above 0, at most 1 GB"),
        ({"model.sequence": "8192", "model.d_model": "8192", "microbatch_size": "4096"}, "microbatch_size", "1 GB"),
    ],
)
def test_nonsense_is_refused_with_index_and_unit(settings: dict[str, str], field: str, expected: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_workload(PP4, settings)
    assert f"{PP4}: {field}: got " in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("second", ["[paris, warsaw]", "[warsaw, paris]"])
def test_two_links_between_one_pair_need_names(second: str) -> None:
    link = "{fibre: 1 km, rate: 1 Gbit/s, between: "
    with pytest.raises(BadInput, match=r"links.1.name: got .*, expected a name that links.0 has not"):
        load_topology(LONGHAUL, {"links": f"[{link}[paris, warsaw]}}, {link}{second}}}]"})
    named = load_topology(LONGHAUL, {"links": f"[{link}[paris, warsaw]}}, {link}{second}, name: south}}]"})
    assert len(named.links) == 2


def test_a_fault_behind_the_files_names_the_file() -> None:
    with pytest.raises(BadInput) as caught:
        load_plan(LONGHAUL, PP4, settings=["parallelism.pipeline=9", "model.layers=9"])
    assert str(caught.value).startswith(f"{PP4}: parallelism.pipeline: got 9, expected ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "a", "b", "--wall-limit", "-5"), "testbed run: --wall-limit: got '-5', expected at least 1"),
        (("run", "a", "b", "--wall-limit", "nan"), "testbed run: --wall-limit: got 'nan', expected"),
        (("plan", str(LONGHAUL), str(PP4), "--seed", "3"), "--seed: option: got 3, expected --clock virtual beside it"),
        (
            ("run", str(LONGHAUL), str(PP4), "--wall-limit", "60"),
            "--wall-limit: option: got 60.0, expected --clock virtual or --vm beside it",
        ),
        (
            ("baseline", "check", "--predict-only", "--wall-limit", "60"),
            "--wall-limit: option: got 60.0, expected --clock virtual or --vm beside it",
        ),
        (
            ("run", str(LONGHAUL), str(PP4), "--clock", "virtual", "--host-priority", "off"),
            "--host-priority: option: got 'off', expected a lab on this machine",
        ),
        (
            ("calibrate", str(LONGHAUL), "--vm", "--host-priority", "on"),
            "--host-priority: option: got 'on', expected a lab on this machine",
        ),
        (
            ("calibrate", str(LONGHAUL), "--engine", str(PP4), "--beside-mininet"),
            "--beside-mininet: option: got '--engine', expected links that are measured",
        ),
        (("calibrate", str(LONGHAUL), "--vm", "--clock", "virtual"), "--vm: clock: got 'virtual', expected real"),
        (("run", str(LONGHAUL), str(PP4), "--vm", "--clock", "virtual"), "--vm: clock: got 'virtual', expected real"),
        (("calibrate", str(LONGHAUL), "--seed", "3"), "--seed: option: got 3, expected --clock virtual beside it"),
        (
            ("route", str(LONGHAUL), str(PP4), "--schedule", "1f1b", "--schedule", "zb-h1"),
            "--schedule: option: got 'zb-h1', expected one, which all routes are for (1f1b)",
        ),
        (("predict", "--fastest"), "testbed predict: option: got '--fastest', expected an option that there is"),
        (("run", "a", "b", "--clock", "blue"), "testbed run: --clock: got 'blue', expected one of 'real', 'virtual'"),
        (("predict",), "testbed predict: TOPOLOGY|PLAN: got 'nothing', expected it to be given"),
        (
            ("run", "a", "b", "--out", "--light"),
            "run: --out: got '--light', expected its value: another",
        ),
        (
            ("run", "a", "b", "--adapt", "--iterations", "6"),
            "run: --adapt: got '--iterations', expected its value",
        ),
        (("predict", "a", "b", "--set", "--set=c=1"), "testbed predict: --set: got '--set=c=1', expected its value"),
        (("run", str(LONGHAUL), str(PP4), "--iterations", "0"), "--iterations: got '0', expected at least 1"),
        (
            ("predict", "a", "b", "--background", "x.csv", "--event", "x", "--event", "y", "--background=y.csv"),
            "testbed predict: --background: got 'y.csv', expected it once, not beside 'x.csv'",
        ),
        (
            ("plan", "a", "b", "--chaos", "mtbf=1 s", "--chaos", "mtbf=2 s"),
            "testbed plan: --chaos: got 'mtbf=2 s', expected it once, not beside 'mtbf=1 s'",
        ),
    ],
)
def test_options_are_refused_in_one_line(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from testbed.cli import main

    monkeypatch.setattr(sys, "argv", ["testbed", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert len(said.splitlines()) == 1


def test_values_are_shortened() -> None:
    for value in (
        "x" * 10**6,
        ["x"] * 10**6,
        {str(n): n for n in range(1000)},
        10**4000,
        [[[[[[1]]]]]],
        "\x00\n\u202e",
    ):
        text = shown(value)
        assert len(text) <= 100
        assert text.isprintable()


# --- what was meant ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("predict", PP4, LONGHAUL),
            f"{PP4}: file: got 'a workload', expected a topology (the order is TOPOLOGY WORKLOAD)",
        ),
        (("predict", LONGHAUL, LONGHAUL), "file: got 'a topology', expected a workload (behind the topology"),
        (("predict", LONGHAUL, PP4, "--set", "microbatch=2"), "expected no such field (did you mean microbatches?)"),
        (
            ("predict", LONGHAUL, PP4, "--set", "topology.links.0.fiber=1 km"),
            "links.0.fiber: got '1 km', expected no such field (did you mean fibre?)",
        ),
        (("predict", LONGHAUL, PP4, "--set", "model.layer=3"), "model.layer: got 3, expected no such field (did you"),
        (("predict", LONGHAUL, PP4, "--set", "zzz=2"), "expected no such field (is it misspelt?)"),
        (("predict", LONGHAUL, PP4, "--schedule", "crosspipe-gredy"), "(did you mean crosspipe-greedy?)"),
        (("predict", LONGHAUL, PP4, "--set", "schedules=[1f11b]"), "(did you mean 1f1b?)"),
        (("route", LONGHAUL, PP4, "--policy", "ecpm"), "(did you mean ecmp?)"),
        (("route", LONGHAUL, PP4, "--policy", "ecmp,sed=1"), "(did you mean seed?)"),
        (
            ("route", LONGHAUL, PP4, *(2 * ["--policy", "greedy"])),
            "--policy: policy: got 'greedy', expected every policy once",
        ),
        (("predict", "two-dc-longhal", PP4), "the name of a preset (did you mean two-dc-longhaul?)"),
        (("predict", "topologies/two-dc-longhal.yaml", PP4), "(did you mean topologies/two-dc-longhaul.yaml?)"),
        (("predict", "zzz", PP4), "zzz: file: got 'No such file or directory', expected a YAML file, or the name of"),
        (("predict", "two-dc-longhaul"), "two-dc-longhaul: WORKLOAD: got 'nothing', expected a workload after"),
        (("predict", "two-dc-longhal"), "expected a plan, or TOPOLOGY WORKLOAD (did you mean two-dc-longhaul?)"),
        (("predict", "tiny-gpt-pp4", "two-dc-longhaul"), "tiny-gpt-pp4: file: got 'a workload', expected a topology"),
        (("predict", LONGHAUL, "tiny-gpt-pp44.yaml"), "(did you mean tiny-gpt-pp4?)"),
    ],
)
def test_what_may_have_been_meant_is_named(arguments: tuple[str, ...], said: str) -> None:
    done = run_testbed(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_all_faults_of_a_file_are_said_at_once() -> None:
    wrong = ("microbatch=3", "model.layer=3", "model.hed=2", "memory=0", "pacing.F=[1 ms, x, 1 ms, 1 ms]")
    done = run_testbed("predict", LONGHAUL, PP4, *(f"--set={one}" for one in wrong))
    head, *lines = done.stderr.splitlines()
    assert (done.returncode, head) == (2, f"error: {PP4}: 5 faults")
    fields = {line.partition(": got ")[0].strip() for line in lines}
    assert fields == {"microbatch", "model.layer", "model.hed", "memory", "pacing.F.1"}
    assert all(", expected " in line for line in lines)
    many = [f"--set=wrong{number}=1" for number in range(20)]
    assert run_testbed("predict", LONGHAUL, PP4, *many).stderr.splitlines()[-1] == "  and 8 more"


# --- files ---------------------------------------------------------------------------------------


def test_only_regular_files_of_some_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"")
    os.truncate(tmp_path / "large", 10**12)
    for path, found in (
        (Path("/dev/zero"), "a device"),
        (tmp_path / "pipe", "a pipe"),
        (tmp_path, "a directory"),
        (tmp_path / "none", "No such file"),
        (Path("a\0b"), "null"),
        (tmp_path / "large", "1000000000000 bytes"),
    ):
        with pytest.raises(BadInput, match=found):
            read_bytes(path, 1000)


@pytest.mark.parametrize(
    "text", ["NaN", '{"a": Infinity}', '{"a": 1e999}', '{"a": ' + "9" * 5000 + "}", "[" * 10**5, "[1]"]
)
def test_json_is_an_object_with_finite_numbers(tmp_path: Path, text: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(BadInput, match=r"f\.json: file: got .* expected .*a plan"):
        read_json(tmp_path / "f.json", "a plan")


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with suppress(ZeroDivisionError), replacing(target) as partial:
        partial.write_text("new")
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert target.read_text() == "old"
    write_output(target, "new", "--out")
    assert [path.name for path in tmp_path.iterdir()] == ["out.txt"]
    assert target.read_text() == "new"
    link = tmp_path / "link"
    link.symlink_to(target)
    write_output(link, "newer", "--out")
    assert link.is_symlink()
    assert target.read_text() == "newer"


def test_a_device_is_written_to_and_stays() -> None:
    write_output(Path("/dev/null"), "x", "--out")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(BadInput, match=r"--out: file: got '/dev/full', expected a file that can be written \(No space"):
        write_output(Path("/dev/full"), "x", "--out")
    assert Path("/dev/full").is_char_device()
    with (
        pytest.raises(RunFailed, match="/dev/full cannot be written: No space left"),
        saving(Path("/dev/full")) as file,
    ):
        file.write_text("x")


@pytest.mark.parametrize(("command", "option"), [("plan", "-o"), ("schedule export --schedule 1f1b", "--out")])
def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, command: str, option: str) -> None:
    """A limit on the size of files stands for the disk: writing ends in the same way."""
    words = [*command.split(), str(LONGHAUL), str(PP4), option, str(tmp_path / "out")]
    done = called(*words, before="ulimit -f 0")
    assert done.returncode == 2, done.stderr
    assert "expected a file that can be written (File too large)" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_output_that_nobody_takes_is_no_traceback() -> None:
    done = called("predict", str(LONGHAUL), str(PP4), "--json", before="exec >/dev/full")
    assert (done.returncode, done.stderr) == (4, "error: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("cache", ["/proc/nowhere", ""], ids=["no place", "no room"])
def test_code_is_compiled_where_it_cannot_be_kept(tmp_path: Path, cache: str) -> None:
    """Neither where the cache has no directory, nor where that is full when the machine code comes."""
    (tmp_path / "adding.py").write_text("COMPILED = ('add',)\ndef add(x):\n    return x + 1\n")
    script = (
        "import resource, sys; sys.path.insert(0, sys.argv[1]); import adding\n"
        "from testbed.model import compile; print(compile.cache_directory([adding]) is None)\n"
        "add = compile.compiled_modules([adding]).add\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); print(add(1))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    environment = os.environ | {"XDG_CACHE_HOME": cache or str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"{bool(cache)}\n2\n", done.stderr


def test_a_kernel_cache_that_cannot_be_written_names_the_way_out() -> None:
    done = called("kernel", "build", "--quiet", XDG_CACHE_HOME="/proc/nowhere")
    assert done.returncode == 3, done
    assert "XDG_CACHE_HOME" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- routes --------------------------------------------------------------------------------------


def test_a_mesh_of_sixty_datacenters_is_routed_in_a_moment(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(60)]
    document = {
        "name": "mesh",
        "datacenters": {name: {"nodes": 1} for name in names},
        "links": [
            {"between": [a, b], "delay": f"{1 + (number * 7) % 5} ms", "rate": "1 Gbit/s"}
            for number, (a, b) in enumerate(itertools.combinations(names, 2))
        ],
    }
    (tmp_path / "mesh.yaml").write_text(json.dumps(document))
    began = time.process_time()
    network = network_of(load_topology(tmp_path / "mesh.yaml"))
    assert time.process_time() - began < 15, "it took 30 s, and takes less than 2"
    assert len(network.routes) == 60 * 59
    for one in network.routes[::300]:
        assert one.route == shortest(network.directions, one.source, one.target)


@pytest.mark.parametrize("command", ["predict", "run"])
def test_a_plan_that_left_schedules_out_is_refused_where_all_are_asked_for(command: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run_testbed("plan", LONGHAUL, PP4, "--set", "memory=3", "-o", plan).returncode == 0
    done = run_testbed(command, plan, "--strict")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {plan}: left_out: {PP4}: memory: schedule 1f1b: rank 0")
    assert run_testbed("predict", plan).returncode == 0
