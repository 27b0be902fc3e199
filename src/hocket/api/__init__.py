"""The HTTP interface: authentication, routes, JSON types and streams."""
