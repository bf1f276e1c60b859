"""The rooms of the PostgreSQL store: connections, schema, log, what is derived for searching, and searching itself."""
