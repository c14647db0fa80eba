"""The picture of a job that adapted: its iterations beside those of a job that never does, and of an oracle."""

from __future__ import annotations

import base64
from pathlib import Path
from tempfile import TemporaryDirectory

from testbed.page.markup import Markup, tag
from testbed.page.subject import Subject

_CAPTION = (
    "Its iterations beside those of a job that never adapts and of one that knows what will happen; below, what its "
    "controller believed of links and ranks."
)


def adaptation(subject: Subject) -> Markup:
    """The picture of adaptation.svg; nothing of a run without a controller."""
    known = subject.run.comparison.get("adaptation")
    if not known or not known["iterations"]:
        return Markup("")
    from testbed.results.adaptation_drawing import draw_adaptation  # matplotlib, slow to import: only where needed

    with TemporaryDirectory(prefix="testbed-") as place:
        path = Path(place) / "adaptation.svg"
        draw_adaptation(known, f"{subject.title}, {known['controller']}", path)
        picture = base64.b64encode(path.read_bytes()).decode()
    image = tag(
        "img", src=f"data:image/svg+xml;base64,{picture}", alt="Iterations, and what was believed, over the training"
    )
    return tag("div", tag("figure", image, tag("figcaption", _CAPTION, class_="small")), class_="pictures")
