"""HTTP: the server's door. Guard, routes, wire forms and streams; what happens behind it is the engine's."""
