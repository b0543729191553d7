"""The dialects of JSON Schema that model APIs accept for the arguments of a tool. Pure."""
