"""The live catalogue: several sources that change while calls are in flight."""
