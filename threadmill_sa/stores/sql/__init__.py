"""The store on SQL databases: PostgreSQL and SQLite files."""
