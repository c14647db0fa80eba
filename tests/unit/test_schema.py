"""The JSON Schema of files: what the testbed reads it accepts, what is refused for its shape it refuses as well."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from damage import damaged
from in_process import run_testbed
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from testbed import plugins
from testbed.errors import BadInput
from testbed.pipeline.ir import Schedule
from testbed.pipeline.problem import Problem
from testbed.planning.file_schemas import KINDS, schema_of
from testbed.planning.resolve import BEST
from testbed.schedule.registry import check_choice
from testbed.spec import Topology, Workload, load_workload
from testbed.spec.clos import spelt_out
from testbed.spec.document import read_yaml, validate
from testbed.spec.model import MODELS
from testbed.spec.study import StudySpec

ROOT = Path(__file__).parents[2]
FILES = [
    *((path, "topology") for path in sorted((ROOT / "topologies").glob("*.yaml"))),
    *((path, "workload") for path in sorted((ROOT / "workloads").glob("*.yaml"))),
    *((path, "study") for path in sorted((ROOT / "studies").glob("*.yaml"))),
    *((path, "topology" if "clos" in path.name else "workload") for path in sorted((ROOT / "examples").glob("*.yaml"))),
]
PP4, FULL = ROOT / "workloads/tiny-gpt-pp4.yaml", ROOT / "workloads/paper-llama2-13b.yaml"


@cache
def schema(kind: str) -> Draft202012Validator:
    found = schema_of(kind)
    Draft202012Validator.check_schema(found)
    return Draft202012Validator(found)


def problem(kind: str, document: object) -> str:
    """What the schema has against a document; "" for one that it accepts."""
    error = best_match(schema(kind).iter_errors(document))
    return "" if error is None else f"{error.json_path}: {error.message}"


# --- what is written -----------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "kind"), FILES, ids=lambda value: getattr(value, "stem", value))
def test_every_shipped_file_is_accepted_and_names_its_schema(path: Path, kind: str) -> None:
    assert problem(kind, read_yaml(path)) == ""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# yaml-language-server: $schema=../docs/schema/{kind}.json"


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_in_docs_is_what_the_command_prints(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where no package has registered models or schedules: it would print those as well."""
    monkeypatch.setattr(plugins, "entry_points", lambda **_: ())
    printed = run_testbed("schema", kind)
    assert (printed.returncode, printed.stderr) == (0, "")
    committed = (ROOT / f"docs/schema/{kind}.json").read_text(encoding="utf-8")
    assert printed.stdout == committed, f"testbed schema {kind} -o docs/schema/{kind}.json makes it anew"


class _Registered(NamedTuple):
    """An entry point of an installed package."""

    name: str
    value: str
    dist: None = None

    def load(self) -> object:
        return {"their-model": MODELS["gpt"], "their-way": their_way, "exotic": exotic}[self.name]


class Side(StrEnum):
    left = "left"
    right = "right"


def their_way(problem: Problem, extra: int = 0, side: Side = Side.left) -> Schedule:
    raise NotImplementedError("only its options count here")


def exotic(problem: Problem, how: Callable[[int], int] = abs, where: Path | ModuleType = Path()) -> Schedule:
    raise NotImplementedError("only its options count here")


def test_what_a_package_registers_is_in_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"testbed.models": ["their-model"], "testbed.schedules": ["their-way", "exotic"]}

    def registered(group: str, name: str | None = None) -> list[_Registered]:
        return [_Registered(known, "m:x") for known in there.get(group, []) if name in (None, known)]

    ways = ["their-way", {"schedule": "their-way", "extra": 2, "side": "right"}, "exotic"]
    document = read_yaml(PP4) | {"schedules": ways}
    document["model"] = document["model"] | {"kind": "their-model"}
    assert problem("workload", document) != ""
    monkeypatch.setattr(plugins, "entry_points", registered)
    assert refusal("workload", document) is None
    anew = Draft202012Validator(schema_of("workload"))
    assert anew.is_valid(document)
    assert not anew.is_valid(document | {"model": document["model"] | {"width": 3}})
    for wrong in ({"n_sub": 2}, {"side": "up"}, {"extra": "2"}):
        assert not anew.is_valid(document | {"schedules": [{"schedule": "their-way", **wrong}]}), wrong
    assert anew.is_valid(document | {"schedules": [{"schedule": "exotic", "where": 3}]}), "nobody knows what it may be"
    assert not anew.is_valid(document | {"schedules": [{"schedule": "exotic", "when": 3}]})


