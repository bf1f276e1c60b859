"""The store in a folder of Markdown notes."""
