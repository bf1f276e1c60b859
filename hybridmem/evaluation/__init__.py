"""Evaluation on labelled questions, and tuning of recipes."""