def test_the_schema_is_written_to_a_file(tmp_path: Path) -> None:
    done = run_testbed("schema", "topology", "-o", tmp_path / "t.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "t.json").read_text(encoding="utf-8") == run_testbed("schema", "topology").stdout
    refused = run_testbed("schema", "topologie")
    assert refused.returncode == 2
    expected = "expected one of topology, workload, study (did you mean topology?)"
    assert refused.stderr == f"error: testbed schema: KIND: got 'topologie', {expected}\n"


def fields(found: Any, at: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every field of the objects in a schema, with its place; what only constrains one says no type of its object."""
    if isinstance(found, list):
        for each in found:
            yield from fields(each, at)
    elif isinstance(found, dict):
        if found.get("type") == "object":
            yield from ((f"{at}.{name}", one) for name, one in found.get("properties", {}).items())
        for key, value in found.items():
            yield from fields(value, f"{at}.{key}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described_and_has_a_default_that_it_accepts(kind: str) -> None:
    found = schema_of(kind)
    for at, field in fields(found):
        assert field.get("description"), at
        if "default" in field:
            field_schema = Draft202012Validator({"$defs": found["$defs"], **field})
            assert field_schema.is_valid(field["default"]), (at, field["default"])


# --- what is read --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        (PP4, {"pacing": {"F": "20 ms", "I": ["1,000 us"] * 4, "W": " 2e-2s ", "B": "40000µs"}}),
        (PP4, {"pacing": None}),
        (PP4, {"memory": [4, 4.5, 4, 4]}),
        (PP4, {"message": "1_000.5 kB"}),
        (PP4, {"placement": ["paris/0", "paris/1", "warsaw/0", "warsaw/1"]}),
        (PP4, {"schedules": [{"schedule": "geopipe", "extra": [3], "label": "3 more", "memory": None}]}),
        (PP4, {"schedules": [{"schedule": "search", "evaluations": None}, "best"]}),
        (PP4, {"full_scale": None, "lab": None}),
        (FULL, {"full_scale": {**read_yaml(FULL)["full_scale"], "model": {
            "hidden": 512, "layers": 8, "heads": 8, "vocabulary": 256}}}),
        (FULL, {"model": {"layers": 16, "d_model": 8, "heads": 1, "sequence": 8}}),
    ],
)  # fmt: skip
def test_every_form_that_is_read_is_accepted(path: Path, changes: dict[str, Any]) -> None:
    document = read_yaml(path) | changes
    assert refusal("workload", document) is None
    assert problem("workload", document) == ""


LINK = {"between": ["a", "b"], "delay": "1 ms", "rate": "1 Gbit/s"}
ONE_WAY = {"delay": "1 ms", "rate": "1 Gbit/s"}
SITES = {"a": {"nodes": 1}, "b": {"nodes": 1}}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("topology", {"datacenters": {"A": {"nodes": 1}}}),
        ("topology", {"datacenters": {}}),
        ("topology", {"datacenters": {"a": {"clos": {"leaves": 2, "spines": 1, "hosts": 1, "rate": "1 Gbit/s"},
                                            "nodes": 2}}}),
        ("topology", {"links": [LINK | {"rate": 1000}]}),
        ("topology", {"links": [LINK | {"rate": "1 GB/s"}]}),
        ("topology", {"links": [LINK | {"delay": "1"}]}),
        ("topology", {"links": [LINK | {"delay": True}]}),
        ("topology", {"links": [LINK | {"fiber": "1 km"}]}),
        ("topology", {"links": [LINK | {"between": ["a"]}]}),
        ("topology", {"links": [LINK | {"forward": {"between": ["a", "b"]}}]}),
        ("topology", {"links": [LINK | {"loss": 1}]}),
        ("topology", {"links": [LINK | {"loss": "100 %"}]}),
        ("topology", {"links": [LINK | {"loss": "0.01"}]}),
        ("topology", {"links": [LINK | {"delay": None, "forward": {"fibre": "1 km"}}]}),
        ("topology", {"links": [{"between": ["a", "b"], "delay": 0, "reverse": {"rate": "1 Mbit/s"}}]}),
        ("topology", {"routes": [{"source": "a", "target": "b", "via": ["a--b"]}]}),
        ("workload", {"microbatches": "8"}),
        ("workload", {"microbatches": True}),
        ("workload", {"pacing": {"F": 0.02, "I": "20 ms", "W": "20 ms"}}),
        ("workload", {"pacing": {"F": "20 ms", "I": ["1 ms", 2], "W": "20 ms"}}),
        ("workload", {"pacing": "off"}),
        ("workload", {"memory": 0}),
        ("workload", {"memory": ["4"]}),
        ("workload", {"model": {"layers": 8, "d_model": 64, "heads": 4, "sequence": 64, "width": 3}}),
        ("workload", {"model": {"kind": "gtp", "layers": 8}}),
        ("workload", {"model": {"kind": "my.py:Mlp"}}),
        ("workload", {"parallelism": {"pipeline": 4, "tensor": 3}}),
        ("workload", {"data_parallel": {"algorithm": "tree"}}),
        ("workload", {"schedules": ["1f11b"]}),
        ("workload", {"schedules": [{"schedule": "geopipe", "xtra": 3}]}),
        ("workload", {"schedules": [{"schedule": "1f1b", "n_sub": 4}]}),
        ("workload", {"schedules": [{"schedule": "crosspipe-greedy", "n_sub": 65}]}),
        ("workload", {"schedules": [{"schedule": "best", "extra": 1}]}),
        ("workload", {"schedules": [{"label": "x"}]}),
        ("workload", {"lab": {}}),
        ("workload", {"full_scale": read_yaml(FULL)["full_scale"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value)[:60],
)  # fmt: skip
def test_a_wrong_shape_is_refused_by_both(kind: str, changes: dict[str, Any]) -> None:
    good = {"name": "x", "datacenters": SITES, "links": [LINK]} if kind == "topology" else read_yaml(PP4)
    assert problem(kind, good) == ""
    assert refusal(kind, good | changes) is not None
    assert problem(kind, good | changes) != ""


@pytest.mark.parametrize("link", [{"forward": ONE_WAY, "reverse": ONE_WAY}, LINK | {"fibre": 0, "delay": None}])
def test_every_form_of_a_link_is_accepted(link: dict[str, Any]) -> None:
    document = {"name": "x", "datacenters": SITES, "links": [{"between": ["a", "b"], **link}]}
    assert (refusal("topology", document), problem("topology", document)) == (None, "")


@pytest.mark.parametrize("field", ["name", "parallelism", "schedules", "model", "microbatches", "pacing"])
def test_a_field_that_is_needed_is_missed(field: str) -> None:
    document = {key: value for key, value in read_yaml(PP4).items() if key != field}
    assert f"'{field}' is a required property" in problem("workload", document)
    assert refusal("workload", document) is not None


def refusal(kind: str, document: Any) -> str | None:
    """What the testbed has against a document; None where it takes it."""
    try:
        if kind == "topology":
            validate(Topology, spelt_out(document, "file"), "file")
            return None
        if kind == "study":
            validate(StudySpec, document, "file")
            return None
        workload = validate(Workload, document, "file")
        for choice in workload.schedules:
            if choice.schedule != BEST:
                check_choice(choice, "file", "schedules")
            elif choice.options():
                return "no such field"
    except BadInput as error:
        return str(error)
    return None


SHAPE = re.compile(
    r"expected (no such field|this field to be given|a whole number|a number\b|text\b|true or false|a list\b"
    r"|an option of|a rate for both directions|fibre, delay or both|a mapping of fields"
    r"|(a time|a rate|a size|a length|a rate of computation) with a unit|lower-case letters"
    r"|one of gpipe|a label in letters|a schedule's name|'\w+' or|at least [-\d]+$|at least 1 entry)",
    re.MULTILINE,
)
"""Of refusals, those that are about the shape of one field."""

NOT_IN_A_SCHEMA = re.compile(
    r"got -?\d+(\.\d*)?(e[+-]?\d+)?, expected a whole number"  # JSON does not tell 8.0 from 8
    r"|beside full_scale|which `times` multiplies"
)


@pytest.mark.parametrize("first", range(0, 1200, 200))
def test_damaged_files_are_judged_alike(first: int) -> None:
    """What the testbed takes, the schema takes; what it refuses for its shape, the schema refuses."""
    refused = taken = 0
    for seed in range(first, first + 200):
        rng = random.Random(seed)
        path, kind = rng.choice(FILES)
        if path.parent.name == "examples" and kind == "workload":
            continue  # its files lie beside it
        document = damaged(read_yaml(path), rng)
        if not isinstance(document, dict):
            continue
        said, found = refusal(kind, document), problem(kind, document)
        if said is None:
            taken += 1
            assert found == "", (seed, path.name)
        elif SHAPE.search(said) and not NOT_IN_A_SCHEMA.search(said):
            refused += 1
            assert found != "", (seed, path.name, said)
    assert refused > 50
    assert taken > 10


def test_a_file_of_ones_own_is_read_as_the_schema_says() -> None:
    document = read_yaml(ROOT / "examples/my_job.yaml")
    assert load_workload(ROOT / "examples/my_job.yaml").model.kind == "my_model.py:Mlp"
    assert problem("workload", document) == ""
    del document["model"]["layers"]
    assert problem("workload", document) != ""
