"""What everything but the training itself knows of a model: how many layers, how large what goes between them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, ValidationError

from testbed.plugins import IN_FILE_PATTERN, Registry, Unusable, in_file, own_code
from testbed.spec.document import WHOLE, FieldError, StrictModel, faults, validated


class ModelSpec(StrictModel):
    """Base of every model's description: subclasses add their options as fields. Imports no torch.

    What trains (layers, batches, loss) are methods of the same class that import torch themselves
    (train/model_protocol.py).
    """

    kind: str = Field(default="gpt", description="a registered name, or FILE.py:NAME")
    content: str | None = Field(default=None, description="what FILE holds; filled in when the workload is read")
    layers: int = Field(ge=1, le=1024, description="spread evenly over the stages")
    dtype: Literal["float32", "float64"] = Field(default="float32", description="of weights and what is sent")

    def boundary_shape(self, microbatch_size: int) -> tuple[int, ...]:
        """Shape of the tensor that goes from any layer to the next."""
        raise NotImplementedError(f"{type(self).__name__}.boundary_shape")

    def parameter_count(self) -> int:
        """Parameters of all layers together."""
        raise NotImplementedError(f"{type(self).__name__}.parameter_count")

    def stage_parameter_count(self, stage: int, n_stages: int) -> int:
        """Parameters of one stage; by default an equal share, which is a guess where layers differ."""
        return -(-self.parameter_count() // n_stages)

    def rank_parameter_count(self, stage: int, n_stages: int, degree: int) -> int:
        """Parameters of a stage that each of `degree` tensor ranks has: all of them where the layers are not split."""
        return self.stage_parameter_count(stage, n_stages)

    @property
    def counts_stages(self) -> bool:
        """Whether it says what each stage has of its parameters, and leaves none of that to the guess above."""
        own = type(self)
        said = own.stage_parameter_count, own.rank_parameter_count
        return said != (ModelSpec.stage_parameter_count, ModelSpec.rank_parameter_count)

    def check_tensor_degree(self, degree: int) -> None:
        """Raises FieldError where the layers cannot be shared by so many tensor ranks; by default they cannot be."""
        if degree > 1:
            raise FieldError("parallelism.tensor", degree, f"1: model {self.kind} does not say how to split its layers")

    def forward_reductions(self, stage: int, n_stages: int) -> int:
        """How many boundary tensors the tensor ranks of a stage sum up in a forward, and as many in a backward."""
        return 0

    def activation_bytes(
        self, stage: int, n_stages: int, microbatch_size: int, *, recompute: bool, degree: int
    ) -> tuple[float, float] | None:
        """Bytes of a microbatch that each of `degree` tensor ranks of a stage keeps after its F, and after its I; None
        where nobody knows."""
        return None

    def stage_layers(self, stage: int, n_stages: int) -> range:
        """The layers of a stage: an even, contiguous share."""
        return range(stage * self.layers // n_stages, (stage + 1) * self.layers // n_stages)

    @property
    def element_bytes(self) -> int:
        """Bytes of one number on the wire."""
        return 4 if self.dtype == "float32" else 8

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as a document: the process that reads it may not have run the model's file yet."""
        return as_model, (self.model_dump(),)


_TRAINING_METHODS = ("layer", "batch", "loss")
"""Of testbed.train.model_protocol.Model."""


def missing_methods(spec: ModelSpec, *, tensor_ranks: bool = False) -> list[str]:
    """What a model's class lacks to be trained, by tensor ranks as well where there are any."""
    needed = (*_TRAINING_METHODS, *(("split",) if tensor_ranks else ()))
    return [name for name in needed if not callable(getattr(spec, name, None))]


def _as_class(name: str, loaded: object) -> type[ModelSpec]:
    if isinstance(loaded, type) and issubclass(loaded, ModelSpec) and loaded is not ModelSpec:
        return loaded
    raise Unusable(name, f"a class derived from testbed.spec.model.ModelSpec, not {loaded!r}")


MODELS = Registry(
    "testbed.models", {"gpt": "testbed.train.gpt:Gpt", "linear": "testbed.train.linear:LinearChain"}, _as_class
)
"""Classes of models by name; they stand beside what trains them, and import torch only when that is used."""


def as_model(document: object) -> object:
    """The model that a workload's `model:` describes; one that is a model already stays. Raises FieldError."""
    if isinstance(document, ModelSpec):
        return document
    if not isinstance(document, dict):
        raise FieldError("", document, "a mapping of fields")
    kind, content = document.get("kind", "gpt"), document.get("content")
    if not isinstance(kind, str) or not isinstance(content, str | None):
        raise FieldError("kind", kind, "a registered name, or FILE.py:NAME")
    known: type[ModelSpec] | None = None
    try:
        known = MODELS.find(kind, content)
        known.model_rebuild()  # before 2.14 pydantic writes no field of a class that was never built itself
        return _described(validated(known, document))
    except Unusable as error:
        raise FieldError("kind", error.value, error.expected) from error
    except ValidationError as error:
        (field, value, expected), *further = faults(error, known)
        raise FieldError("" if field == WHOLE else field, value, expected, further) from error


def _described(model: ModelSpec) -> ModelSpec:
    """The model, whose own description of itself is held to be one. Raises FieldError."""
    reference = in_file(model.kind)
    if reference is None:
        return model
    with own_code(reference, lambda problem: FieldError("kind", model.kind, f"a model that works ({problem})")):
        shape, parameters = model.boundary_shape(1), model.parameter_count()
    if not (isinstance(shape, tuple) and shape and all(isinstance(length, int) and length > 0 for length in shape)):
        raise FieldError("kind", shape, "lengths of a tensor by boundary_shape, whole numbers above 0")
    if not (isinstance(parameters, int) and parameters >= 0):
        raise FieldError("kind", parameters, "a whole number, 0 or more, by parameter_count")
    return model


@dataclass(frozen=True)
class AnyModel:
    """In an annotation: in JSON Schema the field is any registered model with its fields, or one in a file of its own.

    Of a model in a file only the fields that all models have are known: it may have others.
    """

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """An alternative for each."""
        known = []
        for name, model in MODELS.items():
            of_kind = {"properties": {"kind": {"const": name}}}
            required = {} if name == ModelSpec.model_fields["kind"].default else {"required": ["kind"]}
            known.append({"allOf": [handler(TypeAdapter(model).core_schema), of_kind | required]})
        own = handler.resolve_ref_schema(handler(TypeAdapter(ModelSpec).core_schema))
        kind = {"type": "string", "pattern": IN_FILE_PATTERN, "description": own["properties"]["kind"]["description"]}
        in_file = {key: value for key, value in own.items() if key not in ("additionalProperties", "description")}
        in_file |= {"title": "FILE.py:NAME", "properties": own["properties"] | {"kind": kind}}
        in_file["required"] = ["kind", *own["required"]]
        return {"anyOf": [*known, in_file]}
