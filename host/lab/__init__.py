"""Drafters and tree sizes compared on prompts, exactly and without the target's passes."""
