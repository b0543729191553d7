"""Pictures and exchange formats of toolkits."""
