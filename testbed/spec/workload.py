"""A training job as a file: model shape, parallelism, microbatches, pacing, schedules."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from testbed.errors import BadInput
from testbed.pipeline.algorithms import ALGORITHMS, Algorithm
from testbed.plugins import Unusable, read_content
from testbed.spec.choice import Reference, ScheduleChoice, file_named, with_labels
from testbed.spec.document import (
    Document,
    FieldError,
    StrictModel,
    WrittenAs,
    override,
    plain,
    read_yaml,
    validate,
)
from testbed.spec.full_scale_job import FullScale, LabScale
from testbed.spec.model import AnyModel, ModelSpec, as_model
from testbed.spec.quantity import SI_UNITS, NumberPerRank, size_bytes
from testbed.spec.slot_spread import Slot, SlotSpread, with_samples
from testbed.spec.topology import Name
from testbed.units import show_size

MAX_STAGES = 256
MAX_MICROBATCHES = 4096
MOST_ITERATIONS = 100_000
MOST_MEMORY = 1e6
"""Microbatches in flight: as good as no limit."""


class Parallelism(StrictModel):
    """Degrees of parallelism."""

    pipeline: int = Field(ge=1, le=MAX_STAGES, description="ranks of a pipeline, one after the other")
    data: int = Field(default=1, ge=1, le=64, description="pipelines that train the same stages, ZeRO-1 sharded")
    tensor: Literal[1, 2, 4] = Field(default=1, description="ranks of one datacenter that share every layer of a stage")

    @property
    def ranks_of_pipeline(self) -> int:
        """Ranks of one of the pipelines side by side."""
        return self.pipeline * self.tensor


MOST_MESSAGE_BYTES = 1e9
MOST_STREAMS = 64
MOST_SCHEDULES = 1000

Transport = Literal["otn-lossless", "tcp-default", "tcp-cubic", "tcp-bbr"]
"""How TCP is set up (lab/transport.py)."""

PerStage = Annotated[float | list[float] | SlotSpread, Slot()]
"""One time for every stage, or a list with one per pipeline rank, or a distribution."""

Factor = Annotated[float, Field(ge=0.01, le=100)]
PacedKind = Literal["F", "I", "W", "B"]


class Pacing(StrictModel):
    """How long each action of a whole stage takes; real work is done first, then the slot is waited out."""

    F: PerStage = Field(description="forward")
    I: PerStage = Field(description="input gradient")  # noqa: E741 - torch's and the literature's letter
    W: PerStage = Field(description="weight gradient")
    B: PerStage | None = Field(default=None, description="fused backward; default: I and W together")
    factors: list[Factor] | list[list[Factor]] | None = Field(
        default=None,
        description="what every slot of a rank is multiplied by: a number for each pipeline rank, or such a list for "
        "each replica; a slow rank, other accelerators in another datacenter",
    )

    def of(self, kind: PacedKind, rank: int) -> float:
        """Seconds that action `kind` of rank's whole stage takes, of a distribution the median; without its factor."""
        value = getattr(self, kind)
        if value is None:
            return self.of("I", rank) + self.of("W", rank)
        if isinstance(value, SlotSpread):
            return value.middle(rank)
        return float(value[rank]) if isinstance(value, list) else float(value)

    def factor(self, replica: int, rank: int) -> float:
        """What the slots of a replica's rank are multiplied by."""
        if self.factors is None:
            return 1.0
        of_replica = self.factors[replica] if isinstance(self.factors[0], list) else self.factors
        return float(of_replica[rank])

    def slowest(self, kind: PacedKind, rank: int) -> float:
        """As `of`, with the factor of the replica whose rank is slowest: replicas wait for each other."""
        replicas = len(self.factors) if self.factors and self.by_replica else 1
        return self.of(kind, rank) * max(self.factor(replica, rank) for replica in range(replicas))

    def spread(self, kind: PacedKind) -> SlotSpread | None:
        """How the slots of a kind are distributed; None where they all take the same."""
        value = getattr(self, kind)
        return value if isinstance(value, SlotSpread) else None

    @property
    def spreads(self) -> list[SlotSpread]:
        """Of all kinds that have one."""
        return [spread for kind in PACED_KINDS if (spread := self.spread(kind)) is not None]

    @property
    def varies(self) -> bool:
        """Whether one iteration takes other slots than the next."""
        return any(spread.each != "rank" for spread in self.spreads)

    @property
    def uniform(self) -> bool:
        """Whether every replica's actions of a stage take what `slowest` says."""
        return not self.spreads and not self.by_replica

    @property
    def by_replica(self) -> bool:
        """Whether each replica has factors of its own."""
        return self.factors is not None and any(isinstance(of_replica, list) for of_replica in self.factors)


