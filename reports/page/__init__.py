"""The HTML page: its data for Plotly, tables, template, style and script.

Here belongs one rendering of figures; the other is `reports.draw`."""
