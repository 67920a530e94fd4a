"""Figures of the tutorials inside the page, so that they follow its theme, light or dark."""

from pathlib import Path

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform


class NotebookFigures(SphinxPostTransform):
    """Replaces the SVG output of a cell by its content, with the colours of the page."""

    default_priority = 20  # after the outputs of cells have become images
    formats = ("html",)

    def run(self, **_):
        """Replace the figures of a page."""
        from aureole.plot import inline_svg

        for image in list(self.document.findall(nodes.image)):
            path = Path(self.env.srcdir) / image["uri"]
            if path.suffix == ".svg" and "jupyter_execute" in path.parts:
                svg = inline_svg(path.read_text(encoding="utf-8"))
                html = f'<figure class="adaptive">{svg}</figure>'
                image.replace_self(nodes.raw("", html, format="html"))


def setup(app):
    """Called by Sphinx."""
    app.add_post_transform(NotebookFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
