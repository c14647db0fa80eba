"""The mesh of a job: the only place where a rank is turned into replica, pipeline rank and tensor rank, or back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pydantic import ConfigDict, with_config


class Coordinates(NamedTuple):
    """Where a rank stands in its job's mesh."""

    replica: int
    pipeline_rank: int
    tensor_rank: int


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True)
class Mesh:
    """Extents along the axes of torch's DeviceMesh ("dp", "pp", "tp"), row-major; ranks begin at `first_rank`."""

    dp: int
    pp: int
    tp: int
    first_rank: int = 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp

    @property
    def ranks(self) -> range:
        """Its ranks among those of all jobs."""
        return range(self.first_rank, self.first_rank + self.size)

    def rank(self, replica: int, pipeline_rank: int, tensor_rank: int = 0) -> int:
        """The rank at these coordinates. Raises ValueError outside the mesh."""
        for value, extent in ((replica, self.dp), (pipeline_rank, self.pp), (tensor_rank, self.tp)):
            if not 0 <= value < extent:
                raise ValueError(f"({replica}, {pipeline_rank}, {tensor_rank}) is outside {self}")
        return self.first_rank + (replica * self.pp + pipeline_rank) * self.tp + tensor_rank

    def coordinates(self, rank: int) -> Coordinates:
        """The inverse of `rank`. Raises ValueError for a rank of another job."""
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not of {self}")
        rest, tensor_rank = divmod(rank - self.first_rank, self.tp)
        return Coordinates(*divmod(rest, self.pp), tensor_rank)

    def tensor_ranks(self, replica: int, pipeline_rank: int) -> tuple[int, ...]:
        """The ranks that share the layers of a stage, in order."""
        return tuple(self.rank(replica, pipeline_rank, tensor_rank) for tensor_rank in range(self.tp))

    def counterparts(self, pipeline_rank: int, tensor_rank: int = 0) -> tuple[int, ...]:
        """The ranks of all replicas that have the same parameters, in the order of replicas."""
        return tuple(self.rank(replica, pipeline_rank, tensor_rank) for replica in range(self.dp))

    def position(self, rank: int) -> int:
        """Where a rank stands among those of its job, counting the tensor ranks of a stage as one."""
        return (rank - self.first_rank) // self.tp

    def ranks_of(self, replica: int) -> range:
        """All ranks of one replica, the tensor ranks of a stage beside each other."""
        first = self.rank(replica, 0)
        return range(first, first + self.pp * self.tp)

    def pipeline(self, replica: int, tensor_rank: int = 0) -> tuple[int, ...]:
        """The ranks of one pipeline, in order."""
        return tuple(self.rank(replica, stage, tensor_rank) for stage in range(self.pp))
