"""Where trials run: in this process, in child processes, on a Ray or a Slurm cluster.

Here belongs what carries out a task and returns its messages; what is proposed or recorded does not."""
