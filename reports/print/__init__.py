"""Figures as PNG, SVG or PDF by matplotlib.

Here belongs one rendering of figures; the other is `reports.page`."""
