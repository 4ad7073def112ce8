"""What is measured about a finished training: sharpness of the minimum, the bottleneck.

Here belongs what no step requires."""
