"""JSON Schema (draft 2020-12) of what files may hold, made from the models that validate them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

DIALECT = GenerateJsonSchema.schema_dialect


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a file that is one such document, with quantities as text with units.

    It knows shapes, bounds of plain numbers, and fields. What hangs on several fields together, the bounds of
    quantities, and that 8.0 is no whole number, only the model knows.
    """
    return {"$schema": DIALECT, **model.model_json_schema(by_alias=True, schema_generator=_Generator)}


class _Generator(GenerateJsonSchema):
    """As pydantic's, without titles that only repeat a field's name, and strict about the keys of mappings."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """A field has its name and its description."""
        return False

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        """Keys that match no pattern are refused."""
        found = super().dict_schema(schema)
        return {**found, "additionalProperties": False} if "patternProperties" in found else found
