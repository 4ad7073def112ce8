"""Figures: functions from frames to a frozen `Figure`.

Here belongs what is drawn; how it is drawn belongs to `reports.page` and `reports.draw`."""
