"""Do the claims of the shipped studies hold, and is what they measure what the model says?

    python benchmarks/shipped_studies.py [--studies smoke,pp-vs-dp] [--out DIR] [--record [NAME]]

Every study is measured as it stands in studies/, on the virtual clock, and its claims are judged. Cells that lie in
--out are not measured again as long as plan and code are the same: what was interrupted goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pandas as pd
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

LIMIT_S = 14_400.0
TRUE = 5e-4


class TakenStudy(NamedTuple):
    """What a study came to."""

    held: int
    """Of its claims ..."""
    claims: int
    """... which are so many."""
    table: pd.DataFrame


def taken(name: str, out: Path) -> TakenStudy:
    """Measure it, and say of each claim what became of it."""
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "study", name, "--out", str(out / name), "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )
    judged = json.loads(done.stdout)["claims"]
    for claim in judged:
        print(f"{name}: {claim['verdict']}: {claim['claim']}: {claim['why']}")
    held = sum(claim["verdict"] == "holds" for claim in judged)
    return TakenStudy(held, len(judged), pd.read_parquet(out / name / "study.parquet").assign(study=name))


def together(found: Sequence[TakenStudy]) -> Claim:
    """One figure of all of them."""
    table = pd.concat([study.table for study in found])
    measured = table[table["measured_s"].notna()]
    modelled = measured[measured["covered"].fillna(value=True)]
    lossy, worst = len(measured) - len(modelled), float(modelled["error"].abs().max())
    untrusted = int((~modelled["trusted"]).sum())
    held, claims = sum(study.held for study in found), sum(study.claims for study in found)
    names = ", ".join(dict.fromkeys(table["study"]))
    got = f"{held} of {claims}; {len(modelled)} rows, worst {worst:.4%}, {untrusted} not trusted"
    return Claim(
        f"studies {names}: their claims, and measured against predicted",
        f"each holds, <= {TRUE:.2%}",
        got + (f"; {lossy} more with losses, not in the model" if lossy else ""),
        held == claims and worst <= TRUE,
        value=worst,
        unit="share",
        taken=len(measured.groupby(["study", "cell"])),
        of=len(table.groupby(["study", "cell"])),
    )


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--studies", default="smoke,pp-vs-dp", help="their names, with commas between them")
    parser.add_argument("--out", type=Path, help="where their cells lie; default: nowhere afterwards")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="testbed-studies-") as scratch:
        out = arguments.out or Path(scratch)
        found = [taken(name, out) for name in arguments.studies.split(",")]
    return finish(arguments, Topic.STUDIES, [together(found)])


if __name__ == "__main__":
    sys.exit(main())
