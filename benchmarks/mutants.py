"""Does the verdict notice when ranks compute something else? Faults in the engine, in real workers, one by one.

    python benchmarks/mutants.py [--only WORD]... [--correct COUNT [--first 0] [--seed 1]]

Every fault is put into the engine's code before workers are forked, which then train for three iterations over the
loopback interface, and what they tell is judged as that of a run is, against one process that trained the same. A
Markdown table: what was wrong, where, how far off it came out and which question of the verdict said so; "losses and
norms" says whether these alone would have. With --correct no fault, but so many correct trainings that are nothing
alike (parts/correct_trainings.py): how far off each is, the worst beside the limits. Exit code 1 where a fault is
trusted, or a run without one is not.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from harness import options
from harness.local_training import scheduled, task_of, workers
from harness.options import ROOT
from harness.record import Claim, Topic, each, finish
from parts.correct_trainings import MLP, Setting, drawn

import testbed.train.preload  # noqa: F401 - what the fork server imports: it is forked from this process
from testbed.errors import RunFailed
from testbed.judge import iterations, numerics
from testbed.judge.fidelity import Check
from testbed.judge.parameter_checks import parameter_checks, put_together
from testbed.lab.machine_witness import MachineCounts
from testbed.pipeline.ir import Kind
from testbed.plan.plan import Plan
from testbed.planning.resolve import make_plan
from testbed.session.deadlines import Deadline
from testbed.spec import load_topology, load_workload
from testbed.trace.tables import ALL_GATHER
from testbed.train import training_state
from testbed.train.assignment import ReferenceOutcome, last_compared
from testbed.train.boundary_messages import BoundaryMessages
from testbed.train.buffers import KeptBuffers
from testbed.train.collective_runner import Messages
from testbed.train.data import load_corpus
from testbed.train.gpt import Gpt
from testbed.train.optimizer import Optimizer, make_optimizer
from testbed.train.reference import train_reference
from testbed.train.schedule_run import ScheduleRun
from testbed.train.stage import Stage
from testbed.train.tensor import TensorShare
from testbed.train.tensor_peers import Peers
from testbed.train.training_state import TrainingState

ITERATIONS, MICROBATCHES = 3, 3
PATIENCE = Deadline(120, "a fault may leave ranks waiting for ever")
UNWITNESSED = MachineCounts(math.nan, math.nan, math.nan, math.nan)
NETWORK = """
name: pair
datacenters: {a: {nodes: 8}, b: {nodes: 8}}
links: [{between: [a, b], delay: 1 ms, rate: 1 Gbit/s}]
"""
SMALL_MLP = "{kind: my_model.py:Mlp, layers: 4}"
GPT = "{layers: 4, d_model: 16, heads: 2, sequence: 8}"


SETTINGS = {
    "pipeline": Setting((1, 2, 1), "zb-h1", {}),
    "ZeRO-1": Setting((2, 2, 1), "1f1b", {}),
    "all-reduce": Setting((2, 1, 1), "gpipe", {"data_parallel": "{sharding: none}"}),
    "tensor": Setting((1, 2, 2), "1f1b", {}),
}
"""Where faults are put."""
CONTROLS = SETTINGS | {
    "two levels": Setting((2, 1, 1), "zb-v", {"data_parallel": "{algorithm: hierarchical, chunks: 2}"}),
    "tensor and ZeRO-1": Setting((2, 1, 2), "gpipe", {"receives": "late"}),
    "sub-blocks, recomputed": Setting((1, 2, 1), "crosspipe-greedy", {"recompute": "true"}),
    "SGD": Setting((2, 2, 1), "zb-h1", {"optimizer": "{kind: sgd, learning_rate: 0.1}"}),
    "float64": Setting((1, 2, 1), "1f1b", {"model": GPT[:-1] + ", dtype: float64}"}),
    "another model": Setting((1, 2, 1), "zb-h1", {"model": SMALL_MLP}),
    "another model, ZeRO-1": Setting((2, 1, 1), "gpipe", {"model": SMALL_MLP, "data_parallel": "{parameters: 80 kB}"}),
}


@contextmanager
def _instead(owner: object, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """A function of a class or module in a form `made` of the one that is there, while this lasts."""
    with mock.patch.object(owner, name, made(getattr(owner, name))):
        yield


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    what: str
    setting: str
    owner: object
    name: str
    made: Callable[[Any], Any]
    """From the function that is there, the one that stands in its place."""


# --- the faults: functions of the function that is there ---


def _summed(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Callable[[Any], Any]:
    """What comes in of a reduction is changed, given the iteration."""
    return _taken(change, gathers=False)


def _gathered(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Callable[[Any], Any]:
    """The same of a gather."""
    return _taken(change, gathers=True)


def _taken(change: Callable[[torch.Tensor, int], torch.Tensor], *, gathers: bool) -> Callable[[Any], Any]:
    def made(there: Any) -> Any:
        def take_in(self: Messages) -> None:
            changed = self.__dict__.setdefault("changed", set())
            for index in self.held if (self.kind == ALL_GATHER) is gathers else ():
                if (self.iteration, index) not in changed:
                    changed.add((self.iteration, index))
                    own = self.steps[index].n_cells * self.shards.size
                    come = self.to_receive[self.iteration % 2][index][:own]
                    come.copy_(change(come.clone(), self.iteration))
            there(self)

        return take_in

    return made


def _without_last(values: torch.Tensor, _: int) -> torch.Tensor:
    values[-1] = 0
    return values


def _optimizer(change: Callable[[TrainingState], None], ranks: Sequence[int]) -> Callable[[Any], Any]:
    """Something about the optimizer of some ranks is changed as its training begins."""

    def made(there: Any) -> Any:
        def init(self: TrainingState, *arguments: Any, **named: Any) -> None:
            there(self, *arguments, **named)
            if self.rank in ranks:
                change(self)

        return init

    return made


def _no_decay(one: TrainingState) -> None:
    one.optimizer.weight_decay = 0.0


def _faster(one: TrainingState) -> None:
    one.optimizer.learning_rate *= 1.01


def _off(one: TrainingState) -> None:
    one.optimizer.step = lambda: None  # type: ignore[method-assign]


def _norms_off(one: TrainingState) -> None:
    """Parameters that every tensor rank has are not stepped here."""
    one.optimizer.parameters = [parameter for parameter in one.optimizer.parameters if parameter.dim() > 1]


def _at_end(change: Callable[[TrainingState, int], None]) -> Callable[[Any], Any]:
    """Something is done between the last action and the optimizer's step."""

    def made(there: Any) -> Any:
        def end(self: TrainingState) -> Any:
            change(self, self.iteration)
            return there(self)

        return end

    return made


