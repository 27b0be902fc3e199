"""Sessions that Hocket did not start. ``discovery`` finds them by the records of their CLIs."""
