"""Kernels of the tutorials return figures as SVG, which the pages show in the colours of their theme."""

c = get_config()
c.InlineBackend.figure_formats = {"svg"}
