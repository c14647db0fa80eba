"""Do the claims of the shipped studies hold, and is what they measure what the model says?

    python benchmarks/shipped_studies.py [--studies smoke,pp-vs-dp] [--out DIR] [--record [NAME]]

Every study is measured as it stands in studies/, on the virtual clock, and its claims are judged. Cells that lie in
--out are not measured again as long as plan and code are the same: what was interrupted goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from harness import options
from harness.options import ROOT
from harness.record import Claim, Topic, finish

LIMIT_S = 14_400.0
TRUE = 5e-4


def taken(name: str, out: Path) -> Claim:
    """What a study came to."""
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "study", name, "--out", str(out / name), "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
    )
    judged = json.loads(done.stdout)["claims"]
    table = pd.read_parquet(out / name / "study.parquet")
    held = sum(claim["verdict"] == "holds" for claim in judged)
    measured = table[table["measured_s"].notna()]
    modelled = measured[measured["covered"].fillna(value=True)]
    untrusted, worst = int((~measured["trusted"]).sum()), float(modelled["error"].abs().max())
    beyond = f", of which the model has {len(modelled)}" if len(modelled) < len(measured) else ""
    for claim in judged:
        print(f"{name}: {claim['verdict']}: {claim['claim']}: {claim['why']}")
    return Claim(
        f"study {name}: its claims, and measured against predicted",
        f"each holds, <= {TRUE:.2%}",
        f"{held} of {len(judged)}; {len(measured)} rows{beyond}, worst {worst:.4%}, {untrusted} not trusted",
        held == len(judged) and worst <= TRUE,
        value=worst,
        unit="share",
        taken=measured["cell"].nunique(),
        of=table["cell"].nunique(),
    )


def main() -> int:
    parser = options.parser(__doc__)
    parser.add_argument("--studies", default="smoke,pp-vs-dp", help="their names, with commas between them")
    parser.add_argument("--out", type=Path, help="where their cells lie; default: nowhere afterwards")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="testbed-studies-") as scratch:
        out = arguments.out or Path(scratch)
        claims = [taken(name, out) for name in arguments.studies.split(",")]
    return finish(arguments, Topic.STUDIES, claims)


if __name__ == "__main__":
    sys.exit(main())
