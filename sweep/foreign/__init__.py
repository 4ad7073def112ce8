"""Records of other programs: from their files to frames, and from frames to their files.

Here belongs what translates; what interprets records belongs to `sweep.analysis`, and this program's own tables as
files belong to `sweep.records`."""