def _double_layer(one: TrainingState, _: int) -> None:
    if one.rank == 0:
        for parameter in one.stages[0].layers[1].parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(2)


def _forget_momentum(one: TrainingState, iteration: int) -> None:
    if one.rank == 0 and iteration == 1:
        one.optimizer.state.clear()


def _stale(there: Any) -> Any:
    """Rank 0 computes the last iteration with the weights before the last step, and steps these."""
    kept: dict[str, Any] = {}

    def iterate(self: ScheduleRun, iteration: int, start_s: float) -> Any:
        weights = [parameter for one in self.state.stages.values() for parameter in one.layers.parameters()]
        with torch.no_grad():
            if self.rank == 0 and iteration == ITERATIONS - 1:
                for weight, old in zip(weights, kept["old"], strict=True):
                    weight.copy_(old)
            kept["old"] = [weight.clone() for weight in weights]
        return there(self, iteration, start_s)

    return iterate


def _dropped(there: Any) -> Any:
    def weight_gradient(self: Stage, microbatch: int, part: Any) -> None:
        if microbatch == 1 and not self.is_last:
            self.in_flight[microbatch].products = [[] for _ in self.in_flight[microbatch].products]
        there(self, microbatch, part)

    return weight_gradient


def _twice(there: Any) -> Any:
    def weight_gradient(self: Stage, microbatch: int, part: Any) -> None:
        if microbatch == 0 and self.is_last:
            for products in self.in_flight[0].products:
                products.extend(list(products))
        there(self, microbatch, part)

    return weight_gradient


