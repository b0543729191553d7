"""Texts that the commands print: policies in force, the demo, the findings of the doctor."""
