"""Numbers in the middle of boxes, as one thing in a picture: matplotlib's own texts take several times as long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.artist import Artist
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

if TYPE_CHECKING:
    from matplotlib.backend_bases import RendererBase

_TALLEST = "lp"
"""By the height of which matplotlib centres every line."""


class BoxNumbers(Artist):
    """Words that are short, each centred at a place; they lie in their boxes, which are within the axes."""

    def __init__(self, places: Sequence[tuple[float, float]], words: Sequence[str], points: float, ink: str) -> None:
        """`places` are in the axes' coordinates."""
        super().__init__()
        self._places, self._words, self._points, self._ink = places, words, points, to_rgba(ink)
        self.set_zorder(Text.zorder)
        self.set_in_layout(False)

    def draw(self, renderer: RendererBase) -> None:
        """See Artist."""
        if not self._words:
            return
        # an SVG's reader has its own letters: there a text is centred by its reader, for which it asks this one
        text = Text(0, 0, ha="center", va="center", fontsize=self._points, transform=IdentityTransform())
        letters = text.get_fontproperties()
        sizes = {
            word: renderer.get_text_width_height_descent(word, letters, ismath=False)
            for word in {_TALLEST, *self._words}
        }
        _, least_height, least_descent = sizes[_TALLEST]
        _, whole_height = renderer.get_canvas_width_height()
        context = renderer.new_gc()
        context.set_foreground(self._ink, isRGBA=True)
        places = self.get_transform().transform(self._places).tolist()
        for word, (x, y) in zip(self._words, places, strict=True):
            width, height, descent = sizes[word]
            foot = y + max(descent, least_descent) - max(height, least_height) / 2
            text.set_position((x, y))
            left, foot = x - width / 2, whole_height - foot if renderer.flipy() else foot
            renderer.draw_text(context, left, foot, word, letters, 0.0, ismath=False, mtext=text)
        context.restore()
