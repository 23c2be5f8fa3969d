"""Whether the texts of a figure can be read: none is cut off, no two overlap."""

from unittest import mock

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def visible_texts(figure: Figure) -> list[Text]:
    """The texts that are really drawn: tick labels outside the axes' limits exist too, but are not."""
    drawn: list[Text] = []
    original = Text.draw
    with mock.patch.object(Text, "draw", lambda text, *args: (drawn.append(text), original(text, *args))[1]):
        FigureCanvasAgg(figure).draw()
    return list({id(text): text for text in drawn if text.get_visible() and text.get_text().strip()}.values())


def assert_nothing_cut_off(figure: Figure) -> None:
    texts = visible_texts(figure)
    width, height = figure.canvas.get_width_height()
    for text in texts:
        box = text.get_window_extent()
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert inside, f"{text.get_text()!r} leaves the figure: {box}"


def assert_labels_apart(figure: Figure) -> None:
    """Needs a figure that was drawn."""
    labels = [figure._supxlabel, *(part._suptitle for part in figure.subfigs)]
    for axes in figure.findobj(mpl.axes.Axes):
        labels += [axes.title, axes.xaxis.label, axes.yaxis.label] if axes.axison else [axes.title]
    boxes = [(text.get_text(), text.get_window_extent()) for text in labels if text is not None and text.get_text()]
    for place, (name, box) in enumerate(boxes):
        for other, other_box in boxes[place + 1 :]:
            assert not box.overlaps(other_box.padded(-1)), f"{name!r} overlaps {other!r}"
