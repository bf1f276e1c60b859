"""Tuning: settings found on labelled questions and cross-validated."""
