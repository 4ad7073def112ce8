"""The first screen of the page and the image to share: provenance, the answer as one sentence, static pictures of it.

Here belongs what a reader sees before anything else, as text, as SVG made without a script, and as data of the image
that `reports.print` draws; interactive figures belong to `reports.figures`."""
