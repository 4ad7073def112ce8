"""One module per command.

Here belongs the text of options and the printed result; the work is done below."""
