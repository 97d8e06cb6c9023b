"""Moving records: topics, settlement of labels, the lake. Knows no torch and no Ray."""