PACED_KINDS: tuple[PacedKind, ...] = ("F", "I", "W", "B")


def _algorithm(name: object) -> object:
    if name not in list(ALGORITHMS):
        *others, last = map(repr, ALGORITHMS)
        raise ValueError(f"{', '.join(others)} or {last}")
    return name


class DataParallel(StrictModel):
    """What the replicas of a stage exchange, and where they are; for `parallelism.data` above 1."""

    sharding: Literal["zero-1", "none"] = Field(
        default="zero-1", description="each replica keeps a shard of the optimizer's states, or all of them"
    )
    algorithm: Annotated[str, BeforeValidator(_algorithm), WithJsonSchema({"enum": list(ALGORITHMS)})] = Field(
        default="ring", description="; ".join(f"{name}: {known.words}" for name, known in ALGORITHMS.items())
    )
    chunks: int | None = Field(
        default=None, ge=1, le=64, description="pieces: one is between datacenters while another is inside"
    )
    parameters: Annotated[float, size_bytes(0, 1e12, above=True)] | None = Field(
        default=None, description="bytes of parameters per rank, padded up to this; default: the largest stage's"
    )
    replicas: list[list[str]] | None = Field(
        default=None,
        description="the nodes of every further pipeline, rank by rank; default: more nodes of the same datacenters",
    )

    @property
    def collective(self) -> Algorithm:
        """What `algorithm` names."""
        return ALGORITHMS[self.algorithm]


class OptimizerSpec(StrictModel):
    """The optimizer; its step is outside the measured time."""

    kind: Literal["sgd", "adamw"] = Field(default="adamw", description="which one")
    learning_rate: float = Field(default=3e-3, gt=0, le=10, description="the same in every iteration")


DERIVED = ("pacing", "message", "microbatches", "microbatch_size")
"""Fields that follow from `full_scale` where a workload has that (full_scale/similitude.py)."""


def _none_word(value: object) -> object:
    return None if value == "none" else value


def _names(value: object) -> object:
    if value != "contiguous" and not isinstance(value, list):
        raise ValueError("contiguous, or a list with a node for every rank")
    return value


def _smallest_model(parallelism: object) -> dict[str, Any]:
    """What really trains where a workload at full scale does not say it: two layers for every rank."""
    pipeline = parallelism.get("pipeline") if isinstance(parallelism, dict) else None
    ranks = pipeline if isinstance(pipeline, int) and 1 <= pipeline <= MAX_STAGES else 1
    return {"layers": 2 * ranks, "d_model": 8, "heads": 1, "sequence": 8}


def _as_written(schema: dict[str, Any]) -> None:
    """JSON Schema of a workload at full scale, and of any other: what follows from `full_scale` stands beside no other.

    The model itself has every field; a file has some of them only.
    """
    follows = [*DERIVED, "model"]
    needed = {name for name in follows if name in schema["required"]}
    schema["required"] = [name for name in schema["required"] if name not in needed]
    at_full_scale = dict.fromkeys(DERIVED, False) | {"lab": {"type": "object"}}
    no_parameters = {"not": {"type": "object", "required": ["parameters"]}}
    schema["if"] = {"required": ["full_scale"], "properties": {"full_scale": {"type": "object"}}}
    schema["then"] = {"properties": at_full_scale | {"data_parallel": no_parameters}}
    schema["else"] = {"required": sorted(needed), "properties": {"lab": {"type": "null"}}}


