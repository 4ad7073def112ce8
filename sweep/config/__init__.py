"""The question as data: study, configuration, search space, metrics, scaling rules, advice.

Here belongs what validates or describes a question; nothing here imports torch, Optuna or another
package of ``sweep``."""