def _one_more(there: Any) -> Any:
    def cut_into(self: TrainingState, microbatches: int) -> None:
        there(self, microbatches)
        for stage in self.stages.values():
            stage.n_microbatches += 1

    return cut_into


def _in_one_buffer(there: Any) -> Any:
    """Messages come into memory that others before them are still needed in."""

    def init(self: BoundaryMessages, *arguments: Any) -> None:
        there(self, *arguments)
        self.to_receive = dict.fromkeys(self.to_receive, next(iter(self.to_receive.values())))

    return init


def _backwards(there: Any) -> Any:
    """Messages come in another order than that in which their buffers lie."""

    def take(self: KeptBuffers, *arguments: Any) -> list[list[torch.Tensor]]:
        return [buffers[::-1] for buffers in there(self, *arguments)]

    return take


def _loss_scaled(there: Any) -> Any:
    def layer(self: Stage, index: int, value: torch.Tensor, state: Any) -> torch.Tensor:
        output: torch.Tensor = there(self, index, value, state)
        return output * 1.001 if self._is_loss(index) else output

    return layer


def _gradient_scaled(there: Any) -> Any:
    """The loss is right, what flows back from it is not."""

    def layer(self: Stage, index: int, value: torch.Tensor, state: Any) -> torch.Tensor:
        output: torch.Tensor = there(self, index, value, state)
        return output * 1.001 - 0.001 * output.detach() if self._is_loss(index) else output

    return layer


def _same_data(there: Any) -> Any:
    """Replicas train the same microbatches."""

    def batch(self: Gpt, corpus: Any, seed: int, iteration: int, microbatch: int, size: int) -> Any:
        return there(self, corpus, seed, iteration, microbatch % MICROBATCHES, size)

    return batch


def _old_data(there: Any) -> Any:
    """From the second iteration on always the same."""

    def batch(self: Gpt, corpus: Any, seed: int, iteration: int, microbatch: int, size: int) -> Any:
        return there(self, corpus, seed, min(iteration, 1), microbatch, size)

    return batch


def _sent(change: Callable[[torch.Tensor], torch.Tensor], kinds: Sequence[Kind]) -> Callable[[Any], Any]:
    """What goes from stage to stage behind actions of these kinds."""

    def made(there: Any) -> Any:
        def wrap(self: ScheduleRun, step: Any, iteration: int, value: torch.Tensor | None, local: Any) -> Any:
            if value is not None and step.action.kind in kinds and step.target is not None:
                value = change(value)
            return there(self, step, iteration, value, local)

        return wrap

    return made


def _wrong_message(there: Any) -> Any:
    """The second stage takes the message of microbatch 0 for that of microbatch 1."""
    kept: dict[str, torch.Tensor] = {}

    def forward(self: Stage, microbatch: int, part: Any, value: torch.Tensor | None, targets: Any) -> torch.Tensor:
        if self.is_last and value is not None and microbatch < 2:
            value = kept.setdefault("first", value.clone()) if microbatch == 0 else kept.pop("first")
        result: torch.Tensor = there(self, microbatch, part, value, targets)
        return result

    return forward


def _swapped(there: Any) -> Any:
    """The halves of a stage's parameters change places when they have been gathered in the second iteration."""

    def end(self: Messages) -> None:
        begun = bool(self.futures)
        there(self)
        if self.kind == ALL_GATHER and begun and self.iteration == 1:
            first, second = self.vector.chunk(2)
            self.vector.copy_(torch.cat((second, first)))

    return end


