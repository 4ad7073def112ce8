"""The first schema. Nothing is older, so this script has nothing to do: it is where the others begin."""

revision = "0001"
down_revision = None
