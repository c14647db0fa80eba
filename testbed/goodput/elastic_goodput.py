"""How much of its replicas' time a job trains that goes on with those that are left: a formula of our own.

N replicas fail independently, each after theta seconds on average (exponential) while it has a part; one that is lost
is back at the first boundary D seconds later, w seconds after that on average. Whoever is left stands still for R
seconds; where replicas come back all do for R + s, s seconds of which their states are on the links.

Derivation: each replica is there with the share A = theta / (theta + D + w), however D is distributed, so that n of
them are with P(n), binomial. With n there, the next failure comes at the rate a = n/theta, and the next return at
b = (N - n)/(D + w); as many changes lead from n to n + 1 as back, so that per second with n there, b of them came by a
failure and a by a return. A restart of length x lasts G(x) = (1 - e^(-a x))/a on average until it is over or another
failure comes, which has another one begin. Some that are back need no restart of their own: they are taken in behind a
failure that comes before the boundary, or several at one boundary. Of the time, iterations that no failure breaks off
have the share a tau/(e^(a tau) - 1), as in Daly's formula, and b tau returns in one share 1 - e^(-b tau) boundaries; so
there are f a restarts for a returns, f the product of that share and (1 - e^(-b tau))/(b tau). Restarts have the share
rho = b G(R) + f a G(R + s) of the time with n there; of the rest, a tau/(e^(a tau) - 1) is kept. A replica trains its
own part of the batch alone, hence

    goodput = sum over n of  P(n) n/N (1 - rho) a tau / (e^(a tau) - 1)

and w is what is left of an iteration (or of a restart, and then an iteration), at a moment by chance; of the restart of
its own failure where D is less than R. What is left out: the moment is not quite by chance. Where no replica is left a
training ends: P(0) has to be next to nothing.

Replicas that share an optimizer go on from where its shards were copied last, which every k iterations takes c seconds;
a restart behind a failure also cuts shards anew, for r seconds. Then k tau are kept, of a stretch of k tau + c that no
failure breaks off: a k tau/(e^(a (k tau + c)) - 1) in the place of the last factor, R + r in that of R where a failure
had the restart begin, and f and w are those of such stretches. Left out: a training ends with a shard and its copy.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class ElasticSetting(NamedTuple):
    """A job whose replicas are lost, and come back; seconds."""

    replicas: int
    iteration_s: float
    restart_s: float
    send_s: float
    repair_s: float
    replica_mtbf_s: float
    """Of one replica."""
    every: int = 1
    """Iterations from one copy of all shards to the next one; 1 also where nothing is shared."""
    copy_s: float = 0.0
    cut_s: float = 0.0
    """For shards to be cut anew where a replica is lost; where one is back that is in `send_s`."""

    @property
    def kept_s(self) -> float:
        """Of iterations from one boundary that training can go on from to the next one."""
        return self.every * self.iteration_s

    @property
    def stretch_s(self) -> float:
        """All of the time between two such boundaries."""
        return self.kept_s + self.copy_s


def expected_elastic_goodput(job: ElasticSetting) -> float:
    """The share of all replicas' time that trains what is kept, over a long training."""
    away_s = job.repair_s + job.stretch_s
    for _ in range(20):  # what is waited for at a boundary hangs a little on who is there
        shares = _shares(job, away_s)
        returning = [share * (job.replicas - n) for n, share in enumerate(shares)]
        waits_s = [_wait_s(job, n, away_s) for n in range(job.replicas + 1)]
        mean_s = sum(weight * wait_s for weight, wait_s in zip(returning, waits_s, strict=True)) / sum(returning)
        away_s = job.repair_s + mean_s
    found = 0.0
    for n, share in enumerate(_shares(job, away_s)):
        if n:
            rate = n / job.replica_mtbf_s
            kept = rate * job.kept_s / math.expm1(rate * job.stretch_s)
            found += share * n / job.replicas * (1 - _restarting(job, n, away_s)) * kept
    return found


def _shares(job: ElasticSetting, away_s: float) -> list[float]:
    """Of time, with 0, 1, ... replicas there."""
    there = job.replica_mtbf_s / (job.replica_mtbf_s + away_s)
    count = job.replicas
    return [math.comb(count, n) * there**n * (1 - there) ** (count - n) for n in range(count + 1)]


def _restarting(job: ElasticSetting, n: int, away_s: float) -> float:
    """The share of the time with so many there that goes into restarts."""
    failing, returning = n / job.replica_mtbf_s, (job.replicas - n) / away_s
    behind_failures = returning * _until(job.restart_s + job.cut_s, failing)
    taken_in = _own_restarts(job, failing, returning) * failing * _until(job.restart_s + job.send_s, failing)
    return behind_failures + taken_in


def _own_restarts(job: ElasticSetting, failing: float, returning: float) -> float:
    """How many restarts there are for each replica that is back, at these rates of failures and of returns."""
    failures, returns = failing * job.stretch_s, returning * job.stretch_s
    not_broken_off = failures / math.expm1(failures) if failures else 1.0
    return not_broken_off * (-math.expm1(-returns) / returns if returns else 1.0)


def _until(seconds: float, rate: float) -> float:
    """How long a span of so many seconds is on average, which failures at a rate end before its time."""
    return -math.expm1(-rate * seconds) / rate if rate else seconds


def _left_of(seconds: float, rate: float) -> float:
    """What is left of such a span at a moment by chance: half the mean square over the mean."""
    x = rate * seconds
    if x < 1e-6:
        return seconds / 2
    return (1 - math.exp(-x) * (1 + x)) / rate**2 / _until(seconds, rate)


def _wait_s(job: ElasticSetting, n: int, away_s: float) -> float:
    rate = n / job.replica_mtbf_s
    restart_s = job.restart_s + job.cut_s
    if job.repair_s < restart_s:
        return restart_s - job.repair_s + _until(job.stretch_s, rate)
    restarting = _restarting(job, n, away_s)
    behind_restart_s = _left_of(restart_s, rate) + _until(job.stretch_s, rate) if restart_s else 0.0
    return (1 - restarting) * _left_of(job.stretch_s, rate) + restarting * behind_restart_s
