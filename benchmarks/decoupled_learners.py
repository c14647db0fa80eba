"""Published goodputs of a job on 1.2 million chips, beside this model's of jobs that restart and of learners apart.

    python benchmarks/decoupled_learners.py [--iterations 300000] [--seed 1] [--record [NAME]]

Published of Decoupled DiLoCo (arXiv 2604.21428), as others sum it up: a chip is interrupted once a year, and of 1.2
million of them one every 26 s; goodput is then 27 % of plain data parallelism, 58 % of one that goes on with what is
left, and 70, 88 and 93 % of 2, 8 and 16 learners that hardly wait for each other. Not published there, or not known
here: how long a restart takes, how often state is saved, how large the part is that an elastic job leaves out.

So two numbers are ours, inferred: what a failure has to cost a job that restarts whole, and one that goes on with what
is left, to come to 27 % and to 58 % in this model, with a checkpoint that costs nothing behind every iteration of 1 s.
From these the model says, with failures drawn for each learner by itself, what 2, 8 and 16 learners come to, of the
one kind and of the other. The published numbers have to lie between. That is as far as it goes: it replays no learner.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice

from harness import options
from harness.record import Claim, Topic, finish

from testbed.goodput.intervals import expected_goodput
from testbed.goodput.spans import foretold, shares_of
from testbed.plan.recovery import Checkpoints, Recovery, drawn_failures

YEAR_S, CHIPS = 365 * 86400.0, 1_200_000
MTBF_S, PUBLISHED_MTBF_S = YEAR_S / CHIPS, 26.0
PLAIN, ELASTIC = 0.27, 0.58
LEARNERS = {2: 0.70, 8: 0.88, 16: 0.93}
ITERATION_S = 1.0
LONGEST_S = 1e9


def cost_of_a_failure_s(goodput: float) -> float:
    """What a restart has to take so that the whole job has this goodput."""
    least_s, most_s = 0.0, 100 * MTBF_S
    for _ in range(100):
        middle_s = (least_s + most_s) / 2
        enough = expected_goodput(ITERATION_S, 0.0, middle_s, MTBF_S) > goodput
        least_s, most_s = (middle_s, most_s) if enough else (least_s, middle_s)
    return most_s


def drawn_goodput(restart_s: float, learners: int, iterations: int, seed: int) -> float:
    """Of so many learners, each with its share of the chips and failures of its own."""
    mtbf_s, kept_s, total_s = learners * MTBF_S, 0.0, 0.0
    most = 100 + round(20 * iterations * ITERATION_S / learners / mtbf_s)  # more than come
    for learner in range(learners):
        draws = drawn_failures(mtbf_s, LONGEST_S, 1, seed=1000 * seed + learner)
        recovery = Recovery(Checkpoints(1, 0.0, restart_s), tuple(islice(draws, most)))
        shares = shares_of(foretold(lambda _: ITERATION_S, iterations // learners, recovery))
        kept_s, total_s = kept_s + shares.kept_s, total_s + shares.total_s
    return kept_s / total_s


def learners_claim(learners: int, published: float, costs_s: Sequence[float], iterations: int, seed: int) -> Claim:
    """That what is published of so many lies between what the model has of the two kinds."""
    restarting, going_on = (drawn_goodput(cost_s, learners, iterations, seed) for cost_s in costs_s)
    return Claim(
        f"{learners} learners apart on {CHIPS / 1e6:g} million chips: published goodput (second-hand) between this "
        "model's of learners that restart whole, and that go on with what is left",
        f"{published:.0%} between",
        f"ours {restarting:.0%} and {going_on:.0%}",
        restarting <= published <= going_on,
        published,
        "share",
    )


def main() -> int:
    """Returns the exit code."""
    parser = options.parser(__doc__)
    parser.add_argument("--iterations", type=int, default=300_000, help="of all learners together")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    costs_s = [cost_of_a_failure_s(published) for published in (PLAIN, ELASTIC)]
    drawn = [drawn_goodput(cost_s, 1, asked.iterations, asked.seed) for cost_s in costs_s]
    off = max(abs(got / published - 1) for got, published in zip(drawn, (PLAIN, ELASTIC), strict=True))
    claims = [
        Claim(
            f"{CHIPS / 1e6:g} million chips, each interrupted once a year: the published failure every 26 s",
            f"{PUBLISHED_MTBF_S:g} s",
            f"{MTBF_S:.1f} s",
            abs(MTBF_S - PUBLISHED_MTBF_S) < 1,
            MTBF_S,
            "s",
        ),
        Claim(
            "what a failure costs for the published 27 % (restarts whole) and 58 % (goes on with what is left): ours",
            "(report)",
            f"{costs_s[0]:.1f} s and {costs_s[1]:.1f} s; drawn again within {off:.1%}",
            None,
            costs_s[0],
            "s",
        ),
        *(
            learners_claim(count, published, costs_s, asked.iterations, asked.seed)
            for count, published in LEARNERS.items()
        ),
    ]
    return finish(asked, Topic.ROBUSTNESS, claims, clock="none")


if __name__ == "__main__":
    sys.exit(main())
