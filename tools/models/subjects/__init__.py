"""The module under test: its layouts, conventions, modes and outputs, and hooks on its calls."""
