"""HybridMemory: memories stored, searched and explained."""