def _not_applied(there: Any) -> Any:
    """In the second iteration nothing that is gathered is taken in."""

    def take_in(self: Messages) -> None:
        before = self.vector.clone()
        there(self)
        if self.kind == ALL_GATHER and self.iteration == 1:
            self.vector.copy_(before)

    return take_in


def _slice_swapped(there: Any) -> Any:
    """What tensor ranks have of the weights that are cut along their inputs is the other one's."""

    def keep(self: TensorShare, linear: Any, name: str, dimension: int, groups: int) -> None:
        peers = self.peers
        if dimension == 1:
            peers.tensor_rank = 1 - peers.tensor_rank
        there(self, linear, name, dimension, groups)
        if dimension == 1:
            peers.tensor_rank = 1 - peers.tensor_rank

    return keep


def _one_summand(there: Any) -> Any:
    """Tensor ranks add up what is theirs alone, once in an iteration's first sum."""
    kept = {"calls": 0}

    def total(self: Peers, value: torch.Tensor) -> torch.Tensor:
        kept["calls"] += 1
        result: torch.Tensor = there(self, value)
        return value * self.degree if kept["calls"] == 1 else result

    return total


MUTANTS = [
    Mutant("messages come into one buffer", "pipeline", BoundaryMessages, "__init__", _in_one_buffer),
    Mutant("messages come in another order than their buffers", "pipeline", KeptBuffers, "take_in_order", _backwards),
    Mutant("every partial sum x 1.005", "ZeRO-1", Messages, "_take_in", _summed(lambda one, _: one * 1.005)),
    Mutant("last element of each reduced message lost", "ZeRO-1", Messages, "_take_in", _summed(_without_last)),
    Mutant(
        "one replica's part lost in iteration 1",
        "ZeRO-1",
        Messages,
        "_take_in",
        _summed(lambda one, iteration: one * (iteration != 1)),
    ),
    Mutant("shard gathered one place off", "ZeRO-1", Messages, "_take_in", _gathered(lambda one, _: one.roll(1))),
    Mutant("last element of each gathered message lost", "ZeRO-1", Messages, "_take_in", _gathered(_without_last)),
    Mutant("all-gather not applied in iteration 1", "ZeRO-1", Messages, "_take_in", _not_applied),
    Mutant("shards swapped in iteration 1", "ZeRO-1", Messages, "end", _swapped),
    Mutant(
        "no weight decay on the ranks of one replica",
        "ZeRO-1",
        TrainingState,
        "__init__",
        _optimizer(_no_decay, (2, 3)),
    ),
    Mutant("no weight decay on one rank", "ZeRO-1", TrainingState, "__init__", _optimizer(_no_decay, (3,))),
    Mutant("no weight decay anywhere", "pipeline", training_state, "make_optimizer", lambda there: _without_decay),
    Mutant(
        "learning rate of one replica 1 % higher", "all-reduce", TrainingState, "__init__", _optimizer(_faster, (1,))
    ),
    Mutant("one rank's optimizer off", "pipeline", TrainingState, "__init__", _optimizer(_off, (1,))),
    Mutant("optimizer's states lost before iteration 1", "pipeline", TrainingState, "step", _at_end(_forget_momentum)),
    Mutant("stale weights on one rank in iteration 2", "pipeline", ScheduleRun, "iterate", _stale),
    Mutant("one microbatch's W dropped on a stage", "pipeline", Stage, "weight_gradient", _dropped),
    Mutant("one microbatch's W counted twice", "pipeline", Stage, "weight_gradient", _twice),
    Mutant("a microbatch too many in the mean", "pipeline", TrainingState, "cut_into", _one_more),
    Mutant("loss x 1.001", "pipeline", Stage, "_layer", _loss_scaled),
    Mutant("gradient of the loss x 1.001", "pipeline", Stage, "_layer", _gradient_scaled),
    Mutant("gradient of one layer doubled", "pipeline", TrainingState, "step", _at_end(_double_layer)),
    Mutant("replicas train the same microbatches", "ZeRO-1", Gpt, "batch", _same_data),
    Mutant("data of iteration 1 again in iteration 2", "pipeline", Gpt, "batch", _old_data),
    Mutant("message of another microbatch taken", "pipeline", Stage, "forward", _wrong_message),
    Mutant(
        "input gradients sent x 1.005",
        "pipeline",
        ScheduleRun,
        "_wrap",
        _sent(lambda one: one * 1.005, (Kind.B, Kind.I)),
    ),
    Mutant(
        "activations as bfloat16",
        "pipeline",
        ScheduleRun,
        "_wrap",
        _sent(lambda one: one.bfloat16().float(), (Kind.F,)),
    ),
    Mutant("tensor slices of second layers swapped", "tensor", TensorShare, "_keep", _slice_swapped),
    Mutant("one sum over tensor ranks without the others", "tensor", Peers, "total", _one_summand),
    Mutant(
        "one tensor rank does not step its norms", "tensor", TrainingState, "__init__", _optimizer(_norms_off, (1,))
    ),
]


