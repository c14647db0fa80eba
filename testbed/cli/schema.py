"""`testbed schema`: the JSON Schema of a kind of file, for editors and other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.errors import BadInput
from testbed.files import require_writable, write_output


def _kinds(begun: str) -> list[str]:
    """What a shell offers for a kind that is being typed."""
    from testbed.planning.file_schemas import KINDS

    return [kind for kind in KINDS if kind.startswith(begun)]


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="topology, workload or study.", autocompletion=_kinds)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The file to write; default: stdout.")
    ] = None,
) -> None:
    """Print the JSON Schema (draft 2020-12) of topologies, workloads or studies, by which editors complete and check.

    It is made from the models that read the files, with the models and schedules of installed packages. An editor's
    language server for YAML takes it from a first line `# yaml-language-server: $schema=FILE`.
    """
    import json

    from testbed.planning.file_schemas import schema_of

    text = json.dumps(schema_of(kind), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if out is None:
        print(text, end="")
    else:
        if out.suffix in (".yaml", ".yml"):
            raise BadInput.of("--out", "file", str(out), "a name that ends in .json: a schema is no YAML")
        require_writable(out, "--out")
        write_output(out, text, "--out")
