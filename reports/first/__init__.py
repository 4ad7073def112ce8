"""The first screen of the page: where the records come from, the answer as one sentence, and one static picture of it.

Here belongs what a reader sees before anything else, as text and as SVG made without a script; interactive figures
belong to `reports.figures`."""
