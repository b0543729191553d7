"""Commands on the catalogue: its tools, their approval, and their items."""
