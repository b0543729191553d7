"""Development tools of the project: the structure report and the walk of a call. Not part of the distribution's wheel."""