class Workload(StrictModel):
    """A training job."""

    model_config = ConfigDict(json_schema_extra=_as_written)

    name: Name = Field(description="what results and tables call the job")
    description: str = Field(default="", description="free text")
    model: Annotated[SerializeAsAny[ModelSpec], BeforeValidator(as_model), AnyModel()] = Field(
        description="what is trained; beside full_scale, by default two tiny layers per rank"
    )
    parallelism: Parallelism = Field(description="how many ranks there are, and along which axes")
    microbatches: int = Field(ge=1, le=MAX_MICROBATCHES, description="per iteration")
    microbatch_size: int = Field(ge=1, le=4096, description="samples in a microbatch")
    placement: Annotated[Literal["contiguous"] | list[str], BeforeValidator(_names)] = Field(
        default="contiguous",
        description="contiguous: an equal share of the stages in each datacenter; or a node for every rank, "
        "the tensor ranks of a stage one after the other",
    )
    data_parallel: DataParallel = Field(
        default=DataParallel(), description="what pipelines side by side exchange; for parallelism.data above 1"
    )
    pacing: Annotated[Pacing | None, BeforeValidator(_none_word), WrittenAs(Pacing | Literal["none"] | None)] = Field(
        description="the slot of every action; none: measure what the machine takes"
    )
    message: Annotated[float, size_bytes(0, MOST_MESSAGE_BYTES, above=True)] | None = Field(
        default=None,
        description="bytes that cross a stage boundary, padded up to this, tensor ranks together; default: the tensor",
    )
    memory: Annotated[float | list[float] | None, NumberPerRank("microbatches in flight", 1, MOST_MEMORY)] = Field(
        default=None, description="limit per rank; default: the pipeline degree, at full scale what HBM holds"
    )
    recompute: bool = Field(
        default=False, description="keep only each layer's input, run its forward again before its input gradient"
    )
    transport: Transport = Field(
        default="otn-lossless",
        description="how TCP is set up; tcp-default: as the kernel does by itself; tcp-cubic, tcp-bbr: the same, with "
        "this congestion control",
    )
    streams: int = Field(
        default=1,
        ge=1,
        le=MOST_STREAMS,
        description="TCP connections between two ranks, over which each message of theirs is sent in equal parts",
    )
    receives: Literal["early", "late"] = Field(
        default="early", description="post receives a step ahead, or only when they are reached"
    )
    full_scale: FullScale | None = Field(
        default=None, description="the job that this one stands for; times, sizes and microbatches follow from it"
    )
    lab: LabScale | None = Field(default=None, description="how large it is in the lab; beside full_scale only")
    schedules: list[Annotated[ScheduleChoice, WrittenAs(Reference | ScheduleChoice)]] = Field(
        min_length=1, max_length=MOST_SCHEDULES, description="a name, or a name with options; measured one by one"
    )
    iterations: int = Field(default=10, ge=1, le=MOST_ITERATIONS, description="measured iterations")
    warmup: int = Field(default=2, ge=1, le=1000, description="iterations before the measured ones")
    seed: int = Field(default=1, ge=0, lt=2**31, description="of weights and data")
    optimizer: OptimizerSpec = Field(default=OptimizerSpec(), description="what updates the weights")

    @model_validator(mode="before")
    @classmethod
    def _bare_schedule_names(cls, data: Any) -> Any:
        """Accept `- 1f1b` for `- {schedule: 1f1b}`."""
        if isinstance(data, dict) and isinstance(data.get("schedules"), list):
            choices = [{"schedule": c} if isinstance(c, str) else c for c in data["schedules"]]
            return {**data, "schedules": choices}
        return data

    @model_validator(mode="before")
    @classmethod
    def _at_full_scale(cls, data: Any, info: ValidationInfo) -> Any:
        """Beside `full_scale`, stand-ins for what follows from it. A plan, which a program wrote, has the real ones."""
        if info.context == SI_UNITS or not isinstance(data, dict) or data.get("full_scale") is None:
            return data
        for field in DERIVED:
            if field in data:
                raise FieldError(field, data[field], "no such field beside full_scale, from which it follows")
        if isinstance(given := data.get("data_parallel"), dict) and "parameters" in given:
            expected = "no such field beside full_scale, from which it follows"
            raise FieldError("data_parallel.parameters", given["parameters"], expected)
        stand_ins = {"pacing": "none", "microbatches": 1, "microbatch_size": 1, "lab": {}}
        return {**stand_ins, "model": _smallest_model(data.get("parallelism")), **data}

    @field_validator("schedules")
    @classmethod
    def _one_label_each(cls, schedules: list[ScheduleChoice]) -> list[ScheduleChoice]:
        return with_labels(schedules)

    @model_validator(mode="after")
    def _consistent(self) -> Workload:
        ranks = self.parallelism.pipeline
        if self.model.layers < ranks:
            raise FieldError("model.layers", self.model.layers, f"at least one layer per stage ({ranks})")
        self.model.check_tensor_degree(self.parallelism.tensor)
        if isinstance(self.placement, list):
            self._check_nodes("placement", self.placement)
            if len(set(self.placement)) != len(self.placement):
                raise FieldError("placement", self.placement, "every node at most once")
        self._check_replicas()
        self._check_full_scale()
        if isinstance(self.memory, list) and len(self.memory) != ranks:
            raise FieldError("memory", self.memory, f"one limit for each of {ranks} ranks")
        if self.pacing:
            self._check_pacing(self.pacing)
        if self.tensor_bytes() > MOST_MESSAGE_BYTES:
            expected = f"a boundary tensor of at most {show_size(MOST_MESSAGE_BYTES)}: a smaller model or microbatch"
            raise FieldError("microbatch_size", self.microbatch_size, f"{expected} ({show_size(self.tensor_bytes())})")
        if self.message is not None and self.message < self.tensor_bytes():
            tensor = f"{show_size(self.tensor_bytes())}, {self.tensor_bytes()} B"
            raise FieldError("message", show_size(self.message), f"at least the boundary tensor ({tensor})")
        return self

    def _check_pacing(self, pacing: Pacing) -> None:
        ranks, replicas = self.parallelism.pipeline, self.parallelism.data
        for kind in PACED_KINDS:
            given, spread = getattr(pacing, kind), pacing.spread(kind)
            fields = {f"pacing.{kind}": given}
            if spread is not None:
                fields = {f"pacing.{kind}.median": spread.median, f"pacing.{kind}.p95": spread.p95}
            for field, times in fields.items():
                if isinstance(times, list) and len(times) != ranks:
                    raise FieldError(field, times, f"one time for each of {ranks} ranks")
        if not any(pacing.of("F", rank) for rank in range(ranks)):
            raise FieldError("pacing.F", pacing.F, "a time above 0")
        if pacing.factors is None:
            return
        several = bool(pacing.factors) and isinstance(pacing.factors[0], list)
        if several and len(pacing.factors) != replicas:
            raise FieldError("pacing.factors", pacing.factors, f"a list for each of {replicas} replicas")
        for index, factors in enumerate(pacing.factors if several else [pacing.factors]):
            if len(factors) != ranks:  # type: ignore[arg-type]
                field = f"pacing.factors.{index}" if several else "pacing.factors"
                raise FieldError(field, factors, f"one number for each of {ranks} ranks")

    def _check_replicas(self) -> None:
        exchange = self.data_parallel
        if exchange.collective.by_gloo and exchange.sharding != "none":
            expected = "sharding: none beside it, as gloo only all-reduces"
            raise FieldError("data_parallel.algorithm", exchange.algorithm, expected)
        if exchange.collective.by_gloo and self.streams > 1:
            expected = "another one beside several streams: gloo's own all-reduce sends over one connection"
            raise FieldError("data_parallel.algorithm", exchange.algorithm, expected)
        if not exchange.collective.chunked and exchange.chunks is not None:
            chunked = " or ".join(name for name, known in ALGORITHMS.items() if known.chunked)
            raise FieldError("data_parallel.chunks", exchange.chunks, f"algorithm: {chunked} beside it")
        degree, replicas = self.parallelism.data, self.data_parallel.replicas
        if replicas is None:
            return
        if len(replicas) != degree - 1:
            raise FieldError("data_parallel.replicas", replicas, f"{degree - 1} pipelines beside the first")
        for index, nodes in enumerate(replicas):
            self._check_nodes(f"data_parallel.replicas.{index}", nodes)

    def _check_nodes(self, field: str, nodes: list[str]) -> None:
        """A node for every rank of a pipeline, with the tensor ranks of a stage in one datacenter."""
        ranks, tensor = self.parallelism.ranks_of_pipeline, self.parallelism.tensor
        if len(nodes) != ranks:
            raise FieldError(field, nodes, f"one node for each of {ranks} ranks")
        for index, node in enumerate(nodes):
            first = nodes[index - index % tensor].partition("/")[0]
            if node.partition("/")[0] != first:
                expected = f"a node of {first}, as the other tensor ranks of pipeline rank {index // tensor}"
                raise FieldError(f"{field}.{index}", node, expected)

    def _check_full_scale(self) -> None:
        if self.full_scale is None:
            if self.lab is not None:
                raise FieldError("lab", self.lab.model_dump(), "no such field without full_scale")
            return
        if self.lab is None:
            raise FieldError("lab", None, "how large full_scale is in the lab, or no such field")
        pipelines, full = self.parallelism.data, self.full_scale
        if full.data % pipelines:
            expected = f"a multiple of parallelism.data ({pipelines}), the pipelines of the lab"
            raise FieldError("full_scale.data", full.data, expected)
        if self.parallelism.tensor != 1:
            raise FieldError("parallelism.tensor", self.parallelism.tensor, "1: a rank stands for full_scale.tensor")
        if full.microbatches > MAX_MICROBATCHES:
            expected = f"at most {MAX_MICROBATCHES} microbatches ({full.microbatches})"
            raise FieldError("full_scale.global_batch", full.global_batch, expected)
        units = full.shape.layers + 2 * full.ends_as_layers
        if units < self.parallelism.pipeline:
            raise FieldError("parallelism.pipeline", self.parallelism.pipeline, f"at most the model's {units} layers")

    def stage_bytes(self, n_stages: int) -> float:
        """Bytes of parameters that a rank of a stage exchanges with its counterparts in other replicas.

        As given, or those that a rank of the largest stage has.
        """
        if self.data_parallel.parameters is not None:
            return self.data_parallel.parameters * self.parallelism.pipeline / n_stages
        return self.largest_stage_bytes(n_stages)

    def cell_bytes(self, n_stages: int, cells: int) -> int:
        """Bytes of one of the equal cells into which what the replicas of a stage exchange is cut, whole numbers."""
        element = self.model.element_bytes
        return element * math.ceil(self.stage_bytes(n_stages) / (element * cells))

    def largest_stage_bytes(self, n_stages: int) -> float:
        """Bytes of parameters that a rank of the model's largest stage has: with tensor ranks, its share of them."""
        degree = self.parallelism.tensor
        largest = max(self.model.rank_parameter_count(stage, n_stages, degree) for stage in range(n_stages))
        return float(largest * self.model.element_bytes)

    def tensor_bytes(self) -> int:
        """Bytes of the tensor that crosses a stage boundary."""
        return math.prod(self.model.boundary_shape(self.microbatch_size)) * self.model.element_bytes

    def message_bytes(self) -> int:
        """Bytes of one message: a tensor rank's share of the boundary tensor, padded to `message` where given, in whole
        numbers of the tensor's.

        Every tensor rank sends its share to its counterpart (Narayanan et al. 2021, section 4.1): how much crosses the
        boundary does not grow with them.
        """
        whole, degree = max(self.tensor_bytes(), int(self.message or 0)), self.parallelism.tensor
        element = self.model.element_bytes
        return element * math.ceil(whole / (element * degree))

    def memory_limits(self) -> list[float]:
        """Microbatches in flight allowed on each rank, beside what HBM holds at full scale (plan/costs.py).

        By default the pipeline degree on every rank, which mirrors 1F1B's peak, as CrossPipe does for its dynamic
        schedules (section 6); at full scale, where HBM is the limit, no other one.
        """
        ranks = self.parallelism.pipeline
        if isinstance(self.memory, list):
            return list(self.memory)
        default = float(ranks) if self.full_scale is None else MOST_MEMORY
        return [default if self.memory is None else self.memory] * ranks


