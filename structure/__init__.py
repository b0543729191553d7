"""Development tools of the project: the structure report and the trace of a call. Not part of the wheel."""
