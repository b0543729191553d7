"""Items that commands write: their names, their texts, and their stores."""
