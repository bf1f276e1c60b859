"""Reading and writing the log in SQL: shared by SQLite and PostgreSQL."""