def _without_decay(spec: Any, parameters: list[torch.nn.Parameter]) -> Optimizer:
    found = make_optimizer(spec, parameters)
    found.weight_decay = 0.0
    return found


# --- training and judging ---


def plan_of(setting: Setting) -> Plan:
    replicas, ranks, tensor = setting.mesh
    settings = {
        "parallelism": f"{{pipeline: {ranks}, data: {replicas}, tensor: {tensor}}}",
        "microbatches": str(MICROBATCHES),
        "model": GPT,
        "microbatch_size": "1",
        "message": "20 kB",
        "pacing": "{F: 0.3 ms, I: 0.2 ms, W: 0.4 ms}",
        "memory": str(2 * MICROBATCHES),
        **setting.fields,
    }
    base = "examples/my_job.yaml" if settings["model"] in (MLP, SMALL_MLP) else "workloads/tiny-gpt-pp4.yaml"
    with tempfile.TemporaryDirectory() as scratch:
        topology = Path(scratch) / "pair.yaml"
        topology.write_text(NETWORK)
        return make_plan(load_topology(topology), load_workload(ROOT / base, settings))


@cache
def reference(name: str) -> tuple[Plan, ReferenceOutcome]:
    """Of one of CONTROLS: one process's training, with the engine as it is."""
    return referenced(CONTROLS[name])


def referenced(setting: Setting) -> tuple[Plan, ReferenceOutcome]:
    """The same of any setting."""
    plan = plan_of(setting)
    got = train_reference(plan.jobs[0].workload, load_corpus(), ITERATIONS, (ITERATIONS - 1,))
    return plan, ReferenceOutcome(got.losses, got.gradient_norms, parameters=got.parameters)


def checks(name: str) -> list[Check]:
    """What the verdict says of the numbers of a run of a setting. Raises RunFailed where a worker did."""
    return compared(*reference(name), CONTROLS[name].schedule)


def compared(plan: Plan, expected: ReferenceOutcome, schedule: str) -> list[Check]:
    """The same of a plan."""
    case = scheduled(plan, schedule)
    task = replace(task_of(case, ITERATIONS), keep_gradients=False, count_memory=False, compared=ITERATIONS)
    rows, told = [], []
    with tempfile.TemporaryDirectory() as logs, workers(plan.jobs[0].mesh.size, Path(logs), PATIENCE) as loop:
        for (records,) in loop.run([task], PATIENCE):
            rows.append(iterations.iteration_row(records, 0, UNWITNESSED))
            told += put_together(records)
    return [
        numerics.loss_check([row.loss for row in rows], expected),
        numerics.gradient_check(rows, expected),
        *parameter_checks(told, expected, [last_compared(len(rows))]),
    ]


