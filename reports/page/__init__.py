"""The HTML page: texts, tables, Plotly traces, template, style and script.

Here belongs one rendering of figures; the other is `reports.print`."""
