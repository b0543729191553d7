"""Step 1 of a call: the name of a tool, and a version, become a resolved tool."""
