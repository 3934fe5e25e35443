"""The query service: pure parts, recall over fakes, HTTP on a real server."""
