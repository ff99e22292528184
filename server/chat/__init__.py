"""Chat: messages and tools through a template into a prompt, and a reply into reasoning, content and tool calls."""
