"""Tasks and hand-offs: the service behind their routes, and the guard against hand-off cycles."""
