"""Chats: templates in a sandbox, and turns of a conversation."""