def load_workload(path: Path | Document, settings: dict[str, str] | None = None) -> Workload:
    """The workload in a file, or as a document, with `settings` (dotted key -> YAML text) laid over it.

    Raises BadInput, which names a document "workload".
    """
    return validate(Workload, workload_document(path, settings), _source(path))


def _source(path: Path | Document) -> str:
    return str(path) if isinstance(path, Path) else "workload"


def workload_document(path: Path | Document, settings: dict[str, str] | None = None) -> dict[str, Any]:
    """As `load_workload`, not yet validated; with the content of the files that it names, so that it stands alone.

    Names of files are relative to the workload's own directory, in a document to the current one. Raises BadInput.
    """
    source, directory = _source(path), path.parent if isinstance(path, Path) else Path()
    written = read_yaml(path) if isinstance(path, Path) else plain(path, source)
    if "datacenters" in written and not {"schedules", "parallelism"} & written.keys():
        raise BadInput.of(source, "file", "a topology", "a workload (behind the topology, where a command takes one)")
    document = override(written, settings or {}, source)
    if isinstance(model := document.get("model"), dict):
        document["model"] = _with_content(model, "kind", (source, directory), "model")
    if isinstance(pacing := document.get("pacing"), dict):
        document["pacing"] = {
            name: with_samples(value, name, (source, directory), f"pacing.{name}") for name, value in pacing.items()
        }
    if isinstance(schedules := document.get("schedules"), list):
        document["schedules"] = [
            _with_content(
                {"schedule": choice} if isinstance(choice, str) else choice,
                "schedule",
                (source, directory),
                f"schedules.{index}",
            )
            for index, choice in enumerate(schedules)
        ]
    return document


def _with_content(choice: Any, key: str, where: tuple[str, Path], field: str) -> Any:
    """A choice with the content of the file that it names, where it names one; `where` are source and directory."""
    if not isinstance(choice, dict) or "content" in choice or not isinstance(choice.get(key), str):
        return choice
    file = file_named(choice[key])
    if file is None:
        return choice
    try:
        return {**choice, "content": read_content(file, where[1])}
    except Unusable as error:
        raise error.at(where[0], f"{field}.{key}") from error
