"""What a notebook shows: a study, records, an answer and figures as HTML and pictures.

Here belongs what a cell displays; its texts and numbers are those of the page and of the command line."""