def judged(mutant: Mutant) -> list[Check]:
    """The same with a fault in the engine."""
    reference(mutant.setting)  # before there is one
    with ExitStack() as stack:
        stack.enter_context(_instead(mutant.owner, mutant.name, mutant.made))
        return checks(mutant.setting)


def show(what: str, where: str, found: Sequence[Check], *, fault: bool) -> bool:
    """Print a row; returns whether the verdict is as it should be."""
    off = [check for check in found if not check.ok]
    fine = bool(off) is fault
    said = "; ".join(f"{check.question}: {check.found} (limit {check.limit})" for check in (off or found))
    before = "yes" if any(not check.ok for check in found[:2]) else "no"
    verdict = ("caught" if off else "TRUSTED") if fault else ("UNTRUSTED" if off else "trusted")
    print(f"| {what} | {where} | {verdict} | {before} | {said} |", flush=True)
    return fine


def correct(seed: int, first: int, count: int) -> list[Claim]:
    """Train what is drawn, and print how far off each is."""
    print("| training | losses | gradient norms | first gradients | weights | |\n| --- | --- | --- | --- | --- | --- |")
    passed: list[bool] = []
    worst, limits = [0.0] * 4, [""] * 4
    for name, setting in list(drawn(seed, first + count).items())[first:]:
        plan, expected = referenced(setting)
        found = compared(plan, expected, setting.schedule)
        passed.append(all(check.ok for check in found))
        worst = [max(most, float(check.found)) for most, check in zip(worst, found, strict=True)]
        limits = [check.limit for check in found]
        verdict = "trusted" if passed[-1] else "UNTRUSTED"
        print(f"| {name} | {' | '.join(check.found for check in found)} | {verdict} |", flush=True)
    print(f"| worst of all | {' | '.join(f'{most:.1e}' for most in worst)} | |\n| limit | {' | '.join(limits)} | |")
    what = f"correct trainings that had no part in the limits pass; weights within {worst[3]:.1e}"
    return [each(what, passed.count(False), len(passed))]


def main() -> int:
    """1 where a fault passes or a correct run does not."""
    parser = options.parser(__doc__)
    parser.add_argument("--only", action="append", metavar="WORD", help="rows whose name or place has it")
    parser.add_argument("--correct", type=int, metavar="COUNT", help="correct trainings instead, so many")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    parser.add_argument("--seed", type=int, default=1, help="of --correct")
    asked = parser.parse_args()
    words = asked.only or [""]
    torch.set_num_threads(1)
    if asked.correct:
        return finish(asked, Topic.TRUTH, correct(asked.seed, asked.first, asked.correct), clock="none: no network")
    print("| fault | where | verdict | losses and norms | how far off |\n| --- | --- | --- | --- | --- |")
    passed = [
        show("none", name, checks(name), fault=False)
        for name in CONTROLS
        if any(word in f"none {name}" for word in words)
    ]
    caught = [
        show_mutant(mutant) for mutant in MUTANTS if any(word in f"{mutant.what} {mutant.setting}" for word in words)
    ]
    claims = [
        each("faults injected into the engine are caught", caught.count(False), len(caught)),
        each("correct runs beside them pass", passed.count(False), len(passed)),
    ]
    return finish(asked, Topic.TRUTH, claims, clock="none: no network")


def show_mutant(mutant: Mutant) -> bool:
    """Train with a fault and print its row; whether it was caught."""
    try:
        return show(mutant.what, mutant.setting, judged(mutant), fault=True)
    except RunFailed as error:
        print(f"| {mutant.what} | {mutant.setting} | caught | yes | {str(error).splitlines()[0]} |", flush=True)
        return True


if __name__ == "__main__":
    sys.exit(main())
