"""Each trial in a child of a forkserver that has torch imported.

Here belongs one machine; clusters build on it."""
