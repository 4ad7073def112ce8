"""Records of other programs as frames: their files (`sources`), what their columns mean (`column_map`), the frames.

Here belongs what translates; what interprets records belongs to `sweep.analysis`, and this program's own tables as
files belong to `sweep.records`."""
