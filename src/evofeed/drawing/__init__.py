"""Curves, bars and turnable structures as HTML, for the run report and the service's pages."""
