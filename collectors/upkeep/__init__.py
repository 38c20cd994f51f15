"""Keeping a store in shape: compaction, retention, and tidying up after writers that are gone."""
