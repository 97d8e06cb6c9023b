"""Teachers and students for tests: small worlds, every arm, comparisons of what models hold."""
