"""What a call costs, and a process holds, in a small and in a large deployment."""
