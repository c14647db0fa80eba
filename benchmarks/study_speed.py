"""How long does a study of many cells take on this machine, and is every cell of it true?

    python benchmarks/study_speed.py [--cells 100] [--record [NAME]]

Cells are the demo's job (four schedules, three measured iterations each) over as many delays of its link, measured on
the virtual clock by a guest per processor. Asked: 100 cells in 15 minutes on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

MOST_S_PER_CELL = 9.0
LIMIT_S = 7200.0


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--cells", type=int, default=100)
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="testbed-speed-") as scratch:
        out = Path(scratch, "out")
        words = ["sweep", "two-dc-longhaul", "tiny-gpt-pp4", "--over", f"links.0.delay=1..80ms/{arguments.cells}"]
        words += [
            "--iterations",
            "3",
            "--claim",
            "order as the model's",
            "--claim",
            "error <= 0.05 %",
            "--out",
            str(out),
        ]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "testbed", *words, "--json"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
        wall_s = time.monotonic() - began
        document, table = json.loads(done.stdout), pd.read_parquet(out / "study.parquet")
    cells, worst = len(set(table["cell"])), table["error"].abs().max()
    untrusted = int((~table["trusted"]).sum())
    held = sum(claim["verdict"] == "holds" for claim in document["claims"])
    claims = [
        Claim(
            f"{arguments.cells} cells of the demo's size in guests on {os.cpu_count()} processors",
            f"<= {MOST_S_PER_CELL * arguments.cells / 60:.0f} min",
            f"{wall_s / 60:.1f} min, {wall_s / max(cells, 1):.1f} s a cell",
            wall_s <= MOST_S_PER_CELL * arguments.cells,
            value=wall_s,
            unit="s",
            taken=cells,
            of=arguments.cells,
        ),
        Claim(
            "their times against the model, and the order of their schedules",
            "<= 0.05%, as predicted",
            f"{len(table)} rows, worst {worst:.4%}; {held} of 2 claims hold; {untrusted} not trusted",
            bool(worst <= 5e-4) and held == 2,
            value=float(worst),
            unit="share",
            taken=cells,
            of=arguments.cells,
        ),
    ]
    return finish(arguments, Topic.STUDIES, claims)


if __name__ == "__main__":
    sys.exit(main())
