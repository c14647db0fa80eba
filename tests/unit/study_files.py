"""Study files that tests write, of the topology and the workload that come with the testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILES = [str(ROOT / "topologies/two-dc-longhaul.yaml"), str(ROOT / "workloads/tiny-gpt-pp4.yaml")]


def study_file(directory: Path, **fields: Any) -> Path:
    document = {"name": "mine", "topologies": FILES[:1], "workloads": FILES[1:], "clock": "none"} | fields
    path = directory / "study.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path
