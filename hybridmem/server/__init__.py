"""The inspector, a local web page."""
