"""Formulas as MathML, which browsers render natively: no external script, pages work offline."""

import re

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

_FUNCTION = re.compile(r"<mi>(log|sin|cos|exp)</mi>(?!<mo)")


def mathml(formula, **options):
    """The formula, with a thin space between a function and its argument, and primes as operators."""
    markup = convert(formula, **options)
    markup = _FUNCTION.sub(r'<mi>\1</mi><mspace width="0.167em"/>', markup)
    return markup.replace("<mi>&#x02032;</mi>", "<mo>&#x02032;</mo>")


def inline(self, node):
    formula = node.astext()
    markup = mathml(formula)
    if len(formula) > 40:  # wider than a telephone: it scrolls there
        markup = f'<span class="math-inline">{markup}</span>'
    self.body.append(markup)
    raise SkipNode


def block(self, node):
    self.body.append(f'<div class="math-block">{mathml(node.astext(), display="block")}</div>\n')
    raise SkipNode


def leave(self, node):
    """Do nothing: the visitor has written the whole formula."""


def setup(app):
    app.add_html_math_renderer("mathml", (inline, leave), (block, leave))
    return {"parallel_read_safe": True}
