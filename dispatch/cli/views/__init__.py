"""What the commands print: policies in force, the demo, the doctor's findings."""
