"""The models, data sets, optimizers and schedules that a configuration may name, and what is known of each beforehand.

Here belongs every fact of an entry that others read; nothing here imports torch: functions are named by text."""
