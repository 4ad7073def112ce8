"""Rules by which a recipe follows the effective batch size, ranked by what they lose against tuning at each batch.

Here belongs what is computed from the trainings of one study or several; the rules' formulas are in `sweep.config`."""
