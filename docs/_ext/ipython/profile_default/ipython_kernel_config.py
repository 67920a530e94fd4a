"""Kernels of the tutorials return figures as SVG, which the pages show in the colours of their theme."""

c = get_config()  # noqa: F821
c.InlineBackend.figure_formats = {"svg"}
