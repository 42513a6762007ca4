"""Readers of the event stream: terminal, HTML, JSON, JUnit."""
