"""Types, protocols, validation and concurrency helpers that every other package uses."""
