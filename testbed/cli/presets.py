"""`testbed presets`: the topologies, workloads and studies that come with the testbed."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from testbed.cli import options


def presets(as_json: options.AsJson = False) -> None:
    """List the topologies, workloads and studies that come with the testbed, each with what it is.

    Their names stand for their files in every command: `testbed predict two-dc-longhaul tiny-gpt-pp4`.
    """
    from testbed.spec.document import read_yaml
    from testbed.spec.presets import KINDS, preset_files

    found = {kind: preset_files(kind) for kind in KINDS}
    documents = {
        kind: [
            {"name": name, "description": read_yaml(file)["description"], "file": str(file)}
            for name, file in files.items()
        ]
        for kind, files in found.items()
    }
    if as_json:
        options.emit(documents)
        return
    console = options.stdout_console(100)
    options.show(console, *(_table(kind, rows) for kind, rows in documents.items()))
    for kind, files in found.items():
        for directory in {file.parent for file in files.values()}:
            console.print(f"{kind}: files in {directory}/", highlight=False, markup=False, soft_wrap=True)


def _table(kind: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=kind, title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["description"])
    return table
