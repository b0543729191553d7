"""Flow control: credit, pacing, bounded queues, acknowledgements."""
