"""The path of one call: resolve, admit, attempt, retry, conclude."""
