"""The wheel, built and installed by pip in a clean environment outside the checkout: what predicts works there by name
alone, and what needs more than predicting names the command that adds it.

Nothing is downloaded: what the wheel asks for, and nothing else, is linked from the packages of this environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from ast import literal_eval
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from in_process import Done, run_testbed
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from testbed import __version__
from testbed.extras import PACKAGES

ROOT = Path(__file__).parents[2]
SOURCES = ("testbed", "topologies", "workloads", "studies", "setup.py", "pyproject.toml", "README.md", "LICENSE")
PRESETS = sorted([*ROOT.glob("topologies/*.yaml"), *ROOT.glob("workloads/*.yaml"), *ROOT.glob("studies/*.yaml")])
NAMES = ("two-dc-longhaul", "tiny-gpt-pp4")
BUILD = "from setuptools import build_meta; build_meta.build_sdist('out'); build_meta.build_wheel('out')"
LIMIT_S = 240


def call(directory: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command elsewhere, of which this checkout and its environment are not seen."""
    seen = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        list(map(str, words)),
        cwd=directory,
        env=seen | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def copy_sources(directory: Path) -> None:
    """What a wheel is built from; building writes beside it."""
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, directory / name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel and the source distribution."""
    sources = tmp_path_factory.mktemp("sources")
    copy_sources(sources)
    done = call(sources, sys.executable, "-c", BUILD)
    assert done.returncode == 0, done.stderr
    return sources / "out"


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def needed(wheel: Path) -> set[str]:
    """All packages that pip would install with the wheel and no extra."""
    with ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    asked = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    found: set[str] = set()
    while asked:
        requirement = Requirement(asked.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            asked += distribution(name).requires or ()
    return found


def site_packages(directory: Path) -> Path:
    (found,) = directory.glob("env/lib/python3.*/site-packages")
    return found


def link_packages(names: set[str], packages: Path) -> None:
    """Have packages of this environment in another one."""
    for found in map(distribution, names):
        tops = {Path(str(file)).parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (packages / top).exists():  # of several packages
                (packages / top).symlink_to(str(found.locate_file(top)))


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean environment with the wheel and what it asks for."""
    directory = tmp_path_factory.mktemp("elsewhere")
    made = call(directory, sys.executable, "-m", "venv", "--without-pip", "env")  # its own takes as long as all else
    assert made.returncode == 0, made.stdout + made.stderr
    pip = (sys.executable, "-m", "pip", "--python", "env/bin/python", "install")
    done = call(directory, *pip, "--no-index", "--no-deps", wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    link_packages(needed(wheel), site_packages(directory))
    return directory


def ask(elsewhere: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return call(elsewhere, "env/bin/testbed", *words, COLUMNS="80")


IN_TURN = """
import json, sys
from in_process import run_testbed
done = [run_testbed(*words, directory=".", COLUMNS="80") for words in json.load(sys.stdin)]
json.dump(done, sys.stdout)
"""


def ask_in_turn(elsewhere: Path, commands: Sequence[tuple[str, ...]]) -> list[Done]:
    """What each command says, in one process of that environment: to start one takes longer than most of them."""
    done = subprocess.run(
        [elsewhere / "env/bin/python", "-c", f"import sys; sys.path.append({str(ROOT / 'tests')!r})\n{IN_TURN}"],
        cwd=elsewhere,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*each) for each in json.loads(done.stdout)]


def test_presets_are_in_the_wheel_and_in_the_source_distribution(built: Path, wheel: Path) -> None:
    wanted = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in PRESETS}
    assert len(wanted) > 20
    with ZipFile(wheel) as archive:
        of_wheel = {name: archive.read(name) for name in archive.namelist() if name.endswith(".yaml")}
    assert of_wheel == {f"testbed/{name}": content for name, content in wanted.items()}
    (sources,) = built.glob("*.tar.gz")
    with tarfile.open(sources) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert names >= {*wanted, "setup.py", "testbed/vm/uml-tt.config"}


def test_the_wheel_has_every_module_and_nothing_beside_the_package(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "testbed").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert {name.partition("/")[0] for name in names} == {"testbed", f"testbed-{__version__}.dist-info"}


def test_predicting_by_name_is_what_it_is_in_the_checkout(elsewhere: Path) -> None:
    done = ask(elsewhere, "predict", *NAMES, "--json")
    assert done.returncode == 0, done.stderr
    here = run_testbed("predict", "topologies/two-dc-longhaul.yaml", "workloads/tiny-gpt-pp4.yaml", "--json")
    assert json.loads(done.stdout) == json.loads(here.stdout)
    where = call(elsewhere, "env/bin/python", "-c", "import testbed; print(testbed.__file__)")
    assert Path(where.stdout).is_relative_to(elsewhere), where.stdout + where.stderr
    script = f"import importlib.util as u; print([name for name in {PACKAGES['train']} if u.find_spec(name)])"
    brought_by_others = {"pandas", "setuptools"}  # by ortools; by Python 3.11's venv
    assert {*literal_eval(call(elsewhere, "env/bin/python", "-c", script).stdout)} <= brought_by_others


