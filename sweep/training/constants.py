"""Constants of the training protocol that the forecast of a study requires too. Imports no torch."""

MAX_EVALUATIONS = 50  # of a training: one per epoch, or one every few epochs
# Until a target accuracy: every quarter of an epoch, later every twentieth of what was trained. The training time to
# the target is then known to within 5 % (or a quarter of an epoch).
TARGET_EPOCHS = 0.25
TARGET_GROWTH = 0.05
TRAIN_ACCURACY_IMAGES = 10_000  # of the train split that train_accuracy is measured on, at most; always the same

# Limits of the measurement that finds the bottleneck of a training.
BOTTLENECK_STEPS = 20
BOTTLENECK_SECONDS = 1.0
BOTTLENECK_SHARE = 0.1  # of the steps of the training

RESIDENT_SHARE = 0.25  # of the free memory of a GPU; a larger set stays on the host
CPU_RESIDENT_BYTES = 2**28  # of a set that a CPU keeps ready in three copies; a larger one is read batch by batch
READY_PIXELS = 2**22  # of a set that is kept normalized on the device, at most

# Timed windows of several optimizer steps.
WINDOW_SECONDS = 0.1
MAX_WINDOW_STEPS = 100
