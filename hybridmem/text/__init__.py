"""Tokenising: analyzer, stemmer, stop words, folding, entities."""