PREDICTS = [
    ("presets",),
    ("plan", *NAMES, "-o", "plan.json"),
    ("predict", *NAMES, "--set", "schedules=[{schedule: crosspipe-ud, time_limit_s: 1}]"),
    ("schedule", "compare", *NAMES, "--schedule", "zb-h1", "--schedule", "gpipe"),
    ("schedule", "show", *NAMES, "--svg", "timelines.svg"),
    ("schedule", "export", *NAMES, "--schedule", "1f1b"),
    ("knee", *NAMES, "--points", "3", "--schedule", "1f1b"),
    ("tune", *NAMES),
    ("route", "nsfnet", "paper-llama2-13b", "--policy", "ilp", "--schedule", "1f1b"),
    ("compare-axes", "paper-llama3-405b", "--delay", "4 ms", "--rate", "32 Gbit/s", "--picture", "axes.svg"),
]


def test_what_predicts_needs_no_extra(elsewhere: Path) -> None:
    for words, done in zip(PREDICTS, ask_in_turn(elsewhere, PREDICTS), strict=True):
        assert done.returncode == 0, (words, done.stderr)


def test_a_baseline_is_saved_and_checked_by_the_model_alone(elsewhere: Path) -> None:
    commands = [
        ("save", "mine", *NAMES, "--predict-only", "--quiet"),
        ("check", "--quiet"),
        ("check", "--quiet", "--set", "pacing.F=21 ms"),
        ("list", "--json"),
    ]
    saved, same, longer, listed = ask_in_turn(elsewhere, [("baseline", *words) for words in commands])
    assert (saved.returncode, saved.stdout) == (0, "saved results/baselines/mine/\n"), saved.stderr
    assert same.returncode == 0, same.stderr
    assert longer.returncode == 1, longer.stderr
    assert [row["name"] for row in json.loads(listed.stdout)["baselines"]] == ["mine"]


NEEDS_MORE = [
    (("run", *NAMES), "train", "torch"),
    (("run", *NAMES, "--clock", "virtual"), "train", "torch"),
    (("calibrate", "two-dc-longhaul"), "train", "torch"),
    (("calibrate", "two-dc-longhaul", "--engine", "tiny-gpt-pp4"), "train", "torch"),
    (("shell", "two-dc-longhaul"), "train", "torch"),
    (("test-determinism", *NAMES), "train", "torch"),
    (("knee", *NAMES, "--measure", "1"), "train", "torch"),
    (("compare-axes", "paper-llama3-405b", "--measure", "1", "--out", "axes"), "train", "torch"),
    (("baseline", "save", "measured", *NAMES), "train", "torch"),
    (("baseline", "save", "measured", "--run", "results/x"), "report", "pyarrow"),
    (("report", "results/x"), "report", "pyarrow"),
]


def test_what_needs_an_extra_names_the_command_that_adds_it(elsewhere: Path) -> None:
    before = sorted(elsewhere.iterdir())
    every = ask_in_turn(elsewhere, [words for words, _, _ in NEEDS_MORE])
    for (words, extra, missing), done in zip(NEEDS_MORE, every, strict=True):
        assert (done.returncode, done.stdout) == (3, ""), (words, done.stderr)
        (said,) = done.stderr.splitlines()
        assert f"{missing}: not installed (extra {extra}); add it with: " in said, words
        command = said.partition("; add it with: ")[2]
        assert command.startswith(f"{elsewhere}/env/bin/python -m pip install ")
        assert all(name in command for name in PACKAGES["report" if extra == "report" else "train"]), command
        assert "testbed[" not in command, "an index may have another project of that name"
    assert sorted(elsewhere.iterdir()) == before, "refused before anything is written"


def test_the_doctor_says_what_is_missing(elsewhere: Path) -> None:
    done = ask(elsewhere, "doctor", "--json")
    assert done.returncode == 3, done.stderr
    found = {row["name"]: row for row in json.loads(done.stdout)["findings"]}
    for name in ("torch", "mininet"):
        assert not found[name]["ok"]
        assert "pip install" in found[name]["remedy"]


def test_a_module_of_an_extra_that_is_missed_later_is_no_unforeseen_error(elsewhere: Path) -> None:
    script = (
        "from testbed.failure import failed\n"
        "try: import testbed.train.stage\n"
        "except ImportError as error: raise SystemExit(failed(error))\n"
    )
    done = call(elsewhere, "env/bin/python", "-c", script)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("error: torch: not installed (extra train); add it with: ")
    assert len(done.stderr.splitlines()) == 1


def test_an_editable_installation_reads_the_presets_where_they_lie(tmp_path: Path) -> None:
    """As `make setup` makes it."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    copy_sources(checkout)
    done = call(checkout, sys.executable, "-c", "from setuptools import build_meta; build_meta.build_editable('..')")
    assert done.returncode == 0, done.stderr
    assert call(tmp_path, sys.executable, "-m", "venv", "--without-pip", "env").returncode == 0
    (editable,) = tmp_path.glob("*.whl")
    with ZipFile(editable) as archive:
        archive.extractall(site_packages(tmp_path))
    link_packages(needed(editable), site_packages(tmp_path))
    script = "from testbed.spec.presets import preset_files; print(*preset_files('topologies').values(), sep='\\n')"
    listed = call(tmp_path, "env/bin/python", "-c", script)
    assert listed.stdout.splitlines() == list(map(str, sorted(checkout.glob("topologies/*.yaml")))), listed.stderr
