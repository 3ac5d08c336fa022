"""Middleware and routing between the socket and a route."""
