"""``python ray_machines.py``: a cluster of two machines, as Ray's own tests have it: both are this one.

Prints its address and the processes that stand for the machines; whoever started it ends all of them.
"""

import os
import signal

from ray.cluster_utils import Cluster

from sweep.training.processes import die_with_parent

die_with_parent(os.getppid())
quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": quick})
machines = [cluster.head_node, cluster.add_node(num_cpus=1)]
raylets = [machine.all_processes["raylet"][0].process.pid for machine in machines]
print(cluster.address, *raylets, flush=True)
signal.pause()
