"""A shaper of one's own: the relay, which also keeps a list of all that was changed on its links while they lived."""

from typing import Any

from testbed.lab.shaping.relay import RelayShaper


class Recording(RelayShaper):
    """What was changed stands in the manifest, beside what is in force."""

    name = "recording"

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[dict[str, Any]] = []

    def change(self, direction: int, **values: float) -> None:
        """Change a live direction, and remember it."""
        super().change(direction, **values)
        self.changes.append({"direction": direction, **values})

    def describe(self) -> list[dict[str, Any]]:
        """Per direction, what is in force, and the changes that led there."""
        return [
            {**row, "changes": [change for change in self.changes if change["direction"] == index]}
            for index, row in enumerate(super().describe())
        ]
