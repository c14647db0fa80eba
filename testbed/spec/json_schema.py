"""JSON Schema (draft 2020-12) of what files may hold, made from the models that validate them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

DIALECT = GenerateJsonSchema.schema_dialect


def json_schema(model: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """The schema of a file that is one such document, with quantities as text with units.

    What it defines under `$defs` is referred to with `prefix` in front of its name, for a schema that is put into
    another one.

    It knows shapes, bounds of plain numbers, and fields. What hangs on several fields together, the bounds of
    quantities, and that 8.0 is no whole number, only the model knows.
    """
    return {"$schema": DIALECT, **_generated(model, f"#/$defs/{prefix}{{model}}")}


def _generated(model: type[BaseModel], template: str) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True, ref_template=template, schema_generator=_Generator)


class _Generator(GenerateJsonSchema):
    """As pydantic's, without titles that only repeat a field's name, and strict about the keys of mappings."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """A field has its name and its description."""
        return False

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        """Keys that match no pattern are refused."""
        found = super().dict_schema(schema)
        return {**found, "additionalProperties": False} if "patternProperties" in found else found
